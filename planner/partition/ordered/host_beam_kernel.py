"""The loops of windows on hosts of too many kinds to count every choice of them: a beam, compiled.

Positions are indexes 0 to P - 1, the last being the program's end. A state is how many hosts of each group are in use,
and the positions up to which they may have run all. States of as many hosts are next to each other; of these those
stay whose hosts are busiest, which is to say that they have least time left over.
"""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.window_loads import NOT_A_BORDER, Windows
from planner.partition.ordered.windows_kernel import NOT_REACHED, NOT_TRIED, cover, strides
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers

# Of a state the furthest positions from which the next host goes on, and of these its furthest ends.
_MAX_STARTS, _MAX_ENDS = 8, 4


@compiled
def busiest_hosts(
    windows: Windows, work: Floats, speed: Floats, limit: float, stage_into: Integers, covered: Integers,
    used: Integers, into: Integers,
) -> tuple[int, int]:  # fmt: skip
    """The number of hosts in use and the state that have run all; NOT_REACHED if there is none among those kept.

    `work` [position]: seconds before it on a device of speed 1; `speed` [group]: of all devices of a host, which have
    so many seconds in each of the limit. Fills `used` [hosts, state, group] and `into` [hosts, state, position]: the
    state before, the group and the position at which the last host begins, as one number, or NOT_REACHED where none
    ends. `covered` [group, start, end] is NOT_TRIED.
    """
    hosts, size, width = windows.hosts, windows.loads.shape[2], used.shape[1]
    groups, last = hosts.size, size - 1
    spare = (hosts * speed).sum() - work[last] / limit
    digit = np.empty(groups, dtype=np.int64)
    # The sum over a state's hosts tells most states apart (Park and Miller 1988); the rest is compared.
    number = 1
    for group in range(groups):
        number = number * 48271 % 2147483647
        digit[group] = number
    furthest_of = np.full((groups, size), NOT_TRIED)
    used[0, 0], into[0, 0] = 0, NOT_REACHED
    into[0, 0, 0] = 0
    count, left_over, keys = 1, np.empty(width * groups), np.empty(width * groups, dtype=np.int64)
    for layer in range(used.shape[0] - 1):
        left_over[:] = np.inf
        for state in range(count):
            in_use = used[layer, state]
            spent, key = (in_use * speed).sum(), (in_use * digit).sum()
            own = last
            while into[layer, state, own] == NOT_REACHED:
                own -= 1
            for group in range(groups):
                keys[state * groups + group] = key + digit[group]
                if in_use[group] < hosts[group]:
                    end = _go_on(
                        windows, group, limit, into[layer, state], NOT_REACHED, stage_into, furthest_of, covered,
                        into[layer, state],
                    )  # fmt: skip
                    over = spent + speed[group] - work[end] / limit
                    if end > own and over <= spare:
                        left_over[state * groups + group] = over
        order, chosen = np.argsort(left_over[: count * groups], kind="mergesort"), np.empty(width, dtype=np.int64)
        count = 0
        for candidate in order:
            if left_over[candidate] == np.inf:
                break
            state, group, at = candidate // groups, candidate % groups, 0
            while at < count and not (
                chosen[at] == keys[candidate] and _has_one_more(used[layer + 1, at], used[layer, state], group)
            ):
                at += 1
            if at == width:
                continue
            if at == count:
                chosen[at] = keys[candidate]
                used[layer + 1, at] = used[layer, state]
                used[layer + 1, at, group] += 1
                into[layer + 1, at] = NOT_REACHED
                count += 1
            end = _go_on(
                windows, group, limit, into[layer, state], candidate, stage_into, furthest_of, covered,
                into[layer + 1, at],
            )  # fmt: skip
            if end == last:
                return layer + 1, at
        if count == 0:
            break
    return NOT_REACHED, NOT_REACHED


@compiled
def _has_one_more(used: Integers, fewer: Integers, group: int) -> bool:
    """Of the group, and as many of the others."""
    alike = True
    for other in range(used.size):
        alike = alike and used[other] == fewer[other] + (other == group)
    return alike


@compiled
def _go_on(
    windows: Windows, group: int, limit: float, reached: Integers, candidate: int, stage_into: Integers,
    furthest_of: Integers, covered: Integers, into: Integers,
) -> int:  # fmt: skip
    """The furthest end of a window of one more host of the group; 0 if it has none. Fills `into` for a candidate."""
    size = reached.size
    furthest, starts = 0, 0
    for start in range(size - 2, -1, -1):
        if reached[start] == NOT_REACHED:
            continue
        starts += 1
        if starts > _MAX_STARTS:
            break
        if furthest_of[group, start] == NOT_TRIED:
            furthest_of[group, start] = _without_leaving(windows, group, limit, start, stage_into)
        end, ends = furthest_of[group, start], 0
        while end > start and ends < _MAX_ENDS:
            if windows.border[end] != NOT_A_BORDER:
                if covered[group, start, end] == NOT_TRIED:
                    covered[group, start, end] = cover(windows, group, limit, start, end, stage_into)
                if covered[group, start, end] != NOT_REACHED:
                    furthest, ends = max(furthest, end), ends + 1
                    if candidate != NOT_REACHED and into[end] == NOT_REACHED:
                        into[end] = candidate * size + start
            end -= 1
    return furthest


@compiled
def _without_leaving(windows: Windows, group: int, limit: float, start: int, stage_into: Integers) -> int:
    """The furthest end of a window from there, if nothing had to leave it."""
    loads, counts, links = windows.loads[group], windows.counts[group], windows.links[group]
    entering, size, stride = windows.entering[windows.border[start]], loads.shape[1], strides(counts)
    far = start
    while far < size - 1 and windows.host_back[group, far + 1] <= start:
        far += 1
    num_states, furthest = stride[-1] * (counts[-1] + 1), start
    for state in range(num_states):
        for position in range(start, far + 1):
            stage_into[state, position] = NOT_REACHED
    stage_into[0, start] = 0
    for state in range(num_states):
        for kind in range(counts.size):
            if state // stride[kind] % (counts[kind] + 1) == counts[kind]:
                continue
            following = stage_into[state + stride[kind]]
            for first in range(start, far):
                if stage_into[state, first] == NOT_REACHED:
                    continue
                for last in range(first + 1, min(far, windows.furthest[group, kind, first]) + 1):
                    if following[last] == NOT_REACHED:
                        bytes_in = entering[first, last - first - 1]
                        load = loads[kind, first, last - first - 1]
                        if bytes_in > 0:
                            load += links[0] + links[1] * bytes_in
                        if load <= limit:
                            following[last] = 0
                            furthest = max(furthest, last)
    return furthest
