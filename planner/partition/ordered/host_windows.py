"""Segments of one order on hosts of many devices, with what each stage exchanges over the very links that it takes.

Each host runs a window of the order: what comes from before the window or goes behind it takes a link between hosts,
all else the host's own. With both ends of a window known a stage's seconds follow from its own two ends, whatever the
program. So windows are tried in a programme over positions and devices of the host, and which host takes which window
in one over positions and hosts. Exact for plans that enter a host once, where links between hosts are alike; a host
may also be entered by parts, which then count as hosts of their own. And one host may run both ends of the order, with
windows of others between: so what skips the middle of a U-Net stays on its host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.hosts import Hosts, hosts_of
from planner.partition.ordered.positions import allowed_positions, few_positions, near_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem

# Positions: two tables of their cube, 57 MB each. The first round has some for each stage: with two for each of 32
# devices, plans of the benchmark's nets are up to 12 % worse than with four. The second is over those near its cuts.
_MAX_POSITIONS, _POSITIONS_PER_DEVICE = 192, 4
# How far above the limit the first round may end for a second one.
_COARSE_ABOVE = 1.03
# How many devices of each kind a host has in use, 25 for two kinds of four; how many hosts of each group are in use.
_MAX_STATES, _MAX_HOST_STATES = 256, 2_000
# How many times a host may be entered, in turn.
_PARTS = (1, 2)
# Bisection ends where the value is known to such a share: less than a cut that moves by one node changes.
_ENOUGH = 2e-4

Layout = tuple[tuple[int, ...], tuple[int, ...]]
# (index of its first position, host, kind)
_Stage = tuple[int, int, int]


def over_windows(problem: PartitionProblem, limit: float = np.inf, *, both_ends: bool = True) -> list[Layout]:
    """Ever better (boundaries, devices), the last with a bottleneck of less than `limit`; none where there is none.

    Not for relayed tensors, nor on a single host.
    """
    hosts, allowed = hosts_of(problem), allowed_positions(problem)
    if hosts.count == 1:
        return []
    count = min(_MAX_POSITIONS, max(_POSITIONS_PER_DEVICE * problem.num_devices, _MAX_POSITIONS // 3))
    positions, high = few_positions(problem, count), limit * _COARSE_ABOVE
    found: list[Layout] = []
    for _ in range(2):
        better = None
        for trials in _all_trials(problem, hosts, positions, both_ends=both_ends):
            layout = _least(problem, trials, high)
            if layout is not None:
                better, high = layout, evaluate_layout(problem, *layout).bottleneck_seconds
        if better is None:
            break
        found.append(better)
        if positions.size == allowed.size:
            break
        few = allowed.size > _MAX_POSITIONS
        positions = near_positions(allowed, better[0], _MAX_POSITIONS) if few else allowed
    return found if high < limit else []


def _all_trials(problem: PartitionProblem, hosts: Hosts, positions: Integers, *, both_ends: bool) -> Iterator[_Windows]:
    groups = hosts.groups()
    counts = np.array([hosts.composition(group[0]) for group in groups], dtype=np.int64)
    tables = None
    for parts in _PARTS:
        num_hosts = np.array([len(group) * parts for group in groups], dtype=np.int64)
        few = (counts // parts + 1.0).prod(axis=1).max() <= _MAX_STATES and (num_hosts + 1.0).prod() <= _MAX_HOST_STATES
        if not few or (counts % parts).any():
            continue
        tables = tables or _tables(problem, hosts, groups, positions)
        yield _Windows(tables, counts // parts, num_hosts, parts)
        if both_ends and parts == 1 and much_skips_the_middle(problem, positions):
            around = [_WindowsBetween(problem, tables, counts, num_hosts, group) for group in range(len(groups))]
            # The quickest host first: the others then only have to be shown to be no better.
            yield from sorted(around, key=lambda one: one.host_seconds)


def _least(problem: PartitionProblem, trials: _Windows, high: float) -> Layout | None:
    best, limit, low = None, high, 0.0
    while high > low * (1 + _ENOUGH) or best is None:
        layout = trials.layout(limit)
        if layout is not None:
            best, high = layout, min(limit, evaluate_layout(problem, *layout).bottleneck_seconds)
        elif best is None:
            break
        else:
            low = limit
        limit = (low * high) ** 0.5 if low else high / 2
    return best


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tables:
    """`given`, `sent`: see `_far_bytes`; `loads`, `links`: see `_loads`."""

    hosts: Hosts
    groups: tuple[tuple[int, ...], ...]
    positions: Integers
    reads: _Reads
    given: Floats
    sent: Floats
    loads: Floats
    links: Floats


class _Windows:
    """Each host, or part of one, runs a window. `counts` [groups, kinds] devices of one, `num_hosts` [groups]."""

    def __init__(self, tables: _Tables, counts: Integers, num_hosts: Integers, parts: int) -> None:
        self._tables, self._size, self._parts = tables, tables.positions.size, parts
        self._loads, self._links = tables.loads, tables.links
        self._counts, self._num_hosts = counts, num_hosts
        self._num_states = int((counts + 1).prod(axis=1).max())

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.windows_kernel import NOT_REACHED, furthest_ends, host_into

        # What does not fit is infinite, and never within the limit.
        size, limit = self._size, min(limit, np.finfo(np.float64).max)
        furthest = furthest_ends(self._loads, limit)
        stage_into, covered, into = self._blank()
        state = host_into(
            self._loads,
            self._tables.given,
            self._tables.sent,
            self._links,
            self._counts,
            self._num_hosts,
            furthest,
            limit,
            stage_into,
            covered,
            into,
        )
        if state == NOT_REACHED:
            return None
        return self._as_layout(self._windows(into, state, 0, size - 1, furthest, limit))

    def _blank(self) -> tuple[Integers, Integers, Integers]:
        """What the kernel fills: `stage_into`, `covered` and `into`."""
        from planner.partition.ordered.windows_kernel import NOT_TRIED

        size = self._size
        return (
            np.empty((self._num_states, size), dtype=np.int64),
            np.full((len(self._tables.groups), size, size), NOT_TRIED, dtype=np.int64),
            np.empty((int((self._num_hosts + 1).prod()), size), dtype=np.int64),
        )

    def _windows(
        self, into: Integers, state: int, start: int, end: int, furthest: Integers, limit: float
    ) -> list[_Stage]:
        """The stages of the hosts that have run all from `start` to `end`, in order."""
        from planner.partition.ordered.windows_kernel import cover, unit_backs

        size = self._size
        stage_into = np.empty((self._num_states, size), dtype=np.int64)
        host_stride = np.concatenate([[1], np.cumprod(self._num_hosts + 1)[:-1]])
        stages: list[_Stage] = []
        while end > start:
            group, first = divmod(int(into[state, end]), size)
            own = (
                self._loads[group],
                self._tables.given,
                self._tables.sent,
                self._links[group],
                self._counts[group],
                furthest[group],
            )
            used = cover(*own, unit_backs(furthest[group]), limit, first, end, stage_into)
            visit = int(state // host_stride[group] % (self._num_hosts[group] + 1)) - 1
            host = self._tables.groups[group][visit // self._parts]
            stages = [*self._stages(stage_into, used, group, host, first, end), *stages]
            state, end = state - int(host_stride[group]), first
        return stages

    def _stages(self, stage_into: Integers, used: int, group: int, host: int, start: int, end: int) -> list[_Stage]:
        stride = np.concatenate([[1], np.cumprod(self._counts[group] + 1)[:-1]])
        stages: list[_Stage] = []
        while end > start:
            kind, first = divmod(int(stage_into[used, end]), self._size)
            stages.append((first, host, kind))
            used, end = used - int(stride[kind]), first
        return stages[::-1]

    def _as_layout(self, stages: list[_Stage]) -> Layout:
        left = [[iter(members) for members in of_kind] for of_kind in self._tables.hosts.members]
        boundaries = [int(self._tables.positions[first]) for first, _, _ in stages]
        return (*boundaries, int(self._tables.positions[-1])), tuple(next(left[host][kind]) for _, host, kind in stages)


class _WindowsBetween(_Windows):
    """The last host of the group `around` runs both ends of the order, and others windows between them."""

    def __init__(
        self, problem: PartitionProblem, tables: _Tables, counts: Integers, num_hosts: Integers, around: int
    ) -> None:
        super().__init__(tables, counts, num_hosts - (np.arange(num_hosts.size) == around), 1)
        self._around = around
        share = np.zeros((self._size, self._size))
        for members in tables.hosts.members[tables.groups[around][0]]:
            if members:
                before = problem.compute_before[members[0]][tables.positions]
                share += len(members) / np.maximum(before[:, None] + before[-1] - before[None, :], 1e-300)
        # [middle, behind]: what both ends take by compute alone, all its devices as busy.
        self._least_seconds = 1 / share
        self.host_seconds = float(self._least_seconds[0, 0])

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.windows_kernel import NOT_REACHED, furthest_ends, hosts_between

        size, limit, around = self._size, min(limit, np.finfo(np.float64).max), self._around
        furthest = furthest_ends(self._loads, limit)
        stage_into, covered, into = self._blank()
        first, last, state, used = hosts_between(
            self._loads,
            self._tables.given,
            self._tables.sent,
            self._links,
            self._counts,
            self._num_hosts,
            around,
            self._least_seconds <= limit,
            *self._tables.reads,
            furthest,
            limit,
            stage_into,
            covered,
            into,
        )
        if state == NOT_REACHED:
            return None
        inside = self._windows(into, state, first, last, furthest, limit)
        # What ends at the first of the two stands at the last, where its host goes on.
        ends = self._stages(stage_into, used, around, self._tables.groups[around][-1], 0, size - 1)
        return self._as_layout(
            [*(stage for stage in ends if stage[0] < first), *inside, *(stage for stage in ends if stage[0] >= last)]
        )


def _tables(
    problem: PartitionProblem, hosts: Hosts, groups: tuple[tuple[int, ...], ...], positions: Integers
) -> _Tables:
    reads = _reads(problem, positions)
    given, sent = _far_bytes(reads, positions.size)
    loads, links = _loads(problem, hosts, groups, positions, given, sent)
    return _Tables(
        hosts=hosts,
        groups=groups,
        positions=positions,
        reads=reads,
        given=given,
        sent=sent,
        loads=loads,
        links=links,
    )


def _loads(
    problem: PartitionProblem,
    hosts: Hosts,
    groups: tuple[tuple[int, ...], ...],
    positions: Integers,
    given: Floats,
    sent: Floats,
) -> tuple[Floats, Floats]:
    """[group, kind, first, last] seconds over the host's own link; [group, 4] what links to elsewhere take more."""
    size = positions.size
    index = np.arange(size)
    received_bytes, sent_bytes = given[index[:, None], index, index[:, None]], sent[index[:, None], index, index]
    needed, segments = np.full((size, size), np.inf), Segments(problem)
    for first in range(size - 1):
        row = segments.row(int(positions[first]), int(positions[-1]))
        needed[first, first + 1 :] = row.peak_bytes[positions[first + 1 :] - positions[first] - 1]
    loads = np.full((len(groups), hosts.num_kinds, size, size), np.inf)
    links = np.zeros((len(groups), 4))
    for index_of_group, group in enumerate(groups):
        here = group[0]
        own = _costs(problem, hosts, [int(hosts.link[here, here])])
        elsewhere = _costs(problem, hosts, [int(link) for other, link in enumerate(hosts.link[here]) if other != here])
        links[index_of_group] = elsewhere - own
        for kind, members in enumerate(hosts.members[here]):
            if not members:
                continue
            device = members[0]
            seconds = problem.segment_seconds(np.array(device), positions[:, None], positions[None, :])
            seconds = seconds + own[0] * (received_bytes > 0) + own[1] * received_bytes
            seconds = seconds + own[2] * (sent_bytes > 0) + own[3] * sent_bytes
            fits = needed <= problem.device_memory_bytes[device]
            loads[index_of_group, kind] = np.where(fits, seconds, np.inf)
    return loads, links


