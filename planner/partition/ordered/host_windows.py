"""Segments of one order on hosts of many devices, with what each stage exchanges over the very links that it takes.

Each host runs a window of the order: what comes from before the window or goes behind it takes a link between hosts,
all else the host's own. With both ends of a window known a stage's seconds follow from its own two ends, whatever the
program. So windows are tried in a programme over positions and devices of the host, and which host takes which window
in one over positions and hosts. Exact for plans that enter a host once, where links between hosts are alike; a host
may also be entered by parts, which then count as hosts of their own. And a host may run both ends of the order, another
one both ends of what is left, and so on, with windows of others in the middle: so what skips the middle of a U-Net
stays on its host, level by level.

Hosts that are alike are counted. Where there are too many ways to choose some of each group, as in a fleet that grew
over years, a beam keeps those choices whose hosts are busiest; and of hosts around others only the quickest serve.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.partition.ordered.hosts import Hosts, device_speeds, hosts_of
from planner.partition.ordered.positions import allowed_positions, few_positions, near_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.ordered.window_loads import (
    WindowLoads,
    Windows,
    longest_stage,
    much_skips_the_middle,
    pairs_skipped,
    window_loads,
)
from planner.partition.problem import Integers, PartitionProblem

# Positions of the first round: two tables of their cube, 57 MB each. With 64 onto 16 devices it ends too far above the
# limit for a second one: experts 0.6 %, a translator with memory of 1.1 onto 16 devices 1.4 % worse.
_MAX_POSITIONS = 192
# The second is over as many as these, those near its cuts if there are more, and windows begin at some of them alone.
_MAX_FINE_POSITIONS, _MAX_BORDERS = 1024, 192
# Numbers in its tables, 270 MB. Onto 32 and 64 devices stages are short and it takes two thirds at most; onto 4 and 8 a
# thousand positions would have 1 GB, and fewer borders give the same plans of the benchmark's nets.
_MAX_NUMBERS = 2**25
# How far above the limit the first round may end for a second one.
_COARSE_ABOVE = 1.03
# How many devices of each kind a host has in use, 25 for two kinds of four; how many hosts of each group are in use.
_MAX_STATES, _MAX_HOST_STATES = 256, 2_000
# Of a fleet, of those that may stand around others: with 2,000 plans of U-Nets are no better, and take a minute.
_MAX_AROUND_STATES = 16
# States of the beam for each number of hosts in use. With 256 no plan of the benchmark's fleets is better.
_WIDTH = 64
# How many times a host may be entered, in turn.
_PARTS = (1, 2)
# Bisection ends where the value is known to such a share: less than a cut that moves by one node changes.
_ENOUGH, _ROUGHLY = 2e-4, 0.5

Layout = tuple[tuple[int, ...], tuple[int, ...]]
# (index of its first position, host, kind)
_Stage = tuple[int, int, int]


def over_windows(problem: PartitionProblem, limit: float = np.inf, *, both_ends: bool = True) -> list[Layout]:
    """Ever better (boundaries, devices), the last with a bottleneck of less than `limit`; none where there is none.

    Not for relayed tensors. Over equal links each device is a host of its own.
    """
    hosts, allowed = hosts_of(problem), allowed_positions(problem)
    if hosts.count == 1:
        hosts = hosts.apart()
    positions, high = _coarse_positions(problem, hosts, limit), limit * _COARSE_ABOVE
    layouts: list[Layout] = []
    borders = positions
    for _ in range(2):
        if not _is_room(problem, hosts, positions, borders.size, high):
            break
        better = None
        for trials, enough in _all_trials(problem, hosts, positions, borders, high, both_ends=both_ends):
            layout = _least(problem, trials, high / (1 + _ENOUGH), enough)
            if layout is not None:
                better, high = layout, evaluate_layout(problem, *layout).bottleneck_seconds
        if better is None:
            break
        layouts.append(better)
        if positions.size == allowed.size:
            break
        positions, borders = _fine_positions(problem, hosts, allowed, better[0], high)
    return layouts if high < limit else []


def _coarse_positions(problem: PartitionProblem, hosts: Hosts, limit: float) -> Integers:
    """Two for each device, where stages within the limit are so short that there is room for tables of so many; fewer
    where devices are of so many kinds that there is none for as many as usual."""
    for count in (max(_MAX_POSITIONS, 2 * problem.num_devices), _MAX_POSITIONS, _MAX_POSITIONS // 2):
        positions = few_positions(problem, count)
        if _is_room(problem, hosts, positions, positions.size, limit):
            return positions
    return few_positions(problem, _MAX_POSITIONS // 4)


def _is_room(problem: PartitionProblem, hosts: Hosts, positions: Integers, num_borders: int, limit: float) -> bool:
    """For tables by stage and border, by stage, group and kind, and by window and group."""
    groups, longest = len(hosts.groups), longest_stage(problem, positions, limit)
    for_each = max(num_borders * longest, groups * hosts.num_kinds * longest, groups * positions.size)
    return positions.size * for_each <= _MAX_NUMBERS


def _fine_positions(
    problem: PartitionProblem, hosts: Hosts, allowed: Integers, boundaries: tuple[int, ...], limit: float
) -> tuple[Integers, Integers]:
    """And borders: those of the positions with the least to send, and those at which something begins already. All of
    fewer positions, where stages within the limit may be so long that there is no room for tables of more."""
    most = min(_MAX_FINE_POSITIONS, int((_MAX_NUMBERS / len(hosts.groups)) ** 0.5))
    positions = near_positions(allowed, boundaries, most) if allowed.size > most else allowed
    if positions.size <= _MAX_POSITIONS:
        return positions, positions
    num_stages = positions.size * longest_stage(problem, positions, limit)
    count = (_MAX_NUMBERS // num_stages - len(hosts.groups) * hosts.num_kinds) // 2
    if count < len(boundaries):
        positions = near_positions(allowed, boundaries, _MAX_POSITIONS)
        return positions, positions
    sending_least = few_positions(problem, min(max(_MAX_BORDERS, 2 * hosts.count), count))
    return positions, np.union1d(np.intersect1d(sending_least, positions), boundaries)


def _all_trials(
    problem: PartitionProblem, hosts: Hosts, positions: Integers, borders: Integers, limit: float, *, both_ends: bool
) -> Iterator[tuple[_Windows, float]]:
    """With how well each is to be known."""
    groups = hosts.groups
    counts = np.array([hosts.composition(group[0]) for group in groups], dtype=np.int64)
    tables = None
    for parts in _PARTS:
        if (counts // parts + 1.0).prod(axis=1).max() > _MAX_STATES or (counts % parts).any():
            continue
        num_hosts = np.array([len(group) * parts for group in groups], dtype=np.int64)
        tables = tables or window_loads(problem, hosts, groups, positions, borders, limit)
        windows, around = _Windows(tables, counts // parts, num_hosts, parts), num_hosts
        if (num_hosts + 1.0).prod() > _MAX_HOST_STATES:
            windows = chosen = _ChosenWindows(problem, tables, counts // parts, num_hosts, parts)
            around = chosen.quickest_hosts()
        if both_ends and parts == 1 and much_skips_the_middle(problem, positions):
            # A first limit; mostly hosts around others then undercut what windows can do at best.
            yield windows, _ROUGHLY
            yield _WindowsAround(problem, tables, counts, around), _ENOUGH
        yield windows, _ENOUGH


def _least(problem: PartitionProblem, trials: _Windows, high: float, enough: float) -> Layout | None:
    best, limit, low = None, high, 0.0
    while high > low * (1 + enough) or best is None:
        layout = trials.layout(limit)
        if layout is not None:
            best, high = layout, min(limit, evaluate_layout(problem, *layout).bottleneck_seconds)
        elif best is None:
            break
        else:
            low = limit
        limit = (low * high) ** 0.5 if low else high / 2
    return best


class _Windows:
    """Each host, or part of one, runs a window. `counts` [groups, kinds] devices of one, `num_hosts` [groups]."""

    def __init__(self, tables: WindowLoads, counts: Integers, num_hosts: Integers, parts: int) -> None:
        self._tables, self._size, self._parts = tables, tables.positions.size, parts
        self._counts, self._num_hosts = counts, num_hosts
        self._num_states = int((counts + 1).prod(axis=1).max())

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.windows_kernel import NOT_REACHED, host_into

        # What does not fit is infinite, and never within the limit.
        limit = min(limit, np.finfo(np.float64).max)
        windows, (stage_into, covered, into) = self._within(limit), self._blank()
        state = host_into(windows, limit, stage_into, covered, into)
        if state == NOT_REACHED:
            return None
        return self._as_layout(self._stages_of_hosts(windows, into, state, 0, self._size - 1, limit))

    def _within(self, limit: float) -> Windows:
        from planner.partition.ordered.windows_kernel import backs, furthest_ends

        tables, furthest = self._tables, furthest_ends(self._tables.loads, limit)
        return Windows(
            tables.loads, tables.border, tables.entering, tables.leaving, tables.links, self._counts, self._num_hosts,
            furthest, *backs(self._counts, furthest),
        )  # fmt: skip

    def _blank(self) -> tuple[Integers, Integers, Integers]:
        """What the kernel fills: `stage_into`, `covered` and `into`."""
        from planner.partition.ordered.windows_kernel import NOT_TRIED

        size = self._size
        return (
            np.empty((self._num_states, size), dtype=np.int64),
            np.full((len(self._tables.groups), size, size), NOT_TRIED, dtype=np.int64),
            np.empty((int((self._num_hosts + 1).prod()), size), dtype=np.int64),
        )

    def _stages_of_hosts(
        self, windows: Windows, into: Integers, state: int, start: int, end: int, limit: float
    ) -> list[_Stage]:
        """Of those that have run all from `start` to `end`, in order."""
        from planner.partition.ordered.windows_kernel import cover

        stage_into = np.empty((self._num_states, self._size), dtype=np.int64)
        stages: list[_Stage] = []
        while end > start:
            group, first = divmod(int(into[state, end]), self._size)
            used = cover(windows, group, limit, first, end, stage_into)
            host = self._tables.groups[group][(self._used(state, group) - 1) // self._parts]
            stages = [*self._stages(stage_into, used, group, host, first, end), *stages]
            state, end = state - self._stride(group), first
        return stages

    def _stride(self, group: int) -> int:
        """By how much a state is more for each host of the group that is used."""
        return int(np.prod(self._num_hosts[:group] + 1))

    def _used(self, state: int, group: int) -> int:
        """Hosts of the group."""
        return int(state // self._stride(group) % (self._num_hosts[group] + 1))

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


class _ChosenWindows(_Windows):
    """Where hosts are of too many groups to count every choice of them."""

    def __init__(
        self, problem: PartitionProblem, tables: WindowLoads, counts: Integers, num_hosts: Integers, parts: int
    ) -> None:
        super().__init__(tables, counts, num_hosts, parts)
        work = np.concatenate([[0.0], np.cumsum(problem.work_seconds.min(axis=0))])
        self._work, of_device = work[tables.positions], device_speeds(problem)
        # [group] of all devices of a host.
        self._speeds = np.zeros(len(tables.groups))
        for group, hosts in enumerate(tables.groups):
            for kind, members in enumerate(tables.hosts.members[hosts[0]]):
                if members:
                    self._speeds[group] += counts[group, kind] * of_device[members[0]]

    def quickest_hosts(self) -> Integers:
        """[group] so few hosts that every choice of them can be tried around others: the slowest are left out."""
        left = self._num_hosts.copy()
        for group in np.argsort(self._speeds, kind="stable"):
            while left[group] and (left + 1.0).prod() > _MAX_AROUND_STATES:
                left[group] -= 1
        return left

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.host_beam_kernel import busiest_hosts
        from planner.partition.ordered.windows_kernel import NOT_REACHED, NOT_TRIED

        limit = float(np.clip(limit, np.finfo(np.float64).tiny, np.finfo(np.float64).max))
        windows, size, groups = self._within(limit), self._size, len(self._tables.groups)
        used = np.empty((int(self._num_hosts.sum()) + 1, _WIDTH, groups), dtype=np.int64)
        into = np.empty((*used.shape[:2], size), dtype=np.int64)
        covered = np.full((groups, size, size), NOT_TRIED, dtype=np.int64)
        stage_into = np.empty((self._num_states, size), dtype=np.int64)
        num_used, state = busiest_hosts(
            windows, self._work, self._speeds, limit, stage_into, covered, used, into
        )  # fmt: skip
        if num_used == NOT_REACHED:
            return None
        return self._as_layout(self._stages_of_chosen(windows, used, into, num_used, state, limit))

    def _stages_of_chosen(
        self, windows: Windows, used: Integers, into: Integers, num_used: int, state: int, limit: float
    ) -> list[_Stage]:
        from planner.partition.ordered.windows_kernel import cover

        stage_into = np.empty((self._num_states, self._size), dtype=np.int64)
        stages, end = list[_Stage](), self._size - 1
        while num_used:
            before, first = divmod(int(into[num_used, state, end]), self._size)
            before, group = divmod(before, len(self._tables.groups))
            used_of_host = cover(windows, group, limit, first, end, stage_into)
            host = self._tables.groups[group][(int(used[num_used, state, group]) - 1) // self._parts]
            stages = [*self._stages(stage_into, used_of_host, group, host, first, end), *stages]
            num_used, state, end = num_used - 1, before, first
        return stages


class _WindowsAround(_Windows):
    """Hosts around others: each runs both ends of what is left of the order, the last of them windows of the rest."""

    def __init__(self, problem: PartitionProblem, tables: WindowLoads, counts: Integers, num_hosts: Integers) -> None:
        super().__init__(tables, counts, num_hosts, 1)
        self._pairs = pairs_skipped(tables)
        first, last = self._pairs.T
        share = np.zeros((len(tables.groups), first.size, first.size))
        for group, hosts in enumerate(tables.groups):
            for members in tables.hosts.members[hosts[0]]:
                if members:
                    before = problem.compute_before[members[0]][tables.positions]
                    between = before[last] - before[first]
                    share[group] += len(members) / np.maximum(between[:, None] - between[None, :], 1e-300)
        inside = (first[:, None] < first[None, :]) & (last[:, None] > last[None, :])
        # [group, outer pair, inner pair]: what is between them takes by compute alone, all devices of a host as busy.
        self._least_seconds = np.where(inside, 1 / share, np.inf)

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.windows_kernel import NOT_REACHED, hosts_around

        limit = min(limit, np.finfo(np.float64).max)
        windows, (stage_into, covered, into) = self._within(limit), self._blank()
        around = np.empty((into.shape[0], len(self._pairs)), dtype=np.int64)
        pair, state, inside = hosts_around(
            windows, self._tables.reads, self._pairs, self._least_seconds <= limit, limit,
            stage_into, covered, around, into,
        )  # fmt: skip
        if pair == NOT_REACHED:
            return None
        first, last = self._pairs[pair].tolist()
        stages = self._stages_of_hosts(windows, into, inside, first, last, limit)
        return self._as_layout(self._with_stages_around(stages, windows, around, pair, state, inside, limit))

    def _with_stages_around(
        self, stages: list[_Stage], windows: Windows, around: Integers, pair: int, state: int, inside: int, limit: float
    ) -> list[_Stage]:
        from planner.partition.ordered.windows_kernel import cover_around

        stage_into = np.empty((self._num_states, self._size), dtype=np.int64)
        while pair:
            group, outer = divmod(int(around[state, pair]), len(self._pairs))
            (start, end), (middle, behind) = self._pairs[outer].tolist(), self._pairs[pair].tolist()
            used = cover_around(windows, self._tables.reads, group, limit, start, middle, behind, end, stage_into)
            # Hosts of the group that run windows inside come before those around them.
            visit = self._used(inside, group) + self._used(state, group) - 1
            host = self._tables.groups[group][visit]
            ends = self._stages(stage_into, used, group, host, start, end)
            # What ends at `middle` stands at `behind`, where its host goes on.
            before = [stage for stage in ends if stage[0] < middle]
            stages = [*before, *stages, *ends[len(before) :]]
            state, pair = state - self._stride(group), outer
        return stages
