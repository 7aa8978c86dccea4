"""Why no contiguous placement exists, with the numbers that bind."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible, few_of
from planner.partition.describe import describe_bytes
from planner.partition.placement.ideals.contraction import ItemCosts, Items
from planner.partition.placement.problem import PlacementProblem


def check_feasible(problem: PlacementProblem, items: Items, costs: ItemCosts) -> None:
    """Raises Infeasible where one group of nodes fits no device, or all of them do not fit all devices."""
    present = problem.class_devices > 0
    usable = costs.supported & present[:, None]
    if (alone := np.flatnonzero(~usable.any(axis=0))).size:
        raise _unsupported(problem, items, int(alone[0]))
    room = np.where(usable, problem.class_bytes[:, None], 0.0).max(axis=0)
    if (lacking := costs.item_bytes - room).max() > 0:
        item = int(np.argmax(lacking))
        raise Infeasible(
            f"{_members(problem, items, item)} together hold {describe_bytes(int(costs.item_bytes[item]))}, and the "
            f"largest device that supports them has {describe_bytes(int(room[item]))}; give one "
            f"{describe_bytes(int(lacking[item]))} more, or let the nodes part",
            needed_bytes=int(costs.item_bytes[item]),
            lacking_bytes=int(lacking[item]),
        )
    total, all_room = float(costs.item_bytes.sum()), _all_bytes(problem)
    if total > all_room:
        raise Infeasible(
            f"the nodes hold {describe_bytes(int(total))} and {problem.num_devices} devices have "
            f"{describe_bytes(int(all_room))} in all; {describe_bytes(int(total - all_room))} are lacking",
            needed_bytes=int(total),
            lacking_bytes=int(total - all_room),
        )


def not_found(problem: PlacementProblem, costs: ItemCosts, *, proven: bool) -> Infeasible:
    """`proven`: no placement exists; else none was found among those that were tried."""
    total, largest = float(costs.item_bytes.sum()), float(costs.item_bytes.max())
    limits = ", ".join(
        f"{count} of class {name!r} with {'no limit' if np.isinf(room) else describe_bytes(int(room))}"
        for name, count, room in zip(problem.class_names, problem.class_devices, problem.class_bytes, strict=True)
    )
    verdict = "exists" if proven else "was found"
    return Infeasible(
        f"no contiguous placement {verdict} within the devices' memory and support: the nodes hold "
        f"{describe_bytes(int(total))}, {describe_bytes(int(largest))} of them in one inseparable group, for {limits}; "
        f"add a device, give more memory, or allow placements that are not contiguous",
        needed_bytes=int(total),
        largest_group_bytes=int(largest),
    )


def _all_bytes(problem: PlacementProblem) -> float:
    present = problem.class_devices > 0
    return float(problem.class_bytes[present] @ problem.class_devices[present])


def _unsupported(problem: PlacementProblem, items: Items, item: int) -> Infeasible:
    classes = [name for name, count in zip(problem.class_names, problem.class_devices, strict=True) if count]
    return Infeasible(
        f"no class of device supports {_members(problem, items, item)}; the classes with devices are "
        f"{', '.join(map(repr, classes))}; add a device that runs all of them, or let the nodes part",
        node=problem.node_names[int(np.flatnonzero(items.item_of_node == item)[0])],
    )


def _members(problem: PlacementProblem, items: Items, item: int) -> str:
    nodes = np.flatnonzero(items.item_of_node == item)
    names = few_of([repr(problem.node_names[node]) for node in nodes.tolist()], 4)
    return f"{'node' if nodes.size == 1 else 'inseparable nodes'} {names}"
