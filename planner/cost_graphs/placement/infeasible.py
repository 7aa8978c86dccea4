"""Why no placement exists, or why none was found, with the numbers that bind and what would have to change."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.errors import Infeasible, few_of
from planner.partition.describe import describe_bytes
from planner.partition.problem import Booleans, Floats, Integers


def check_can_exist(
    problem: PlacementProblem, group_of_node: Integers | None = None, class_bytes: Floats | None = None
) -> None:
    """Raises Infeasible naming the node, the group or the memory that rules out every placement. O(classes x nodes).

    Nodes of a group share a device: of `colocation`, if none is given. `class_bytes` [k] instead of the problem's.
    """
    groups = problem.colocation if group_of_node is None else group_of_node
    room = problem.class_bytes if class_bytes is None else class_bytes
    supported = np.isfinite(problem.seconds) & (problem.class_devices > 0)[:, None]
    _check_support(problem, np.arange(problem.num_nodes), supported)
    count = int(groups.max()) + 1
    supported = np.stack([np.bincount(groups, weights=~row, minlength=count) == 0 for row in supported])
    _check_support(problem, groups, supported)
    group_bytes = np.bincount(groups, weights=problem.node_bytes, minlength=count).astype(np.float64)
    _check_largest(problem, groups, supported, group_bytes, room)
    _check_total(problem, supported, group_bytes, room)


def nothing_fits(problem: PlacementProblem, kind: str, *, proven: bool) -> Infeasible:
    """Where each group fits by itself. `proven`: no placement exists; else none was found among those tried."""
    used = problem.class_devices > 0
    needed, room = float(problem.node_bytes.sum()), _all_bytes(problem, used, problem.class_bytes)
    return Infeasible(
        f"no {kind} placement {'exists' if proven else 'was found'} within the devices' memory and support: the nodes "
        f"hold {_bytes(needed)} and the devices have {_bytes(room)} in all; add a device, give each more memory, or "
        "let nodes part",
        needed_bytes=needed,
        room_bytes=room,
    )


def _check_support(problem: PlacementProblem, groups: Integers, supported: Booleans) -> None:
    missing = np.flatnonzero(~supported.any(axis=0))
    if not missing.size:
        return
    nodes = np.flatnonzero(groups == missing[0])
    classes = ", ".join(repr(problem.class_names[index]) for index in np.flatnonzero(problem.class_devices > 0))
    name = problem.node_names[int(nodes[0])]
    if nodes.size == 1:
        message = f"node {name!r} runs on no device: of the classes {classes} none supports it; add one that does"
    else:
        message = (
            f"{_members(problem, nodes)} share a device, but no class of {classes} supports all of them; let them "
            "part, or add a device that does"
        )
    raise Infeasible(message, node=name)


def _check_largest(
    problem: PlacementProblem, groups: Integers, supported: Booleans, group_bytes: Floats, class_bytes: Floats
) -> None:
    room = np.where(supported, class_bytes[:, None], -np.inf).max(axis=0)
    group = int(np.argmax(group_bytes - room))
    lacking = float(group_bytes[group] - room[group])
    if lacking > 0:
        nodes = np.flatnonzero(groups == group)
        one = nodes.size == 1
        raise Infeasible(
            f"{_members(problem, nodes)} {'holds' if one else 'share a device and hold'} {_bytes(group_bytes[group])}, "
            f"and the largest device that runs {'it' if one else 'them'} has {_bytes(room[group])}; give it "
            f"{_bytes(lacking)} more{'' if one else ', or let the nodes part'}",
            node=problem.node_names[int(nodes[0])],
            needed_bytes=float(group_bytes[group]),
            lacking_bytes=lacking,
        )


def _check_total(problem: PlacementProblem, supported: Booleans, group_bytes: Floats, class_bytes: Floats) -> None:
    """For each set of classes that some group is limited to: the groups that only these run, within their memory."""
    for classes in np.unique(supported, axis=1).T:
        inside = ~(supported & ~classes[:, None]).any(axis=0)
        needed, room = float(group_bytes[inside].sum()), _all_bytes(problem, classes, class_bytes)
        if needed > room:
            names = ", ".join(repr(problem.class_names[index]) for index in np.flatnonzero(classes))
            raise Infeasible(
                f"nodes that run on devices of {names} only hold {_bytes(needed)}, and the "
                f"{int(problem.class_devices[classes].sum())} of them have {_bytes(room)} in all; "
                f"{_bytes(needed - room)} are lacking",
                needed_bytes=needed,
                lacking_bytes=needed - room,
            )


def _all_bytes(problem: PlacementProblem, classes: Booleans, class_bytes: Floats) -> float:
    return float((class_bytes[classes] * problem.class_devices[classes]).sum())


def _members(problem: PlacementProblem, nodes: Integers) -> str:
    names = few_of([repr(problem.node_names[node]) for node in nodes.tolist()], 4)
    return f"{'node' if nodes.size == 1 else 'nodes'} {names}"


def _bytes(size: float) -> str:
    return describe_bytes(int(size)) if np.isfinite(size) else "unlimited memory"
