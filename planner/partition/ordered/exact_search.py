"""Depth-first branch and bound over the program order, for direct routing over unequal links.

There a stage's load depends on which devices take every other stage that it sends to: the dynamic programme only bounds
it. Here each partial solution is a layout whose last stage is the rest of the program on an unknown device, and the
programme's table bounds that rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.partition.ordered.program_pass import OrderedPass
from planner.partition.ordered.search import Solution
from planner.partition.ordered.segments import SegmentRow
from planner.partition.traffic import UNKNOWN, communication_seconds, traffic

# Below this relative gain a solution is as good as the one in hand.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLayout:
    """The best below the limit, if any. `complete`: nothing better exists."""

    boundaries: tuple[int, ...]
    steps: tuple[int, ...]
    complete: bool


def branch_and_bound(shared: OrderedPass, bound: Solution, limit: float, max_trials: int) -> BestLayout:
    """`bound` is the dynamic programme's solution; `limit` the value in hand. Deterministic."""
    search = _Search(shared, bound, limit, max_trials)
    for state in shared.space.starts.tolist():
        search.expand(state, 0, _Partial((0,), (), 0.0))
    return BestLayout(boundaries=search.boundaries, steps=search.steps, complete=search.trials_left > 0)


@dataclass(frozen=True, slots=True)
class _Partial:
    """`bottleneck_seconds` bounds every layout that begins like this; it is exact once the program is covered."""

    boundaries: tuple[int, ...]
    steps: tuple[int, ...]
    bottleneck_seconds: float


class _Search:
    def __init__(self, shared: OrderedPass, bound: Solution, limit: float, max_trials: int) -> None:
        self._shared, self._bound = shared, bound
        self._steps_from = [np.flatnonzero(shared.space.source == state) for state in range(shared.space.num_states)]
        self._rows: dict[int, SegmentRow] = {}
        self._value = limit
        self.trials_left = max_trials
        self.boundaries: tuple[int, ...] = ()
        self.steps: tuple[int, ...] = ()

    def expand(self, state: int, index: int, partial: _Partial) -> None:
        """Tries every step and end from one position, the most promising first."""
        positions, space = self._bound.positions, self._shared.space
        if index == positions.size - 1:
            if state in space.final and partial.bottleneck_seconds < self._threshold:
                self._value = partial.bottleneck_seconds
                self.boundaries, self.steps = partial.boundaries, partial.steps
            return
        for step, end in self._candidates(state, index):
            if self.trials_left <= 0:
                return
            self.trials_left -= 1
            target = int(space.target[step])
            if self._bound.best[target, end] >= self._threshold:
                continue
            longer = self._with_stage(partial, int(positions[end]), step)
            if longer.bottleneck_seconds < self._threshold:
                self.expand(target, end, longer)

    @property
    def _threshold(self) -> float:
        return self._value * (1 - NEGLIGIBLE)

    def _candidates(self, state: int, index: int) -> Iterator[tuple[int, int]]:
        """(step, index of the end), by their bound."""
        steps, shared = self._steps_from[state], self._shared
        if not steps.size:
            return
        positions = self._bound.positions
        start = int(positions[index])
        if start not in self._rows:
            self._rows[start] = shared.segments.row(start, shared.problem.num_nodes)
        loads = shared.loads.seconds(self._rows[start], positions[index + 1 :])
        rest = self._bound.best[shared.space.target[steps], index + 1 :]
        bounds = np.maximum(loads[shared.space.label[steps]], rest)
        step_of_pair, ends = np.nonzero(bounds < self._threshold)
        for at in np.argsort(bounds[step_of_pair, ends], kind="stable"):
            yield int(steps[step_of_pair[at]]), index + 1 + int(ends[at])

    def _with_stage(self, partial: _Partial, end: int, step: int) -> _Partial:
        problem = self._shared.problem
        boundaries, steps = (*partial.boundaries, end), (*partial.steps, step)
        devices = np.array([*self._shared.devices_of(steps), UNKNOWN])
        starts, ends = np.array(boundaries[:-1]), np.array(boundaries[1:])
        # Once the program is covered, the rest is an empty stage, and the caller's tensors go to the last real one.
        num_stages = len(steps) + (end < problem.num_nodes)
        stage_of_node = np.searchsorted(ends, np.arange(problem.num_nodes), side="right")
        crossings = traffic(problem, stage_of_node, num_stages).crossings
        own_devices = devices[:-1]
        loads = problem.segment_seconds(own_devices, starts, ends)
        loads += communication_seconds(problem, crossings, devices[:num_stages])[: own_devices.size]
        return _Partial(boundaries, steps, float(loads.max()))
