"""What stages of host windows take and exchange, by pairs of positions: what `host_windows` searches over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.hosts import Hosts
from planner.partition.ordered.memory_tiers import memory_is_idle
from planner.partition.ordered.positions import furthest_end
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem

NOT_A_BORDER = -1
# With one pair of each border plans onto 32 devices in halves are 4 to 7 % above; with four no plan is better, in more
# than twice the time.
_PAIRS_OF_EACH, _FEW_PAIRS = 2, 300


class Reads(NamedTuple):
    """By value, then reader: whether it is the value's first, the piece between two positions that makes the value, the
    piece that reads it, and bytes with those of the gradient."""

    is_first: Booleans
    maker: Integers
    reader: Integers
    sizes: Floats


class Windows(NamedTuple):
    """What the kernels know of the hosts of each group, for one limit.

    A stage from `first` to `last` has length `last - first - 1` here: those longer than some are not looked at.
    `loads` [group, kind, first, length]: its seconds with all over the host's own link, inf where it does not fit; none
    within the limit ends behind `furthest` [group, kind, first]. Windows begin and end at borders alone: `border`
    [position] is the border's number, or NOT_A_BORDER. `entering` [border, first, length] and `leaving` [border,
    first, length]: the stage's bytes that come from before the border, or go behind it; `links` [group, 4]: what a
    message and a byte of these take more, each way. `counts` [group, kind]: devices of a host; `hosts` [group] to use.
    `kind_back` and `host_back`: see `backs`.
    """

    loads: Floats
    border: Integers
    entering: Floats
    leaving: Floats
    links: Floats
    counts: Integers
    hosts: Integers
    furthest: Integers
    kind_back: Integers
    host_back: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowLoads:
    """`border`, `entering`, `leaving`, `loads`, `links`: see `Windows`."""

    hosts: Hosts
    groups: tuple[tuple[int, ...], ...]
    positions: Integers
    reads: Reads
    border: Integers
    entering: Floats
    leaving: Floats
    loads: Floats
    links: Floats


def window_loads(
    problem: PartitionProblem,
    hosts: Hosts,
    groups: tuple[tuple[int, ...], ...],
    positions: Integers,
    borders: Integers,
    limit: float,
) -> WindowLoads:
    """`borders`: those of the positions at which windows may begin and end, both ends among them. Stages that compute
    for longer than the limit are not looked at. Two tables of borders x positions x the longest stage."""
    reads, border = _reads(problem, positions), np.full(positions.size, NOT_A_BORDER, dtype=np.int64)
    border[np.searchsorted(positions, borders)] = np.arange(borders.size)
    moved = _moved_bytes(reads, border, longest_stage(problem, positions, limit))
    loads, links = _loads(problem, hosts, groups, positions, moved, limit)
    return WindowLoads(
        hosts=hosts,
        groups=groups,
        positions=positions,
        reads=reads,
        border=border,
        entering=moved.entering,
        leaving=moved.leaving,
        loads=loads,
        links=links,
    )


def longest_stage(problem: PartitionProblem, positions: Integers, limit: float) -> int:
    """In pieces between two positions: the most that some device computes within the limit, at least one."""
    furthest = np.searchsorted(positions, furthest_end(problem, limit)[positions], side="right") - 1
    return max(1, int((furthest - np.arange(positions.size)).max()))


class _Moved(NamedTuple):
    """`entering` and `leaving`: see `Windows`; `received` and `sent` [first, length] bytes in all."""

    entering: Floats
    leaving: Floats
    received: Floats
    sent: Floats


def _loads(
    problem: PartitionProblem,
    hosts: Hosts,
    groups: tuple[tuple[int, ...], ...],
    positions: Integers,
    moved: _Moved,
    limit: float,
) -> tuple[Floats, Floats]:
    """[group, kind, first, length] seconds over the host's own link; [group, 4] what links to elsewhere take more."""
    size, longest = moved.received.shape
    last = np.arange(size)[:, None] + np.arange(longest) + 1
    is_stage, ends = last < size, positions[np.minimum(last, size - 1)]
    needed = _peak_bytes(problem, positions, longest, limit)
    loads = np.full((len(groups), hosts.num_kinds, size, longest), np.inf)
    links = np.zeros((len(groups), 4))
    for index_of_group, group in enumerate(groups):
        here = group[0]
        own_link = _costs(problem, hosts, [int(hosts.link[here, here])])
        elsewhere = _costs(problem, hosts, [int(link) for other, link in enumerate(hosts.link[here]) if other != here])
        links[index_of_group] = elsewhere - own_link
        for kind, members in enumerate(hosts.members[here]):
            if not members:
                continue
            device = members[0]
            seconds = problem.segment_seconds(np.array(device), positions[:, None], ends)
            seconds = seconds + own_link[0] * (moved.received > 0) + own_link[1] * moved.received
            seconds = seconds + own_link[2] * (moved.sent > 0) + own_link[3] * moved.sent
            fits = is_stage & (needed <= problem.device_memory_bytes[device])
            loads[index_of_group, kind] = np.where(fits, seconds, np.inf)
    return loads, links


