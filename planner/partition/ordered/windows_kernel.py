"""The loops of `host_windows`, compiled. Positions are indexes 0 to P - 1, the last being the program's end."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.reach_kernel import first_of_rest
from planner.partition.ordered.window_loads import NOT_A_BORDER, Reads, Windows
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Booleans, Floats, Integers

NOT_REACHED, NOT_TRIED = -1, -2


@compiled
def strides(counts: Integers) -> Integers:
    """Of the digits of a state, each from 0 to its count."""
    stride = np.ones(counts.size, dtype=np.int64)
    for unit in range(1, counts.size):
        stride[unit] = stride[unit - 1] * (counts[unit - 1] + 1)
    return stride


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
                    length = last - first - 1
                    load = loads[kind, first, length]
                    if entering[first, length] > 0:
                        load += links[0] + links[1] * entering[first, length]
                    if leaving[first, length] > 0:
                        load += links[2] + links[3] * leaving[first, length]
                    if load <= limit and stage_into[state + stride, last] == NOT_REACHED:
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
def cover_ends(
    windows: Windows, reads: Reads, group: int, limit: float, middle: int, behind: int, stage_into: Integers
) -> int:
    """As `cover`, of all before the position `middle` and all from `behind` on: elsewhere is what is between.

    What ends at `middle` stands at `behind` in `stage_into`.
    """
    loads, counts, links = windows.loads[group], windows.counts[group], windows.links[group]
    furthest = windows.furthest[group]
    before_middle = windows.entering[windows.border[middle]]
    before_behind = windows.entering[windows.border[behind]]
    size, stride_of_kind, num_states = loads.shape[1], strides(counts), 1
    for count in counts:
        num_states *= count + 1
    # By position: bytes made before it that are read in the middle.
    to_middle, counted = np.zeros(size), False
    for read in range(reads.maker.size):
        maker, reader = reads.maker[read], reads.reader[read]
        counted = counted and not reads.is_first[read]
        if maker < middle and middle <= reader < behind and not counted:
            to_middle[maker + 1] += reads.sizes[read]
            counted = True
    to_middle = np.cumsum(to_middle)
    stage_into[:num_states] = NOT_REACHED
    stage_into[0, 0] = 0
    for state in range(num_states):
        if stage_into[state, size - 1] != NOT_REACHED:
            return state
        for kind in range(counts.size):
            stride = stride_of_kind[kind]
            if state // stride % (counts[kind] + 1) == counts[kind]:
                continue
            for first in range(size - 1):
                if stage_into[state, first] == NOT_REACHED:
                    continue
                end = middle if first < middle else size - 1
                for last in range(first + 1, min(end, furthest[kind, first]) + 1):
                    length = last - first - 1
                    load = loads[kind, first, length]
                    if first < middle:
                        far = to_middle[last] - to_middle[first]
                        load += (far > 0) * links[2] + links[3] * far
                    else:
                        far = before_behind[first, length] - before_middle[first, length]
                        load += (far > 0) * links[0] + links[1] * far
                    at = behind if last == middle else last
                    if load <= limit and stage_into[state + stride, at] == NOT_REACHED:
                        stage_into[state + stride, at] = kind * size + first
    return NOT_REACHED


@compiled
def hosts_between(
    windows: Windows, reads: Reads, around: int, may_be_middle: Booleans, limit: float,
    stage_into: Integers, covered: Integers, into: Integers,
) -> tuple[int, int, int, int]:  # fmt: skip
    """The first middle, from a position to the one behind it, the state of the hosts that have run it, and that of a
    host of the group `around` that has run the rest; NOT_REACHED if there is none. `may_be_middle` [first, last].

    Leaves `into` and `stage_into` as `host_into` and `cover_ends` do.
    """
    size, rest = windows.loads.shape[2], np.zeros(into.shape[0], dtype=np.int64)
    for middle in range(1, size - 2):
        if windows.border[middle] == NOT_A_BORDER or not may_be_middle[middle, middle + 1 : size - 1].any():
            continue
        hosts_from(windows, rest, limit, middle, size - 2, stage_into, covered, into)
        for behind in range(middle + 1, size - 1):
            if not may_be_middle[middle, behind]:
                continue
            for state in range(1, into.shape[0]):
                if into[state, behind] != NOT_REACHED:
                    used = cover_ends(windows, reads, around, limit, middle, behind, stage_into)
                    if used != NOT_REACHED:
                        return middle, behind, state, used
                    break
    return NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED
