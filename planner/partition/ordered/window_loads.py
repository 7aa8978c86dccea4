"""What stages of host windows take and exchange, by pairs of positions: what `host_windows` searches over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.hosts import Hosts
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem


class Reads(NamedTuple):
    """By value, then reader: whether it is the value's first, the piece between two positions that makes the value, the
    piece that reads it, and bytes with those of the gradient."""

    is_first: Booleans
    maker: Integers
    reader: Integers
    sizes: Floats


class Windows(NamedTuple):
    """What the kernels know of the hosts of each group, for one limit.

    `loads` [group, kind, first, last]: a stage's seconds with all over the host's own link, inf where it does not fit;
    none within the limit ends behind `furthest` [group, kind, first]. `entering` [first, last, start] and `leaving`
    [first, last, end]: its bytes that come from before `start`, or go behind `end`; `links` [group, 4]: what a message
    and a byte of these take more, each way. `counts` [group, kind]: devices of a host; `hosts` [group] to use.
    `kind_back` and `host_back`: see `backs`.
    """

    loads: Floats
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
    """`entering`, `leaving`, `loads`, `links`: see `Windows`."""

    hosts: Hosts
    groups: tuple[tuple[int, ...], ...]
    positions: Integers
    reads: Reads
    entering: Floats
    leaving: Floats
    loads: Floats
    links: Floats


def window_loads(
    problem: PartitionProblem, hosts: Hosts, groups: tuple[tuple[int, ...], ...], positions: Integers
) -> WindowLoads:
    reads = _reads(problem, positions)
    entering, leaving = _far_bytes(reads, positions.size)
    loads, links = _loads(problem, hosts, groups, positions, entering, leaving)
    return WindowLoads(
        hosts=hosts,
        groups=groups,
        positions=positions,
        reads=reads,
        entering=entering,
        leaving=leaving,
        loads=loads,
        links=links,
    )


def _loads(
    problem: PartitionProblem,
    hosts: Hosts,
    groups: tuple[tuple[int, ...], ...],
    positions: Integers,
    entering: Floats,
    leaving: Floats,
) -> tuple[Floats, Floats]:
    """[group, kind, first, last] seconds over the host's own link; [group, 4] what links to elsewhere take more."""
    size = positions.size
    index = np.arange(size)
    received_bytes, sent_bytes = entering[index[:, None], index, index[:, None]], leaving[index[:, None], index, index]
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


def _far_bytes(reads: Reads, size: int) -> tuple[Floats, Floats]:
    """[first, last, start] bytes that a stage reads of what is made before `start`; [first, last, end] bytes of what it
    makes that is read behind `end`; with their gradients. What the caller gives, the first stage sends; what it is
    returned, the last stage reads."""
    is_first, maker, reader, sizes = reads
    earlier = np.where(is_first, -1, np.concatenate([[-1], reader[:-1]]))
    last = np.append(is_first[1:], np.ones(min(1, reader.size), dtype=np.bool_))
    entering, leaving = np.zeros((size, size, size)), np.zeros((size, size, size))
    for first in range(size - 1):
        # Each value's next read from here on, in the piece from `reader` to the position behind it.
        some = (maker < first) & (earlier < first) & (reader >= first)
        np.add.at(entering[first], (reader[some] + 1, maker[some] + 1), sizes[some])
        some = last & (maker >= first) & (reader > maker)
        np.add.at(leaving[first], (maker[some] + 1, reader[some]), sizes[some])
    entering = np.cumsum(np.cumsum(entering, axis=1), axis=2)
    leaving = np.cumsum(np.cumsum(leaving, axis=1)[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.ascontiguousarray(entering), np.ascontiguousarray(leaving)


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


def much_skips_the_middle(problem: PartitionProblem, positions: Integers) -> bool:
    """Whether for some middle, an eighth of the order or more, more bytes skip it than enter and leave it."""
    size, reads = positions.size, _reads(problem, positions)
    last = np.append(reads.is_first[1:], np.ones(min(1, reads.reader.size), dtype=np.bool_))
    bytes_passing = np.zeros((size, size))
    np.add.at(bytes_passing, (reads.maker[last] + 1, reads.reader[last]), reads.sizes[last])
    # [first, last] bytes made before `first` that `last` or what is behind it reads.
    bytes_passing = np.cumsum(np.cumsum(bytes_passing, axis=0)[:, ::-1], axis=1)[:, ::-1]
    crossing = np.diagonal(bytes_passing)
    index = np.arange(size)
    inner = (index[:, None] > 0) & (index[None, :] < size - 1) & (index[None, :] - index[:, None] >= max(1, size // 8))
    return bool((inner & (3 * bytes_passing > crossing[:, None] + crossing[None, :])).any())
