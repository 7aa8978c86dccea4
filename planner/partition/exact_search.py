"""Depth-first branch and bound over the program order, for loads that depend on more than neighbouring cuts.

A tensor that several stages read is sent to each of them, so a stage's load depends on every later cut: the dynamic
programme only bounds it. Here each partial solution carries its true loads, and the programme's table bounds the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.device_classes import DeviceClasses
from planner.partition.ordered_search import Solution
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.segment_loads import SegmentLoads, best_seconds_per_byte
from planner.partition.segments import SegmentRow, Segments
from planner.partition.state_space import StateSpace

# Below this relative gain a solution is as good as the one in hand.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best below the limit, if any. `complete`: nothing better exists."""

    value: float
    boundaries: tuple[int, ...]
    classes: tuple[int, ...]
    complete: bool


def branch_and_bound(
    problem: PartitionProblem,
    classes: DeviceClasses,
    segments: Segments,
    space: StateSpace,
    loads: SegmentLoads,
    bound: Solution,
    limit: float,
    max_trials: int,
) -> Found:
    """`bound` is the dynamic programme's solution under `loads`; `limit` the value in hand. Deterministic."""
    search = _Search(problem, classes, segments, space, loads, bound, limit, max_trials)
    for state in space.starts.tolist():
        search.expand(state, 0, _Partial((0,), (), ()))
    return Found(
        value=search.value, boundaries=search.boundaries, classes=search.classes, complete=search.trials_left > 0
    )


@dataclass(frozen=True, slots=True)
class _Partial:
    boundaries: tuple[int, ...]
    classes: tuple[int, ...]
    loads: tuple[float, ...]


class _Search:
    def __init__(
        self,
        problem: PartitionProblem,
        classes: DeviceClasses,
        segments: Segments,
        space: StateSpace,
        loads: SegmentLoads,
        bound: Solution,
        limit: float,
        max_trials: int,
    ) -> None:
        self._problem, self._classes, self._segments = problem, classes, segments
        self._space, self._loads, self._bound = space, loads, bound
        self._arrivals = _Arrivals(problem)
        self._best_out = best_seconds_per_byte(problem, into=False)
        self._steps = [np.flatnonzero(space.source == state) for state in range(space.num_states)]
        self._rows: dict[int, SegmentRow] = {}
        self.trials_left = max_trials
        self.value = limit
        self.boundaries: tuple[int, ...] = ()
        self.classes: tuple[int, ...] = ()

    def expand(self, state: int, index: int, partial: _Partial) -> None:
        """Tries every step and end from one position, the most promising first."""
        positions = self._bound.positions
        if index == positions.size - 1:
            if state in self._space.final and max(partial.loads) < self._threshold:
                self.value, self.boundaries, self.classes = max(partial.loads), partial.boundaries, partial.classes
            return
        for step, end in self._candidates(state, index):
            if self.trials_left <= 0:
                return
            self.trials_left -= 1
            target = int(self._space.target[step])
            if self._bound.best[target, end] >= self._threshold:
                continue
            own = self._space.labels[self._space.label[step]][1]
            longer = self._with_stage(partial, int(positions[end]), own)
            if self._least_load(longer) < self._threshold:
                self.expand(target, end, longer)

    @property
    def _threshold(self) -> float:
        return self.value * (1 - NEGLIGIBLE)

    def _candidates(self, state: int, index: int) -> Iterator[tuple[int, int]]:
        """(step, index of the end), by their bound."""
        steps = self._steps[state]
        if not steps.size:
            return
        positions = self._bound.positions
        start = int(positions[index])
        if start not in self._rows:
            self._rows[start] = self._segments.row(start, self._problem.num_nodes)
        loads = self._loads.seconds(self._rows[start], positions[index + 1 :])
        bounds = np.maximum(loads[self._space.label[steps]], self._bound.best[self._space.target[steps], index + 1 :])
        chosen, ends = np.nonzero(bounds < self._threshold)
        order = np.argsort(bounds[chosen, ends], kind="stable")
        for at in order:
            yield int(steps[chosen[at]]), index + 1 + int(ends[at])

    def _with_stage(self, partial: _Partial, end: int, own: int) -> _Partial:
        """Adds a stage, and what its edges from the stages before it cost at both ends."""
        start, stage = partial.boundaries[-1], len(partial.classes)
        device = self._classes.representatives[own]
        before = self._problem.compute_before[device]
        loads = [*partial.loads, float(before[end] - before[start])]
        for source, size in self._arrivals.bytes_by_stage(partial.boundaries, end).items():
            other = partial.classes[source]
            seconds = self._classes.latency_seconds[other, own] + size * self._classes.seconds_per_byte[other, own]
            loads[source] += float(seconds)
            loads[stage] += float(seconds)
        return _Partial((*partial.boundaries, end), (*partial.classes, own), tuple(loads))

    def _least_load(self, partial: _Partial) -> float:
        """Of the most loaded stage so far, with one more send of whatever a later stage still needs from it."""
        loads = list(partial.loads)
        for source, size in self._arrivals.pending_by_stage(partial.boundaries):
            device = self._classes.representatives[partial.classes[source]]
            loads[source] += self._classes.best_latency_seconds + size * float(self._best_out[device])
        return max(loads)


class _Arrivals:
    """What a segment is sent, and by which of the segments before it."""

    def __init__(self, problem: PartitionProblem) -> None:
        self._problem = problem
        self._last: Integers = problem.value_last_read
        returned = np.flatnonzero(problem.value_returned)
        nodes = np.concatenate([problem.read_node, np.full(returned.size, problem.num_nodes - 1)])
        values = np.concatenate([problem.read_value, returned])
        order = np.argsort(nodes, kind="stable")
        self._values = values[order]
        self._offsets = np.searchsorted(nodes[order], np.arange(problem.num_nodes + 1))

    def pending_by_stage(self, boundaries: Sequence[int]) -> list[tuple[int, float]]:
        """(stage, bytes) of what stages behind the last boundary still need from each that has to send it."""
        end, producer = boundaries[-1], self._problem.value_producer
        live = np.flatnonzero((producer < end) & (self._last >= end))
        if end == self._problem.num_nodes or not live.size:
            return []
        sizes = self._problem.value_bytes[live].astype(np.float64)
        if self._problem.relay:
            return [(len(boundaries) - 2, float(sizes.sum()))]
        sources = np.maximum(np.searchsorted(boundaries, producer[live], side="right") - 1, 0)
        sums, counts = np.bincount(sources, weights=sizes), np.bincount(sources)
        return [(int(source), float(sums[source])) for source in np.flatnonzero(counts)]

    def bytes_by_stage(self, boundaries: Sequence[int], end: int) -> dict[int, int]:
        """By sending stage, for the segment from the last boundary to `end`."""
        start, producer, sizes = boundaries[-1], self._problem.value_producer, self._problem.value_bytes
        if start == 0:
            return {}
        if self._problem.relay:
            crossing = (producer < start) & (self._last >= start)
            return {len(boundaries) - 2: int(sizes[crossing].sum())} if crossing.any() else {}
        values = np.unique(self._values[self._offsets[start] : self._offsets[end]])
        by_stage: dict[int, int] = {}
        for value in values[producer[values] < start].tolist():
            source = max(0, bisect_right(boundaries, int(producer[value])) - 1)
            by_stage[source] = by_stage.get(source, 0) + int(sizes[value])
        return by_stage
