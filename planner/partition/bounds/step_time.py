"""A training step's seconds, with the time in which a pipeline fills and drains.

Holds where each device runs one stage, which waits for all that it reads and sends at its end, and where no stage has
copies and nothing runs again. Along a longest path of nodes whose gradients come back, the stages that hold it run one
after another for each microbatch, forward and back. Let P be the work of those before a stage, w its own, D that of
those behind it, all of one microbatch, and a how many microbatches 1F1B has it run forward before the first comes back.

- Any unsplit schedule: P + m w. The first microbatch comes after P's forward half; P's backward half follows the last.
- GPipe: P + w + D + (m - 1) w, since all forward passes come first.
- 1F1B: P + 2 D + (m - a + 1) w: the stage waits for the first microbatch to be back before it goes on, and at the end
  for the last one.
- Split backward passes: only the forward half of P comes before, and weights' passes may be last.

Stages beside the path take m w. The least step that leaves room for all work is found by halving: how much work the
first stages can hold only grows with what those before them hold.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.objective import PipelineSchedule
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles

# Halvings of the interval of steps: to a billionth.
_HALVINGS = 40
# Below what rounding in long sums may add.
_MARGIN = 1 - 1e-8
# States "how many devices of each kind are used": with more of them, all devices count as the fastest kind.
_MAX_STATES = 100

_SPLIT = (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZERO_BUBBLE_H2, PipelineSchedule.BEST)


def fill_bound(problem: PartitionProblem, bundles: Bundles, busiest_seconds: float, num_stages: int = 0) -> float:
    """`busiest_seconds`: some stage of any assignment computes as long for each microbatch, or longer.

    `num_stages` 0: any number. O(reads + nodes + devices x devices x states).
    """
    work = float(problem.work_seconds.min(axis=0).sum())
    path, holds_all = _trained_path(problem, bundles)
    most, kinds = num_stages or min(problem.num_devices, bundles.count), _kinds(problem)
    # Where there is work beside the path, some of the stages may hold none of it.
    counts = [num_stages] if num_stages and holds_all else range(1, most + 1)
    others = 0 if holds_all else num_stages or problem.num_devices
    return _MARGIN * min(
        _Step(problem, work, path, count, max(0, others - count), not holds_all, busiest_seconds, kinds).least()
        for count in counts
    )


def _trained_path(problem: PartitionProblem, bundles: Bundles) -> tuple[float, bool]:
    """Seconds, forward and back, of a longest path of bundles over whose edges gradients come back.

    And whether all bundles are on it, so that every stage is.
    """
    fastest = np.bincount(bundles.bundle_of_node, problem.work_seconds.min(axis=0), bundles.count).tolist()
    maker = problem.value_producer[problem.read_value]
    carries = (maker >= 0) & (problem.value_gradient_bytes[problem.read_value] > 0)
    tails, heads = bundles.bundle_of_node[maker[carries]], bundles.bundle_of_node[problem.read_node[carries]]
    sources: list[set[int]] = [set() for _ in range(bundles.count)]
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        if tail != head:
            sources[head].add(tail)
    longest = [0.0] * bundles.count
    order = topological_order(bundles.before, bundles.after)
    for bundle in order:
        longest[bundle] = fastest[bundle] + max((longest[source] for source in sources[bundle]), default=0.0)
    return max(longest), all(tail in sources[head] for tail, head in pairwise(order))


class _Kinds(NamedTuple):
    """Of devices: the most work, in the fastest device's seconds, that each does in a second; how many there are."""

    speeds: tuple[float, ...]
    counts: tuple[int, ...]


def _kinds(problem: PartitionProblem) -> _Kinds:
    kinds, fastest = distinct_rows(problem.work_seconds), problem.work_seconds.min(axis=0)
    if kinds.counts.size == 1 or float(np.prod(kinds.counts + 1.0)) > _MAX_STATES:
        return _Kinds((1.0,), (problem.num_devices,))
    speeds = []
    for row in kinds.rows:
        takes = (row > 0) & np.isfinite(row)
        speeds.append(float((fastest[takes] / row[takes]).max()) if takes.any() else 1.0)
    return _Kinds(tuple(speeds), tuple(kinds.counts.tolist()))


class _Step:
    """With `count` stages that hold the path; where there is work `beside` it, so many `others` may take that."""

    def __init__(
        self,
        problem: PartitionProblem,
        work: float,
        path: float,
        count: int,
        others: int,
        beside: bool,
        busiest_seconds: float,
        kinds: _Kinds,
    ) -> None:
        assert problem.training is not None
        self._training, self._microbatches = problem.training, problem.training.microbatches
        self._work, self._path, self._count, self._beside = work, path, count, beside
        self._busiest, self._kinds = busiest_seconds, kinds
        # Of any node's work; of a node without a backward pass it is more.
        self._forward_share = 1 / (1 + float(problem.least_backward_ratio.max()))
        self._others = others

    def least(self) -> float:
        low, high = 0.0, self._microbatches * self._work * 3
        if not self._is_enough(high):
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_enough(middle) else (middle, high)
        return max(low, self._with_busiest())

    def _is_enough(self, step: float) -> bool:
        """Whether all work may fit into a step of so many seconds."""
        on_path = max(self._path, self._work - self._others * step / self._microbatches)
        reached = {(0,) * len(self._kinds.counts): 0.0}
        for place in range(self._count):
            further: dict[tuple[int, ...], float] = {}
            for used, before in reached.items():
                for kind, speed in enumerate(self._kinds.speeds):
                    if used[kind] < self._kinds.counts[kind]:
                        now = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                        most = before + self._most(step, place, before, on_path, speed)
                        further[now] = max(further.get(now, 0.0), most)
            reached = further
        return max(reached.values(), default=0.0) >= on_path

    def _most(self, step: float, place: int, before: float, on_path: float, speed: float) -> float:
        """Work, in the fastest device's seconds, that a stage may hold behind `before`."""
        m, schedule = self._microbatches, self._training.schedule
        if schedule in _SPLIT:
            return max(0.0, speed * (step - before * self._forward_share) / m)
        most = speed * (step - before) / m
        if schedule is PipelineSchedule.GPIPE:
            if m > 1:
                most = min(most, speed * (step - on_path) / (m - 1))
        elif m > self._ahead(place):
            turns = (m - self._ahead(place) + 1) / speed - 2
            if turns > 0:
                most = min(most, (step - 2 * on_path + before) / turns)
        return max(0.0, most)

    def _ahead(self, place: int) -> int:
        """At most how many microbatches a stage runs forward before the first comes back."""
        return self._count + self._others - place

    def _with_busiest(self) -> float:
        """The least step in which some stage, at any place, computes as long as the busiest has to."""
        least, schedule = self._microbatches * self._busiest, self._training.schedule
        if self._beside or schedule in _SPLIT:
            return least
        if schedule is PipelineSchedule.GPIPE:
            return max(least, self._work + (self._microbatches - 1) * self._busiest)
        return max(least, min(self._with_busiest_at(place) for place in range(self._count)))

    def _with_busiest_at(self, place: int) -> float:
        """With the work before it that suits best: P + m w grows with that, P + 2 D + (m - a + 1) w falls."""
        m, ahead = self._microbatches, self._ahead(place)
        if m <= ahead:
            return 0.0
        falling = 2 * self._work + (m - ahead - 1) * self._busiest
        before = min(max(0.0, (falling - m * self._busiest) / 2), self._work) if place else 0.0
        return max(before + m * self._busiest, falling - before)
