"""A long path through the program: which link its values take is known wherever each host stands in the walk.

Stages that hold bundles of the path hold them in the path's order. What one bundle of the path gives to the next goes
from its stage to the next stage that holds any, whatever stages run between the two: over the link between their two
devices. The longer the path in work, the fewer stages hold none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.partition.portfolio.ideal_stages import Ideals
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.topological_order import topological_order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongPath:
    """By ideal: how many bundles of the path it holds, and the bytes that the last of these gives to the one after."""

    num_held: Integers
    given_bytes: Floats

    def is_held(self, starts: Integers, ends: Integers) -> Booleans:
        """[stages] whether the stage holds any of the path; the program's last stage counts as if it did."""
        on_path: Booleans = (self.num_held[ends] > self.num_held[starts]) | (ends == self.num_held.size - 1)
        return on_path


def long_path(problem: PartitionProblem, bundles: Bundles, ideals: Ideals, unlinked: Booleans) -> LongPath:
    """The path of most work; of equal ones, that of the larger values. `unlinked` [values] count for no bytes.
    O(reads + arcs)."""
    bytes_of_arc = _bytes_of_arcs(problem, bundles, unlinked)
    seconds = np.bincount(bundles.bundle_of_node, problem.work_seconds.min(axis=0), bundles.count).tolist()
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
    path = [max(order, key=lambda bundle: longest[bundle])]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    path.reverse()
    num_held = ideals.members[:, path].sum(axis=1)
    sizes = [bytes_of_arc.get((producer, reader), 0.0) for producer, reader in pairwise(path)]
    return LongPath(num_held=num_held, given_bytes=np.array([0.0, *sizes, 0.0])[num_held])


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
