"""The loops of `host_windows`, compiled. Positions are indexes 0 to P - 1, the last being the program's end."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.reach_kernel import first_of_rest
from planner.partition.ordered.window_loads import NOT_A_BORDER, Reads, Windows
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Booleans, Floats, Integers

NOT_REACHED, NOT_TRIED, FEWER_DO = -1, -2, -3


@compiled
def strides(counts: Integers) -> Integers:
    """Of the digits of a state, each from 0 to its count."""
    stride = np.ones(counts.size, dtype=np.int64)
    for unit in range(1, counts.size):
        stride[unit] = stride[unit - 1] * (counts[unit - 1] + 1)
    return stride


@compiled
def bytes_moved(
    reads: Reads, first_behind: Integers, last_before: Integers,
    entering: Floats, leaving: Floats, received: Floats, sent: Floats,
) -> None:  # fmt: skip
    """Fills in what stages exchange, see `Windows` and `window_loads._Moved`: zeros before. `first_behind` and
    `last_before` [reads]: the first border behind the maker, and the last one up to the reader."""
    places, size, longest = entering.shape
    is_first, maker, reader, sizes = reads
    for first in range(size - 1):
        earlier = -1
        for read in range(maker.size):
            is_last = read + 1 == maker.size or is_first[read + 1]
            earlier = -1 if is_first[read] else earlier
            length = reader[read] - first
            # Each value's next read from here on.
            if maker[read] < first and earlier < first and 0 <= length < longest:
                received[first, length] += sizes[read]
                if first_behind[read] < places:
                    entering[first_behind[read], first, length] += sizes[read]
            earlier, own = reader[read], maker[read] - first
            if is_last and 0 <= own < longest and reader[read] > maker[read]:
                leaving[last_before[read], first, own] += sizes[read]
                sent[first, own] += sizes[read]
                if length < longest:
                    sent[first, length] -= sizes[read]
        received[first] = np.cumsum(received[first])
        sent[first] = np.cumsum(sent[first])
        for place in range(places):
            of_border, more = 0.0, place > 0
            for length in range(longest):
                of_border += entering[place, first, length]
                entering[place, first, length] = of_border + (entering[place - 1, first, length] if more else 0.0)
        for place in range(places - 1, -1, -1):
            of_border, more = 0.0, place + 1 < places
            for length in range(longest):
                of_border += leaving[place, first, length]
                leaving[place, first, length] = of_border + (leaving[place + 1, first, length] if more else 0.0)


@compiled
def cover(windows: Windows, group: int, limit: float, start: int, end: int, stage_into: Integers) -> int:
    """The first state (how many of each kind are used) in which the devices of a host of the group have run all from
    `start` to `end`.

    Fills `stage_into` [state, position]: kind times P plus first position, NOT_REACHED where none ends.
    """
    loads, counts, links = windows.loads[group], windows.counts[group], windows.links[group]
    furthest, size, stride_of_kind = windows.furthest[group], loads.shape[1], strides(counts)
    entering, leaving = windows.entering[windows.border[start]], windows.leaving[windows.border[end]]
    rest = first_of_rest(counts, stride_of_kind, windows.kind_back[group], end)
    for state in range(rest.size):
        for position in range(start, end + 1):
            stage_into[state, position] = NOT_REACHED
    stage_into[0, start] = 0
    for state in range(rest.size):
        if stage_into[state, end] != NOT_REACHED:
            return state
        for kind in range(counts.size):
            stride = stride_of_kind[kind]
            if state // stride % (counts[kind] + 1) == counts[kind]:
                continue
            for first in range(max(start, rest[state]), end):
                if stage_into[state, first] == NOT_REACHED:
                    continue
                for last in range(max(first + 1, rest[state + stride]), min(end, furthest[kind, first]) + 1):
                    if stage_into[state + stride, last] != NOT_REACHED:
                        continue
                    length = last - first - 1
                    load = loads[kind, first, length]
                    if entering[first, length] > 0:
                        load += links[0] + links[1] * entering[first, length]
                    if leaving[first, length] > 0:
                        load += links[2] + links[3] * leaving[first, length]
                    if load <= limit:
                        stage_into[state + stride, last] = kind * size + first
    return NOT_REACHED


@compiled
def unit_backs(furthest: Integers) -> Integers:
    """[unit, x]: the first position from which one of it may lead to x or beyond. From [unit, first]."""
    units, size = furthest.shape
    back = np.empty((units, size), dtype=np.int64)
    for unit in range(units):
        first = 0
        for position in range(size):
            while first < position and furthest[unit, first] < position:
                first += 1
            back[unit, position] = first
    return back


@compiled
def backs(counts: Integers, furthest: Integers) -> tuple[Integers, Integers]:
    """[group, kind, x] and [group, x]: the first position from which one device, or a host, may lead to x or beyond."""
    groups, _, size = furthest.shape
    kind_back = np.empty_like(furthest)
    host_back = np.empty((groups, size), dtype=np.int64)
    for group in range(groups):
        kind_back[group] = unit_backs(furthest[group])
        for end in range(size):
            host_back[group, end] = first_of_rest(counts[group], strides(counts[group]), kind_back[group], end)[0]
    return kind_back, host_back


@compiled
def furthest_ends(loads: Floats, limit: float) -> Integers:
    """[groups, kinds, first]: the last end within the limit, or `first`."""
    groups, kinds, size, longest = loads.shape
    furthest = np.zeros((groups, kinds, size), dtype=np.int64)
    for group in range(groups):
        for kind in range(kinds):
            for first in range(size):
                furthest[group, kind, first] = first
                for length in range(min(longest, size - 1 - first)):
                    if loads[group, kind, first, length] <= limit:
                        furthest[group, kind, first] = first + 1 + length
    return furthest


@compiled
def hosts_from(
    windows: Windows, rest: Integers, limit: float, begin: int, final: int,
    stage_into: Integers, covered: Integers, into: Integers,
) -> None:  # fmt: skip
    """Fills `into` [state, position], states being how many hosts of each group have run all from `begin` to a position
    up to `final`: group times P plus the position at which the last host begins. Before `rest` [state] it is of no use.
    Ends with the first state that has run all to the program's end. `covered` [group, start, end] is NOT_TRIED.
    """
    hosts, size = windows.hosts, windows.loads.shape[2]
    host_stride = strides(hosts)
    into[:] = NOT_REACHED
    into[0, begin] = 0
    for state in range(into.shape[0]):
        if into[state, size - 1] != NOT_REACHED:
            return
        for group in range(hosts.size):
            stride = host_stride[group]
            if state // stride % (hosts[group] + 1) == hosts[group]:
                continue
            for start in range(max(begin, rest[state]), final):
                if into[state, start] == NOT_REACHED:
                    continue
                for end in range(max(start + 1, rest[state + stride]), final + 1):
                    if windows.host_back[group, end] > start:
                        break
                    if windows.border[end] == NOT_A_BORDER or into[state + stride, end] != NOT_REACHED:
                        continue
                    if covered[group, start, end] == NOT_TRIED:
                        covered[group, start, end] = cover(windows, group, limit, start, end, stage_into)
                    if covered[group, start, end] != NOT_REACHED:
                        into[state + stride, end] = group * size + start


@compiled
def host_into(windows: Windows, limit: float, stage_into: Integers, covered: Integers, into: Integers) -> int:
    """The first state (how many hosts of each group are used) that has run all; NOT_REACHED if none has."""
    last = windows.loads.shape[2] - 1
    rest = first_of_rest(windows.hosts, strides(windows.hosts), windows.host_back, last)
    hosts_from(windows, rest, limit, 0, last, stage_into, covered, into)
    for state in range(into.shape[0]):
        if into[state, last] != NOT_REACHED:
            return state
    return NOT_REACHED


@compiled
def cover_around(
    windows: Windows, reads: Reads, group: int, limit: float,
    start: int, middle: int, behind: int, end: int, stage_into: Integers,
) -> int:  # fmt: skip
    """As `cover`, of all from `start` to `middle` and all from `behind` to `end`: elsewhere is what is between.

    What ends at `middle` stands at `behind` in `stage_into`.
    """
    loads, counts, links = windows.loads[group], windows.counts[group], windows.links[group]
    furthest = windows.furthest[group]
    before_start = windows.entering[windows.border[start]]
    before_middle = windows.entering[windows.border[middle]]
    before_behind = windows.entering[windows.border[behind]]
    leaving = windows.leaving[windows.border[end]]
    stride_of_kind, num_states = strides(counts), 1
    for count in counts:
        num_states *= count + 1
    size = loads.shape[1]
    sent = _sent_elsewhere(reads, start, middle, behind, end)
    for state in range(num_states):
        for position in range(start, end + 1):
            stage_into[state, position] = NOT_REACHED
    stage_into[0, start] = 0
    for state in range(num_states):
        if stage_into[state, end] != NOT_REACHED:
            return state
        for kind in range(counts.size):
            stride = stride_of_kind[kind]
            if state // stride % (counts[kind] + 1) == counts[kind]:
                continue
            for first in range(start, end):
                if stage_into[state, first] == NOT_REACHED:
                    continue
                ends = middle if first < middle else end
                for last in range(first + 1, min(ends, furthest[kind, first]) + 1):
                    at = behind if last == middle else last
                    if stage_into[state + stride, at] != NOT_REACHED:
                        continue
                    length = last - first - 1
                    if first < middle:
                        into, out = before_start[first, length], sent[last] - sent[first]
                    else:
                        into = before_behind[first, length] - before_middle[first, length] + before_start[first, length]
                        out = leaving[first, length]
                    load = loads[kind, first, length]
                    load += (into > 0) * links[0] + links[1] * into + (out > 0) * links[2] + links[3] * out
                    if load <= limit:
                        stage_into[state + stride, at] = kind * size + first
    return NOT_REACHED


@compiled
def _sent_elsewhere(reads: Reads, start: int, middle: int, behind: int, end: int) -> Floats:
    """By position up to `middle`: bytes made from `start` to it that are read from `middle` to `behind`, or from `end`
    on."""
    sent, counted = np.zeros(middle + 1), False
    for read in range(reads.maker.size):
        maker, reader = reads.maker[read], reads.reader[read]
        counted = counted and not reads.is_first[read]
        if start <= maker < middle and (middle <= reader < behind or reader >= end) and not counted:
            sent[maker + 1] += reads.sizes[read]
            counted = True
    return np.cumsum(sent)


@compiled
def hosts_around(
    windows: Windows, reads: Reads, pairs: Integers, may_cover: Booleans, limit: float,
    stage_into: Integers, covered: Integers, around: Integers, into: Integers,
) -> tuple[int, int, int]:  # fmt: skip
    """The first pair of positions, the state (how many hosts of each group are used) of those that have run all around
    it, and that of those that have run what is between; NOT_REACHED if there is none.

    `pairs` [pair, 2]: see `pairs_skipped`. `may_cover` [group, outer, inner]: whether a host may be quick enough for
    what is between two pairs. Fills `around` [state, pair]: group times the number of pairs plus the next pair outside.
    Leaves `into` as `hosts_from` does.
    """
    hosts, host_stride, num_states = windows.hosts, strides(windows.hosts), into.shape[0]
    _reach_pairs(windows, reads, pairs, may_cover, limit, stage_into, around)
    rest = np.zeros(num_states, dtype=np.int64)
    for pair in range(1, pairs.shape[0]):
        first, last = pairs[pair]
        if around[:, pair].max() < 0:
            continue
        hosts_from(windows, rest, limit, first, last, stage_into, covered, into)
        for state in range(num_states):
            for inside in range(num_states):
                if around[state, pair] < 0 or into[inside, last] == NOT_REACHED:
                    continue
                enough = True
                for group in range(hosts.size):
                    digits = hosts[group] + 1
                    used = state // host_stride[group] % digits + inside // host_stride[group] % digits
                    enough = enough and used <= hosts[group]
                if enough:
                    return pair, state, inside
    return NOT_REACHED, NOT_REACHED, NOT_REACHED


@compiled
def _reach_pairs(
    windows: Windows, reads: Reads, pairs: Integers, may_cover: Booleans, limit: float,
    stage_into: Integers, around: Integers,
) -> None:  # fmt: skip
    """Fills `around`: see `hosts_around`. Where fewer hosts reach a pair too, FEWER_DO."""
    hosts, host_stride, count = windows.hosts, strides(windows.hosts), pairs.shape[0]
    covered = np.full((hosts.size, count, count), NOT_TRIED)
    around[:] = NOT_REACHED
    around[0, 0] = 0
    for state in range(around.shape[0]):
        for group in range(hosts.size):
            if state // host_stride[group] % (hosts[group] + 1):
                for pair in range(count):
                    if around[state - host_stride[group], pair] != NOT_REACHED:
                        around[state, pair] = FEWER_DO
        for group in range(hosts.size):
            if state // host_stride[group] % (hosts[group] + 1) == hosts[group]:
                continue
            following = around[state + host_stride[group]]
            for outer in range(count):
                if around[state, outer] < 0:
                    continue
                for inner in range(outer + 1, count):
                    if not may_cover[group, outer, inner] or following[inner] != NOT_REACHED:
                        continue
                    if covered[group, outer, inner] == NOT_TRIED:
                        start, end = pairs[outer]
                        middle, behind = pairs[inner]
                        covered[group, outer, inner] = cover_around(
                            windows, reads, group, limit, start, middle, behind, end, stage_into
                        )
                    if covered[group, outer, inner] != NOT_REACHED:
                        following[inner] = group * count + outer
