"""Paths of the program: which of its stages runs after which, and what goes from one to the next, whatever the order.

Stages that hold bundles of a path hold them in the path's order. What one bundle of it gives to the next goes from its
stage to the next stage that holds any, whatever stages run between the two: over the link between their two devices.
The longer the path in work, the fewer stages hold none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.problem import Booleans, Floats, PartitionProblem
from planner.partition.program_orders import Bundles, least_seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """Each of its `bundles` reads what the one before makes. `given_bytes` [number held]: of so many of the first, what
    the last gives to the one after; of none or all, nothing."""

    bundles: tuple[int, ...]
    given_bytes: Floats


def longest_path(problem: PartitionProblem, bundles: Bundles, unlinked: Booleans) -> Path:
    """The path of most work; of equal ones, that of the larger values. `unlinked` [values] count for no bytes.
    O(reads + arcs)."""
    bytes_of_arc = _bytes_of_arcs(problem, bundles, unlinked)
    seconds = least_seconds(problem, bundles).tolist()
    longest = [(0.0, 0.0)] * bundles.count
    before = [-1] * bundles.count
    order = topological_order(bundles.before, bundles.after)
    for bundle in order:
        for producer in bundles.before[bundle]:
            work, size = longest[producer]
            reached = work, size + bytes_of_arc.get((producer, bundle), 0.0)
            if before[bundle] < 0 or reached > longest[bundle]:
                longest[bundle], before[bundle] = reached, producer
        work, size = longest[bundle]
        longest[bundle] = work + seconds[bundle], size
    return _path(before, max(order, key=lambda bundle: longest[bundle]), bytes_of_arc)


def path_of_strides(problem: PartitionProblem, bundles: Bundles, unlinked: Booleans, count: float) -> Path:
    """To the last bundle, in strides of much the same work of the program, `count` of them or more, where its values
    allow it: along a network's residual sums, say. Strides of more work count by its square. O(reads + arcs)."""
    bytes_of_arc = _bytes_of_arcs(problem, bundles, unlinked)
    order = topological_order(bundles.before, bundles.after)
    done = np.empty(bundles.count)
    done[order] = np.cumsum(least_seconds(problem, bundles)[order])
    each = float(done.max() / count)
    costs = (done**2).tolist()
    before = [-1] * bundles.count
    for bundle in order:
        for producer in bundles.before[bundle]:
            if (producer, bundle) in bytes_of_arc:
                cost = costs[producer] + each**2 + float(done[bundle] - done[producer]) ** 2
                if before[bundle] < 0 or cost < costs[bundle]:
                    costs[bundle], before[bundle] = cost, producer
    return _path(before, int(bundles.bundle_of_node[-1]), bytes_of_arc)


def _path(before: list[int], last: int, bytes_of_arc: dict[tuple[int, int], float]) -> Path:
    path = [last]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    path.reverse()
    sizes = [bytes_of_arc.get(pair, 0.0) for pair in pairwise(path)]
    return Path(bundles=tuple(path), given_bytes=np.array([0.0, *sizes, 0.0]))


def _bytes_of_arcs(problem: PartitionProblem, bundles: Bundles, unlinked: Booleans) -> dict[tuple[int, int], float]:
    """By pair of bundles: the distinct values that the one makes and the other reads."""
    made = problem.value_producer[problem.read_value]
    counted = (made >= 0) & ~unlinked[problem.read_value]
    value, reader = problem.read_value[counted], bundles.bundle_of_node[problem.read_node[counted]]
    pairs = np.unique(np.stack([value, bundles.bundle_of_node[made[counted]], reader]), axis=1)
    bytes_of_arc: dict[tuple[int, int], float] = {}
    for one, producer, taker in pairs.T.tolist():
        bytes_of_arc[producer, taker] = bytes_of_arc.get((producer, taker), 0.0) + float(problem.value_bytes[one])
    return bytes_of_arc
