"""The least largest load over all walks through devices: by trial, which positions can be reached within a limit.

For a limit, the positions at which each state of a walk can stand are a set of bits, and a state is a node of the walk
with so many units used. The value is found by bisection over the loads that segments have, so that it is one of them,
and nothing below it is possible. What the unused devices can do at best bounds where a state is of use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.partition.ordered.device_walks import NOTHING, DeviceWalks
from planner.partition.ordered.hosts import Composition
from planner.partition.ordered.segment_loads import StageLinks
from planner.partition.problem import Floats, Integers

Words = npt.NDArray[np.uint64]

# Values this close to what is not excluded are as good to begin with: half of the bisection is spared.
_NEAR = 1e-3
# Words of 64 positions that one trial's states may take: 200 MB.
MAX_WORDS = 25_000_000
UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WalkLoads:
    """`loads` [labels, segments], inf where a segment does not fit. Segments from `starts` to `ends`, which are indexes
    of positions, ascend by start, then by end.

    `kind_of_label` [labels]; `offset` [stages before it] is what a stage's place adds to its label's index.
    """

    index_of_label: dict[StageLinks, int]
    num_positions: int
    starts: Integers
    ends: Integers
    loads: Floats
    kind_of_label: Integers
    offset: Integers

    def load(self, label: int, start: int, end: int) -> float:
        segment = np.searchsorted(self.starts * self.num_positions + self.ends, start * self.num_positions + end)
        return float(self.loads[label, segment])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """`value`: nothing below it is possible; the limit if nothing below that is, and then `boundaries` are empty.

    `boundaries` by index of position. `devices` also are empty where the walk's devices are nowhere together. Unless
    it `is_least`, steps were spent before all limits were tried, and the walk may be above the value or be none.
    """

    value: float
    is_least: bool = True
    boundaries: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()


class WalkArrays(NamedTuple):
    """`capacity` of each unit and its `stride` in a base, the number that says how many of each are used. Walks start
    at `start_node` with `start_unit` used. A node's edges stand from its `edge_first` to the next; one to NOTHING only
    ends. `label_offset` [stages so far] is of the stage's labels. Where a node stands, the later ones of its `row`
    [node] need not: what they can do, it can. NOTHING: no row."""

    capacity: Integers
    stride: Integers
    start_unit: Integers
    start_node: Integers
    edge_first: Integers
    edge_unit: Integers
    edge_node: Integers
    edge_label: Integers
    label_offset: Integers
    row: Integers


class _Stage(NamedTuple):
    unit: int
    node: int
    start: int
    label: int


def num_words(walks: DeviceWalks, num_positions: int) -> float:
    return walks.num_states * -(-num_positions // 64)


def least_over_walks(
    walks: DeviceWalks,
    table: WalkLoads,
    *,
    least: float = 0.0,
    limit: float = np.inf,
    num_stages: int = 0,
    max_steps: int = UNBOUNDED,
) -> Walk:
    """Of values below `limit`; `least`: nothing below it is possible, for another reason, and less is not looked for.
    O(trials x words x edges of a node): `max_steps` counts words."""
    trials = _Trials(walks, table, num_stages, max_steps)
    candidates = np.unique(table.loads[trials.labels])
    candidates = candidates[(candidates < limit) & np.isfinite(candidates)]
    # With the last one up to `least`: a walk within that says nothing about what is between it and the next.
    candidates = candidates[max(0, int(np.searchsorted(candidates, least, side="right")) - 1) :]
    low, high = _first_possible(trials, candidates), int(candidates.size)
    best: list[_Stage] = []
    # From below, in growing steps: a trial far above the least value has many more states than one beside it.
    step = max(1, candidates.size >> 12)
    while low < high:
        middle = min((low + high) // 2, low + step)
        stages = trials.stages(float(candidates[middle]))
        if trials.are_given_up:
            break
        if stages:
            best, high = stages, min(middle, int(np.searchsorted(candidates, trials.value(stages))))
        else:
            low, step = middle + 1, 4 * step
    is_least = not trials.are_given_up
    value = float(candidates[low]) if low < candidates.size else limit
    if not best:
        return Walk(value=value, is_least=is_least)
    return Walk(
        value=value,
        is_least=is_least,
        boundaries=(*(stage.start for stage in best), trials.num_positions - 1),
        devices=walks.devices_of([(stage.unit, stage.node) for stage in best]) or (),
    )


def _first_possible(trials: _Trials, candidates: Floats) -> int:
    """Index of a value that what devices can do at best does not exclude, or of one just below."""
    low, high = 0, int(candidates.size)
    while low < high and candidates[high - 1] > candidates[low] * (1 + _NEAR):
        middle = (low + high) // 2
        low, high = (low, middle) if trials.may_be_possible(float(candidates[middle])) else (middle + 1, high)
    return low


class _Trials:
    """One limit after another. `labels`: those that some stage of a walk may have."""

    def __init__(self, walks: DeviceWalks, table: WalkLoads, num_stages: int, max_steps: int) -> None:
        self._walks, self._table, self._num_stages = walks, table, num_stages
        self._steps_left, self.are_given_up = np.array([max_steps], dtype=np.int64), False
        self.num_positions = table.num_positions
        capacity = np.array(walks.capacity, dtype=np.int64)
        start_unit, start_node = np.array(walks.starts, dtype=np.int64).reshape(-1, 2).T.copy()
        nodes = np.array([edge.node for edge in walks.edges], dtype=np.int64)
        # By units used: where nodes are stages, the one at the node is among them.
        before = np.arange(int(capacity.sum()) + 2) - bool(walks.behind)
        self._arrays = WalkArrays(
            capacity=capacity,
            stride=np.concatenate([np.ones(1, dtype=np.int64), np.cumprod(capacity + 1)[:-1]]),
            start_unit=start_unit,
            start_node=start_node,
            edge_first=np.searchsorted(nodes, np.arange(walks.num_nodes + 1)),
            edge_unit=np.array([edge.unit for edge in walks.edges], dtype=np.int64),
            edge_node=np.array([edge.next_node for edge in walks.edges], dtype=np.int64),
            edge_label=np.array([table.index_of_label[edge.label] for edge in walks.edges], dtype=np.int64),
            label_offset=table.offset[
                np.clip(before, 0, table.offset.size - 1) if walks.counts_devices else before * 0
            ],
            row=np.array(walks.row or [NOTHING] * walks.num_nodes, dtype=np.int64),
        )
        self.labels = np.unique(self._arrays.edge_label[:, None] + self._arrays.label_offset)

    def may_be_possible(self, limit: float) -> bool:
        return bool(self._rest(limit)[1][0] == 0)

    def stages(self, limit: float) -> list[_Stage]:
        """A walk whose loads are all within the limit; nothing if there is none, or steps are spent."""
        from planner.partition.ordered.reach_kernel import GIVEN_UP, reach, step_back

        ends, rest, back = self._rest(limit)
        if rest[0] > 0:
            return []
        reached = np.zeros((rest.size, self._walks.num_nodes, ends.shape[2]), dtype=np.uint64)
        at = reach(self._arrays, self._num_stages, ends, rest, back, reached, self._steps_left)
        if at[0] == GIVEN_UP:
            self.are_given_up = True
            return []
        steps = []
        while at[0] != NOTHING:
            steps.append(at)
            base, node, start, _ = at
            at = step_back(self._arrays, base, node, start, ends, reached) if start > 0 else (NOTHING,) * 4
        return self._as_stages(steps[::-1])

    def _as_stages(self, steps: list[tuple[int, int, int, int]]) -> list[_Stage]:
        stages, (capacity, stride) = [], self._arrays[:2]
        # Of the node that a walk stands at, where nodes are stages.
        unit_of_node = int(np.flatnonzero(stride == steps[0][0])[-1]) if self._walks.behind and steps else NOTHING
        for base, node, start, edge in steps:
            unit, is_aside = int(self._arrays.edge_unit[edge]), self._walks.edges[edge].label.is_aside
            used = int((base // stride % (capacity + 1)).sum())
            label = int(self._arrays.edge_label[edge] + self._arrays.label_offset[used])
            if is_aside:
                stages.append(_Stage(unit, NOTHING, start, label))
            else:
                stages.append(_Stage(unit_of_node if self._walks.behind else unit, node, start, label))
                unit_of_node = unit
        return stages

    def _with_one_more(self, rest: Integers) -> Integers:
        """`rest` by units used, if one of the used, whichever it is, were unused yet."""
        bases, more = np.arange(rest.size), rest.copy()
        for capacity, stride in zip(*map(np.ndarray.tolist, self._arrays[:2]), strict=True):
            used = bases[bases // stride % (capacity + 1) > 0]
            more[used] = np.minimum(more[used], rest[used - stride])
        return more

    def value(self, stages: list[_Stage]) -> float:
        ends = [*(stage.start for stage in stages[1:]), self.num_positions - 1]
        return max(self._table.load(stage.label, stage.start, end) for stage, end in zip(stages, ends, strict=True))

    def _rest(self, limit: float) -> tuple[Words, Integers, Integers]:
        """Ends within the limit; by units used and by node, how early what follows may begin: see the kernel."""
        from planner.partition.ordered.reach_kernel import first_of_rest, stages_within

        table = self._table
        ends, earliest = stages_within(table.loads, table.starts, table.ends, limit, self.num_positions)
        backs = Backs(table.kind_of_label, earliest)
        unit_back = np.array([backs.of(devices) for devices in self._walks.unit_devices])
        back = [backs.of_kind[behind.kind][backs.of(behind.rest)] for behind in self._walks.behind]
        rest = first_of_rest(*self._arrays[:2], unit_back, self.num_positions - 1)
        if any(edge.label.is_aside for edge in self._walks.edges):
            # A stage aside may run before the node's own: which of the unused and the node's comes first is open.
            rest, back = self._with_one_more(rest), [np.arange(self.num_positions)] * self._walks.num_nodes
        return ends, rest, np.array(back or [np.arange(self.num_positions)])


class Backs:
    """By position: the first from which devices, in the best order, may lead to it or beyond."""

    def __init__(self, kind_of_label: Integers, earliest: Integers) -> None:
        positions = np.arange(earliest.shape[1])
        self.of_kind = [
            np.minimum(positions, np.minimum.accumulate(earliest[kind_of_label == kind].min(axis=0)[::-1])[::-1])
            for kind in range(int(kind_of_label.max()) + 1)
        ]
        self._of = {(0,) * len(self.of_kind): positions}

    def of(self, devices: Composition) -> Integers:
        if devices not in self._of:
            back = np.arange(self.of_kind[0].size)
            for kind, count in enumerate(devices):
                if count:
                    fewer = (*devices[:kind], count - 1, *devices[kind + 1 :])
                    back = np.minimum(back, self.of_kind[kind][self.of(fewer)])
            self._of[devices] = back
        return self._of[devices]
