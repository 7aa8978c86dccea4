"""The least bottleneck over the program order: a dynamic programme over starts of segments and devices used.

best[state, p] = the least, over the step taken and the end q of the segment that starts at p, of
max(load of [p, q), best[next state, q]), or their sum. Exact over the given positions for loads that depend on a
segment and its neighbours' devices. Positions that no solution below `limit` can pass through are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.partition.ordered.positions import LIMIT_MARGIN, furthest_end
from planner.partition.ordered.segments import SegmentRow, Segments
from planner.partition.ordered.state_space import StateSpace
from planner.partition.problem import Floats, Integers, PartitionProblem

Load = Callable[[SegmentRow, Integers], Floats]
Combine = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """`best` is [states, positions]. Without a solution `value` is inf, `boundaries` and `steps` are empty."""

    value: float
    boundaries: tuple[int, ...]
    steps: tuple[int, ...]
    positions: Integers
    best: Floats


def search(
    problem: PartitionProblem,
    segments: Segments,
    space: StateSpace,
    load: Load,
    step_device: Integers,
    positions: Integers,
    limit: float = np.inf,
    combine: Combine = np.maximum,
) -> Solution:
    """`positions` ascend from 0 to n. `step_device`: a device like each step's. Only values below `limit` count,
    which is in seconds. `combine`: a segment's load with the rest's value, np.maximum or np.add.

    O(starts x (row + steps x ends)) where starts and ends are the positions within reach.
    """
    programme = _Programme(problem, space, step_device, positions, limit, combine)
    for index in range(positions.size - 2, -1, -1):
        programme.visit(index, segments, load)
    return programme.solution()


def reach(
    problem: PartitionProblem, space: StateSpace, step_device: Integers, limit: float
) -> tuple[Integers, Integers]:
    """By state: the first position that the rest can cover, and the last that can be reached, by compute alone."""
    n = problem.num_nodes
    first, last = np.full(space.num_states, n, dtype=np.int64), np.full(space.num_states, -1, dtype=np.int64)
    last[space.starts] = 0
    slack = limit * (1 + LIMIT_MARGIN)
    layers = _layers(space)
    for steps in layers:
        for device in np.unique(step_device[steps]):
            mine = steps[(step_device[steps] == device) & (last[space.source[steps]] >= 0)]
            before = problem.compute_before[device]
            at = before[last[space.source[mine]]] + slack
            np.maximum.at(last, space.target[mine], np.searchsorted(before, at, side="right") - 1)
    unreachable = np.ones(space.num_states, dtype=np.bool_)
    unreachable[space.final] = False
    for steps in reversed(layers):
        for device in np.unique(step_device[steps]):
            mine = steps[(step_device[steps] == device) & ~unreachable[space.target[steps]]]
            before = problem.compute_before[device]
            at = before[first[space.target[mine]]] - slack
            np.minimum.at(first, space.source[mine], np.searchsorted(before, at, side="left"))
            unreachable[space.source[mine]] = False
    first[unreachable] = n + 1
    return first, last


def _layers(space: StateSpace) -> list[Integers]:
    depth = space.depth[space.source]
    order = np.argsort(depth, kind="stable")
    return [layer for layer in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if layer.size]


class _Programme:
    def __init__(
        self,
        problem: PartitionProblem,
        space: StateSpace,
        step_device: Integers,
        positions: Integers,
        limit: float,
        combine: Combine,
    ) -> None:
        self._problem = problem
        self._space = space
        self._positions = positions
        self._limit = limit
        self._combine = combine
        self._furthest_end = furthest_end(problem, limit)[positions]
        self._best = np.full((space.num_states, positions.size), np.inf)
        self._best[space.final, -1] = 0.0
        self._chosen_step = np.full((space.num_states, positions.size), -1, dtype=np.int32)
        self._chosen_end = np.full((space.num_states, positions.size), -1, dtype=np.int32)
        self._first, self._last = reach(problem, space, step_device, limit)
        # Steps of one label to one state differ only in where they come from.
        ways, self._way_of_step = np.unique(space.label * space.num_states + space.target, return_inverse=True)
        self._way_label, self._way_target = np.divmod(ways, space.num_states)

    def visit(self, index: int, segments: Segments, load: Load) -> None:
        space, start = self._space, int(self._positions[index])
        source, target = space.source, space.target
        active = (self._first[source] <= start) & (start <= self._last[source])
        active &= (self._last[target] > start) & (self._first[target] <= self._problem.num_nodes)
        steps = np.flatnonzero(active)
        if not steps.size:
            return
        low, high = self._window(index, steps)
        if low >= high:
            return
        ends = self._positions[low:high]
        loads = load(segments.row(start, int(ends[-1])), ends)
        within = np.flatnonzero(np.isfinite(loads).any(axis=0))
        if not within.size:
            return
        loads, high = loads[:, : within[-1] + 1], low + int(within[-1]) + 1
        is_taken = np.zeros(self._way_label.size, dtype=np.bool_)
        is_taken[self._way_of_step[steps]] = True
        values = self._combine(loads[self._way_label[is_taken]], self._best[self._way_target[is_taken], low:high])
        way = (np.cumsum(is_taken) - 1)[self._way_of_step[steps]]
        least_end = values.argmin(axis=1)
        least, least_end = values[np.arange(least_end.size), least_end][way], least_end[way]
        # Written from the worst to the best, so that the best of each state stays; the first step wins a tie.
        order = np.lexsort((-steps, -least))
        order = order[least[order] < self._limit]
        states = source[steps[order]]
        self._best[states, index] = least[order]
        self._chosen_step[states, index] = steps[order]
        self._chosen_end[states, index] = low + least_end[order]

    def _window(self, index: int, steps: Integers) -> tuple[int, int]:
        """Indexes of the ends that some active step may have."""
        targets = self._space.target[steps]
        furthest = min(int(self._last[targets].max()), int(self._furthest_end[index]))
        low = int(np.searchsorted(self._positions, int(self._first[targets].min())))
        high = int(np.searchsorted(self._positions, furthest, side="right"))
        return max(low, index + 1), high

    def solution(self) -> Solution:
        starts = self._space.starts
        state = int(starts[np.argmin(self._best[starts, 0])])
        value = float(self._best[state, 0])
        boundaries, steps = [0], list[int]()
        index = 0
        while np.isfinite(value) and index < self._positions.size - 1:
            step = int(self._chosen_step[state, index])
            index = int(self._chosen_end[state, index])
            boundaries.append(int(self._positions[index]))
            steps.append(step)
            state = int(self._space.target[step])
        return Solution(
            value=value,
            boundaries=tuple(boundaries) if steps else (),
            steps=tuple(steps),
            positions=self._positions,
            best=self._best,
        )
