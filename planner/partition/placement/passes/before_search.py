"""What is known of a single pass without a search: placements to start from, a bound, and why there may be none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.errors import Infeasible
from planner.partition.placement.node_order import node_order, producers_of_nodes
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Integers


def simple_placements(problem: PlacementProblem) -> Iterator[Integers]:
    """Everything on one device, for the first device of each class. Not all need fit."""
    first = np.cumsum(problem.class_devices) - problem.class_devices
    for device, count in zip(first.tolist(), problem.class_devices.tolist(), strict=True):
        if count:
            yield np.full(problem.num_nodes, device, dtype=np.int64)


def path_bound(problem: PlacementProblem) -> float:
    """Seconds of the longest path with each node on its quickest class and nothing moved."""
    quickest = problem.seconds[problem.class_devices > 0].min(axis=0)
    producers = producers_of_nodes(problem)
    finish = [0.0] * problem.num_nodes
    for node in node_order(problem):
        finish[node] = max((finish[producer] for producer in producers[node]), default=0.0) + float(quickest[node])
    return max(finish)


def check_each_node(problem: PlacementProblem) -> None:
    """Raises Infeasible that names a colocation group which no device can take, and what would have to change."""
    group = problem.colocation
    group_bytes = np.bincount(group, weights=problem.node_bytes)
    runs = np.zeros((problem.num_classes, group_bytes.size), dtype=np.bool_)
    for row in range(problem.num_classes):
        barred = np.bincount(group, weights=~np.isfinite(problem.seconds[row]), minlength=group_bytes.size)
        runs[row] = (barred == 0) & (problem.class_devices[row] > 0)
    room = np.where(problem.class_is_parallel, np.inf, problem.class_bytes)
    fits = runs & (group_bytes[None, :] <= room[:, None])
    for number in np.flatnonzero(~fits.any(axis=0))[:1].tolist():
        names = [problem.node_names[node] for node in np.flatnonzero(group == number)[:3].tolist()]
        what = (
            f"node {names[0]!r}" if np.count_nonzero(group == number) == 1 else f"the nodes colocated with {names[0]!r}"
        )
        if not runs[:, number].any():
            raise Infeasible(
                f"{what} cannot run on any device that there is; add a device of a class that supports it",
                node=names[0],
            )
        most = float(room[runs[:, number]].max())
        raise Infeasible(
            f"{what} need {group_bytes[number]:.0f} bytes, and the largest device that can run them has {most:.0f}; "
            f"give one device {group_bytes[number] - most:.0f} bytes more",
            node=names[0],
            missing_bytes=int(np.ceil(group_bytes[number] - most)),
        )


def no_placement(problem: PlacementProblem) -> Infeasible:
    """What to say where each group fits by itself and no placement of all of them was found."""
    needed = float(problem.node_bytes.sum())
    room = float((problem.class_bytes * problem.class_devices).sum())
    return Infeasible(
        f"no placement found: the nodes hold {needed:.0f} bytes and the devices {room:.0f} in all, and no way to fill "
        f"them keeps colocated nodes together and lets every block start; add a device or memory",
        needed_bytes=int(needed),
    )
