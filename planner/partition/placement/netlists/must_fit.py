"""Whether a free placement can exist, by what each node, each colocation group and all of them together need."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible, few_of
from planner.partition.describe import describe_bytes
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Booleans, Floats, Integers


def check_can_exist(problem: PlacementProblem) -> None:
    """Raises Infeasible naming the node, the group or the memory that rules out every placement. O(classes x nodes)."""
    supported = np.isfinite(problem.seconds) & (problem.class_devices > 0)[:, None]
    _check_nodes(problem, supported)
    groups = int(problem.colocation.max()) + 1
    group_supported = np.stack([_all_of(row, problem.colocation, groups) for row in supported])
    group_bytes = np.bincount(problem.colocation, weights=problem.node_bytes, minlength=groups).astype(np.float64)
    _check_groups(problem, group_supported, group_bytes)
    _check_total(problem, group_supported, group_bytes)


def no_packing_found(problem: PlacementProblem, *, proven: bool) -> Infeasible:
    """Everything fits by the sums, but not as whole groups."""
    needed, room = float(problem.node_bytes.sum()), _room(problem, problem.class_devices > 0)
    why = "no choice of devices for whole nodes fits" if proven else "no choice of devices that fits was found"
    return Infeasible(
        f"the nodes hold {_bytes(needed)} and the devices have {_bytes(room)} in all, but {why}; give each device more "
        f"memory, or add a device",
        needed_bytes=needed,
        room_bytes=room,
    )


def _check_nodes(problem: PlacementProblem, supported: Booleans) -> None:
    alone = np.flatnonzero(~supported.any(axis=0))
    if alone.size:
        name = problem.node_names[int(alone[0])]
        raise Infeasible(
            f"node {name!r} runs on no device: of the classes {_classes(problem)} none supports it; add one that does",
            node=name,
        )


def _check_groups(problem: PlacementProblem, group_supported: Booleans, group_bytes: Floats) -> None:
    split = np.flatnonzero(~group_supported.any(axis=0))
    if split.size:
        raise Infeasible(
            f"{_group(problem, int(split[0]))} share a device, but no class of {_classes(problem)} supports all of "
            f"them; let them part, or add a device that does",
            group=int(split[0]),
        )
    room = np.where(group_supported, problem.class_bytes[:, None], -np.inf).max(axis=0)
    group = int(np.argmax(group_bytes - room))
    lacking = float(group_bytes[group] - room[group])
    if lacking > 0:
        raise Infeasible(
            f"{_group(problem, group)} share a device and hold {_bytes(group_bytes[group])}, and the largest device "
            f"that runs them has {_bytes(room[group])}; give it {_bytes(lacking)} more, or let the nodes part",
            group=group,
            needed_bytes=float(group_bytes[group]),
            lacking_bytes=lacking,
        )


def _check_total(problem: PlacementProblem, group_supported: Booleans, group_bytes: Floats) -> None:
    """For each set of classes that some group is limited to: the groups that only these run, within their memory."""
    for classes in np.unique(group_supported, axis=1).T:
        inside = ~(group_supported & ~classes[:, None]).any(axis=0)
        needed, room = float(group_bytes[inside].sum()), _room(problem, classes)
        if needed > room:
            names = ", ".join(repr(problem.class_names[index]) for index in np.flatnonzero(classes))
            raise Infeasible(
                f"nodes that run on devices of {names} only hold {_bytes(needed)}, and the "
                f"{int(problem.class_devices[classes].sum())} of them have {_bytes(room)} in all; "
                f"{_bytes(needed - room)} are lacking",
                needed_bytes=needed,
                lacking_bytes=needed - room,
            )


def _room(problem: PlacementProblem, classes: Booleans) -> float:
    return float((problem.class_bytes[classes] * problem.class_devices[classes]).sum())


def _all_of(flags: Booleans, group: Integers, num_groups: int) -> Booleans:
    all_set: Booleans = np.bincount(group, weights=~flags, minlength=num_groups) == 0
    return all_set


def _classes(problem: PlacementProblem) -> str:
    return ", ".join(repr(problem.class_names[index]) for index in np.flatnonzero(problem.class_devices > 0))


def _group(problem: PlacementProblem, group: int) -> str:
    nodes = np.flatnonzero(problem.colocation == group)
    return f"colocated nodes {few_of([repr(problem.node_names[node]) for node in nodes.tolist()], 4)}"


def _bytes(size: float) -> str:
    return describe_bytes(int(size)) if np.isfinite(size) else "unlimited memory"