def _peak_bytes(problem: PartitionProblem, positions: Integers, longest: int, limit: float) -> Floats:
    """[first, length] of stages; 0 of all where memory holds any that compute for no longer than the limit."""
    needed = np.zeros((positions.size, longest))
    if memory_is_idle(problem, limit):
        return needed
    segments = Segments(problem)
    for first in range(positions.size - 1):
        ends = positions[first + 1 : first + 1 + longest]
        row = segments.row(int(positions[first]), int(ends[-1]))
        needed[first, : ends.size] = row.peak_bytes[ends - positions[first] - 1]
    return needed


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


def _moved_bytes(reads: Reads, border: Integers, longest: int) -> _Moved:
    """Of stages, each value once, with its gradient. What the caller gives, the first stage sends; what it is returned,
    the last stage reads."""
    from planner.partition.ordered.windows_kernel import bytes_moved

    size, places = border.size, np.flatnonzero(border != NOT_A_BORDER)
    moved = _Moved(*np.zeros((2, places.size, size, longest)), *np.zeros((2, size, longest)))
    # A value has been made before the borders behind its maker, and is still to be read behind those up to its reader.
    first_behind = np.searchsorted(places, reads.maker + 1)
    last_before = np.searchsorted(places, reads.reader, side="right") - 1
    bytes_moved(reads, first_behind, last_before, *moved)
    return moved


def _reads(problem: PartitionProblem, positions: Integers) -> Reads:
    """What the caller gives, the first piece makes; what it is returned, the last reads."""
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([problem.read_node, np.full(returned.size, problem.num_nodes - 1, dtype=np.int64)])
    order = np.lexsort((readers, values))
    values, readers = values[order], readers[order]
    return Reads(
        is_first=np.diff(values, prepend=-1) != 0,
        maker=np.searchsorted(positions, np.maximum(problem.value_producer[values], 0), side="right") - 1,
        reader=np.searchsorted(positions, readers, side="right") - 1,
        sizes=(problem.value_bytes + problem.value_gradient_bytes)[values].astype(np.float64),
    )


def pairs_skipped(tables: WindowLoads) -> Integers:
    """[pairs, 2] of what hosts may run the ends around: first both ends of the program, then those outside before those
    inside them. All of few borders; of more, each with the two behind it and the two before it such that least enters
    and leaves what is between."""
    size = tables.positions.size
    inner = np.flatnonzero(tables.border != NOT_A_BORDER)[1:-1]
    is_pair = inner[:, None] < inner[None, :]
    if np.count_nonzero(is_pair) > _FEW_PAIRS:
        passing = _bytes_passing(tables.reads, size)
        crossing = np.diagonal(passing)
        outside = (crossing[:, None] + crossing[None, :] - 2 * passing)[np.ix_(inner, inner)]
        outside = np.where(is_pair, outside, np.inf)
        chosen = np.zeros_like(is_pair)
        np.put_along_axis(chosen, np.argsort(outside, axis=1, kind="stable")[:, :_PAIRS_OF_EACH], values=True, axis=1)
        np.put_along_axis(chosen, np.argsort(outside, axis=0, kind="stable")[:_PAIRS_OF_EACH], values=True, axis=0)
        is_pair &= chosen
    first, last = (inner[index] for index in np.nonzero(is_pair))
    order = np.argsort(first - last, kind="stable")
    return np.stack([np.append(0, first[order]), np.append(size - 1, last[order])], axis=1)


def much_skips_the_middle(problem: PartitionProblem, positions: Integers) -> bool:
    """Whether for some middle, an eighth of the order or more, more bytes skip it than enter and leave it."""
    size, passing = positions.size, _bytes_passing(_reads(problem, positions), positions.size)
    crossing = np.diagonal(passing)
    index = np.arange(size)
    inner = (index[:, None] > 0) & (index[None, :] < size - 1) & (index[None, :] - index[:, None] >= max(1, size // 8))
    return bool((inner & (3 * passing > crossing[:, None] + crossing[None, :])).any())


def _bytes_passing(reads: Reads, size: int) -> Floats:
    """[first, last] of so many positions: made before `first`, and read by `last` or what is behind it."""
    last = np.append(reads.is_first[1:], np.ones(min(1, reads.reader.size), dtype=np.bool_))
    passing = np.zeros((size, size))
    np.add.at(passing, (reads.maker[last] + 1, reads.reader[last]), reads.sizes[last])
    summed: Floats = np.cumsum(np.cumsum(passing, axis=0)[:, ::-1], axis=1)[:, ::-1]
    return summed