def _costs(problem: PartitionProblem, hosts: Hosts, numbers: list[int]) -> Floats:
    """What a message and a byte take into a host, then out of it, over the slowest of these links."""
    costs = np.zeros(4)
    for number in numbers:
        ends = hosts.ends(number)
        if ends is not None:
            both = [matrix[way] for way in (ends[::-1], ends) for matrix in _matrices(problem)]
            costs = np.maximum(costs, both)
    if problem.training is not None:
        # Each tensor's gradient comes back: a message and its bytes the other way.
        costs = np.concatenate([[costs[0] + costs[2], max(costs[1], costs[3])] * 2])
    return costs


def _matrices(problem: PartitionProblem) -> tuple[Floats, Floats]:
    return problem.link_latency_seconds, problem.link_seconds_per_byte


def _far_bytes(reads: _Reads, size: int) -> tuple[Floats, Floats]:
    """[first, last, start] bytes that a stage reads of what is made before `start`; [first, last, end] bytes of what it
    makes that is read behind `end`; with their gradients. What the caller gives, the first stage sends; what it is
    returned, the last stage reads."""
    is_first, maker, reader, sizes = reads
    earlier = np.where(is_first, -1, np.concatenate([[-1], reader[:-1]]))
    last = np.append(is_first[1:], np.ones(min(1, reader.size), dtype=np.bool_))
    given, sent = np.zeros((size, size, size)), np.zeros((size, size, size))
    for first in range(size - 1):
        # Each value's next read from here on, in the piece from `reader` to the position behind it.
        some = (maker < first) & (earlier < first) & (reader >= first)
        np.add.at(given[first], (reader[some] + 1, maker[some] + 1), sizes[some])
        some = last & (maker >= first) & (reader > maker)
        np.add.at(sent[first], (maker[some] + 1, reader[some]), sizes[some])
    given = np.cumsum(np.cumsum(given, axis=1), axis=2)
    sent = np.cumsum(np.cumsum(sent, axis=1)[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.ascontiguousarray(given), np.ascontiguousarray(sent)


class _Reads(NamedTuple):
    """By value, then reader: whether it is the value's first, the piece between two positions that makes the value, the
    piece that reads it, and bytes with those of the gradient."""

    is_first: Booleans
    maker: Integers
    reader: Integers
    sizes: Floats


def _reads(problem: PartitionProblem, positions: Integers) -> _Reads:
    """What the caller gives, the first piece makes; what it is returned, the last reads."""
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([problem.read_node, np.full(returned.size, problem.num_nodes - 1, dtype=np.int64)])
    order = np.lexsort((readers, values))
    values, readers = values[order], readers[order]
    return _Reads(
        is_first=np.diff(values, prepend=-1) != 0,
        maker=np.searchsorted(positions, np.maximum(problem.value_producer[values], 0), side="right") - 1,
        reader=np.searchsorted(positions, readers, side="right") - 1,
        sizes=(problem.value_bytes + problem.value_gradient_bytes)[values].astype(np.float64),
    )


def much_skips_the_middle(problem: PartitionProblem, positions: Integers) -> bool:
    """Whether for some middle, an eighth of the order or more, more bytes skip it than enter and leave it."""
    size, reads = positions.size, _reads(problem, positions)
    last = np.append(reads.is_first[1:], np.ones(min(1, reads.reader.size), dtype=np.bool_))
    passed = np.zeros((size, size))
    np.add.at(passed, (reads.maker[last] + 1, reads.reader[last]), reads.sizes[last])
    # [first, last] bytes made before `first` that `last` or what is behind it reads.
    passed = np.cumsum(np.cumsum(passed, axis=0)[:, ::-1], axis=1)[:, ::-1]
    crossing = np.diagonal(passed)
    index = np.arange(size)
    inner = (index[:, None] > 0) & (index[None, :] < size - 1) & (index[None, :] - index[:, None] >= max(1, size // 8))
    return bool((inner & (3 * passed > crossing[:, None] + crossing[None, :])).any())
