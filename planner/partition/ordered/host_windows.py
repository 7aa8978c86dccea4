"""Segments of one order on hosts of many devices, with what each stage exchanges over the very links that it takes.

Each host runs a window of the order: what comes from before the window or goes behind it takes a link between hosts,
all else the host's own. With both ends of a window known a stage's seconds follow from its own two ends, whatever the
program. So windows are tried in a programme over positions and devices of the host, and which host takes which window
in one over positions and hosts. Exact for plans that enter a host once, where links between hosts are alike; a host
may also be entered by parts, which then count as hosts of their own.
"""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.hosts import Hosts, hosts_of
from planner.partition.ordered.positions import allowed_positions, few_positions, near_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Floats, Integers, PartitionProblem

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


def over_windows(problem: PartitionProblem, limit: float = np.inf) -> list[Layout]:
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
        for parts in _PARTS:
            layout = _least(problem, hosts, positions, parts, high)
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


def _least(problem: PartitionProblem, hosts: Hosts, positions: Integers, parts: int, high: float) -> Layout | None:
    groups = hosts.groups()
    counts = np.array([hosts.composition(group[0]) for group in groups], dtype=np.int64)
    num_hosts = np.array([len(group) * parts for group in groups], dtype=np.int64)
    if (counts % parts).any() or (counts // parts + 1.0).prod(axis=1).max() > _MAX_STATES:
        return None
    if (num_hosts + 1.0).prod() > _MAX_HOST_STATES:
        return None
    trials = _Trials(problem, hosts, groups, positions, counts // parts, num_hosts, parts)
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


class _Trials:
    def __init__(
        self,
        problem: PartitionProblem,
        hosts: Hosts,
        groups: tuple[tuple[int, ...], ...],
        positions: Integers,
        counts: Integers,
        num_hosts: Integers,
        parts: int,
    ) -> None:
        self._hosts, self._groups, self._parts, self._positions = hosts, groups, parts, positions
        self._counts = counts
        self._num_hosts = num_hosts
        self._num_states = int((counts + 1).prod(axis=1).max())
        self._given, self._sent = _far_bytes(problem, positions)
        self._loads, self._links = _loads(problem, hosts, groups, positions, self._given, self._sent)

    def layout(self, limit: float) -> Layout | None:
        from planner.partition.ordered.windows_kernel import (
            NOT_REACHED,
            NOT_TRIED,
            cover,
            furthest_ends,
            host_into,
            unit_backs,
        )

        # What does not fit is infinite, and never within the limit.
        size, limit = self._positions.size, min(limit, np.finfo(np.float64).max)
        furthest = furthest_ends(self._loads, limit)
        stage_into = np.empty((self._num_states, size), dtype=np.int64)
        covered = np.full((len(self._groups), size, size), NOT_TRIED, dtype=np.int64)
        into = np.empty((int((self._num_hosts + 1).prod()), size), dtype=np.int64)
        far = self._given, self._sent
        state = host_into(
            self._loads,
            *far,
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
        host_stride = np.concatenate([[1], np.cumprod(self._num_hosts + 1)[:-1]])
        stages: list[tuple[int, int, int]] = []
        end = size - 1
        while end > 0:
            group, start = divmod(int(into[state, end]), size)
            own = self._loads[group], *far, self._links[group], self._counts[group], furthest[group]
            used, at = cover(*own, unit_backs(furthest[group]), limit, start, end, stage_into), end
            stride = np.concatenate([[1], np.cumprod(self._counts[group] + 1)[:-1]])
            visit = int(state // host_stride[group] % (self._num_hosts[group] + 1)) - 1
            while at > start:
                kind, first = divmod(int(stage_into[used, at]), size)
                stages.append((first, self._groups[group][visit // self._parts], kind))
                used, at = used - int(stride[kind]), first
            state, end = state - int(host_stride[group]), start
        stages.reverse()
        left = [[iter(members) for members in of_kind] for of_kind in self._hosts.members]
        boundaries = [int(self._positions[first]) for first, _, _ in stages]
        return (*boundaries, int(self._positions[-1])), tuple(next(left[host][kind]) for _, host, kind in stages)


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


def _far_bytes(problem: PartitionProblem, positions: Integers) -> tuple[Floats, Floats]:
    """[first, last, start] bytes that a stage reads of what is made before `start`; [first, last, end] bytes of what it
    makes that is read behind `end`; with their gradients. What the caller gives, the first stage sends; what it is
    returned, the last stage reads."""
    size, n = positions.size, problem.num_nodes
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([problem.read_node, np.full(returned.size, n - 1, dtype=np.int64)])
    order = np.lexsort((readers, values))
    values, readers = values[order], readers[order]
    maker = np.searchsorted(positions, np.maximum(problem.value_producer[values], 0), side="right") - 1
    reader = np.searchsorted(positions, readers, side="right") - 1
    sizes = (problem.value_bytes + problem.value_gradient_bytes)[values].astype(np.float64)
    is_first = np.diff(values, prepend=-1) != 0
    earlier = np.where(is_first, -1, np.concatenate([[-1], reader[:-1]]))
    given, sent = np.zeros((size, size, size)), np.zeros((size, size, size))
    last = np.append(is_first[1:], np.ones(min(1, values.size), dtype=np.bool_))
    for first in range(size - 1):
        # Each value's next read from here on, in the piece from `reader` to the position behind it.
        some = (maker < first) & (earlier < first) & (reader >= first)
        np.add.at(given[first], (reader[some] + 1, maker[some] + 1), sizes[some])
        some = last & (maker >= first) & (reader > maker)
        np.add.at(sent[first], (maker[some] + 1, reader[some]), sizes[some])
    given = np.cumsum(np.cumsum(given, axis=1), axis=2)
    sent = np.cumsum(np.cumsum(sent, axis=1)[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.ascontiguousarray(given), np.ascontiguousarray(sent)
