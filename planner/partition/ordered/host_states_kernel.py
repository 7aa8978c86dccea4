"""The loops of `host_states`, compiled. Positions are indexes 0 to P - 1, sets of them rows of 64-bit words."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.host_states import HostArrays, HostStates
from planner.partition.ordered.least_over_walks import Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Integers

NONE = -1
# What a partly used host costs in the rank of a state, in positions: of 0.5 to 2, this left the least gaps.
_PARTLY_USED = 2


@compiled
def furthest_of_used(capacity: Integers, stride: Integers, forth: Integers, num_bases: int) -> Integers:
    """By kinds used, the furthest position they may come to; `forth` [kind, position]: where one device may lead to."""
    furthest = np.zeros(num_bases, dtype=np.int64)
    for base in range(num_bases):
        for kind in range(capacity.size):
            if base // stride[kind] % (capacity[kind] + 1) > 0:
                furthest[base] = max(furthest[base], forth[kind, furthest[base - stride[kind]]])
    return furthest


@compiled
def completions(
    hosts: HostArrays, ends: Words, first: Integers, furthest: Integers, num_stages: int, entered: Words, near: Words
) -> None:
    """Fills where what is unused can run the rest, were it known of the hosts only what the one in use has left.

    `entered` [base, link, word]: positions from which a stage that receives over the link may go on, where so many of
    each kind are used; `near` [base, row, word]: one on the host of the stage before, with the remainder of that row.
    Positions before `first` [base] have too few devices, beyond `furthest` none come.
    """
    num_bases, num_links = entered.shape[:2]
    num_kinds, last = hosts.capacity.size, ends.shape[1] - 1
    last_word, last_bit = last >> 6, np.uint64(1) << np.uint64(last & 63)
    for base in range(num_bases - 1, -1, -1):
        used = 0
        for kind in range(num_kinds):
            used += base // hosts.stride[kind] % (hosts.capacity[kind] + 1)
        may_end = num_stages == 0 or used + 1 == num_stages
        for kind in range(num_kinds):
            if base // hosts.stride[kind] % (hosts.capacity[kind] + 1) == hosts.capacity[kind]:
                continue
            after = base + hosts.stride[kind]
            for link in range(num_links):
                labels = hosts.label[kind, link] + hosts.offset[used]
                for start in range(first[base], min(furthest[base], last - 1) + 1):
                    word, bit = start >> 6, np.uint64(1) << np.uint64(start & 63)
                    leaves = may_end and ends[labels[num_links], start, last_word] & last_bit != 0
                    for out in range(num_links):
                        if hosts.is_between[out] and not leaves:
                            leaves = _meet(ends[labels[out], start], entered[after, out], word)
                    if hosts.is_between[link]:
                        goes_on = leaves
                        for index in range(hosts.entered_first[kind], hosts.entered_first[kind + 1]):
                            row = hosts.entered[index]
                            goes_on = goes_on or _meet(ends[labels[hosts.row_link[row]], start], near[after, row], word)
                        if goes_on:
                            entered[base, link, word] |= bit
                    for row in range(hosts.row_link.size):
                        fewer = hosts.fewer_of_row[row, kind]
                        if hosts.row_link[row] != link or fewer < 0:
                            continue
                        if leaves or _meet(ends[labels[link], start], near[after, fewer], word):
                            near[base, row, word] |= bit


@compiled
def _meet(one: Words, other: Words, first_word: int) -> bool:
    for word in range(first_word, one.size):  # noqa: SIM110
        if one[word] & other[word] != 0:
            return True
    return False


@compiled
def expand(
    hosts: HostArrays, ends: Words, entered: Words, near: Words, used: int, may_end: bool, states: HostStates,
    following: HostStates, table: Integers, steps_left: Integers, wanted_rest: Integers,
    wanted: Integers,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Fills `following` with the states of one stage more; `table` [a power of 2] finds them, and is blank.

    Returns (how many there are, NONE, NONE, NONE), or (state, kind, link out of the stage, remainder of its host before
    it) of a stage that ends at the program's end; if `wanted` (node, position) is not NONE, of one that leads there.
    """
    num_hubs, num_links, num_words, last = hosts.hub_link.size, entered.shape[1], ends.shape[2], ends.shape[1] - 1
    num_kinds, num_following = hosts.capacity.size, 0
    more = np.zeros(hosts.whole.size, dtype=np.int64)
    # [kind, link out, word]: where the stage may end; behind the links, whether that is the program's end.
    after = np.zeros((num_kinds, num_links + 1, num_words), dtype=np.uint64)
    target = np.zeros(num_words, dtype=np.uint64)
    searches = wanted[0] != NONE
    for state in range(states.node.size):
        if steps_left[0] < 0:
            break
        node, base = states.node[state], states.base[state]
        link = hosts.hub_link[node] if node < num_hubs else hosts.row_link[hosts.row[node - num_hubs]]
        rest = states.rest[state]
        after[:] = 0
        for kind in range(num_kinds):
            if base // hosts.stride[kind] % (hosts.capacity[kind] + 1) == hosts.capacity[kind]:
                continue
            for start in range(last):
                if states.bits[state, start >> 6] >> np.uint64(start & 63) & np.uint64(1) != 0:
                    for out in range(num_links + 1):
                        label = hosts.label[kind, link, out] + hosts.offset[used]
                        for word in range(start >> 6, num_words):
                            after[kind, out, word] |= ends[label, start, word]
                    steps_left[0] -= num_words
        for group in range(hosts.group_first.size - 1):
            if node < num_hubs and not hosts.hub_enters[node, group]:
                continue
            first, end = hosts.group_first[group], hosts.group_first[group + 1]
            for host in range(first, end):
                remainder = rest[host]
                if host > first and remainder == rest[host - 1]:
                    continue
                if node >= num_hubs and node != num_hubs + remainder:
                    continue
                for kind in range(num_kinds):
                    fewer = hosts.fewer[remainder, kind]
                    if fewer < 0:
                        continue
                    if may_end and after[kind, num_links, last >> 6] >> np.uint64(last & 63) & np.uint64(1) != 0:
                        return state, kind, num_links, remainder
                    next_base = base + hosts.stride[kind]
                    _with_fewer(rest, first, host, fewer, more)
                    # Behind the links, the next stage is on the same host.
                    for way in range(num_links + 1):
                        out = hosts.within[group] if way == num_links else way
                        next_node = num_hubs + fewer if way == num_links else hosts.leaves[group, way]
                        if out < 0 or next_node < 0:
                            continue
                        if searches:
                            word, bit = wanted[1] >> 6, np.uint64(wanted[1] & 63)
                            leads = after[kind, out, word] >> bit & np.uint64(1) != 0
                            if leads and wanted[0] == next_node and _are_equal(wanted_rest, more):
                                return state, kind, out, remainder
                            continue
                        some = np.uint64(0)
                        for word in range(num_words):
                            of_use = near[next_base, hosts.row[fewer], word]
                            if way < num_links:
                                of_use = entered[next_base, out, word]
                            target[word] = after[kind, out, word] & of_use
                            some |= target[word]
                        if some != 0:
                            steps_left[0] -= num_words
                            num_following = _keep(following, num_following, table, more, next_node, next_base, target)
    return num_following, NONE, NONE, NONE


@compiled
def _with_fewer(rest: Integers, first: int, host: int, fewer: int, more: Integers) -> None:
    """Fills `more` with the remainders where that host has `fewer`. Those of its group ascend."""
    more[:] = rest
    at = host
    while at > first and more[at - 1] > fewer:
        more[at] = more[at - 1]
        at -= 1
    more[at] = fewer


@compiled
def _keep(
    states: HostStates, count: int, table: Integers, rest: Integers, node: int, base: int, bits: Words
) -> int:  # fmt: skip
    """How many states there are with this one. Where there is no room it is left out, and the last base is NONE."""
    mask, place = table.size - 1, node
    for one in rest:
        place = (place * 31 + one) & 0xFFFFFFFFFFFF
    place = (place ^ (place >> 15)) & mask
    while table[place] >= 0:
        at = table[place]
        if states.node[at] == node and _are_equal(states.rest[at], rest):
            states.bits[at] |= bits
            return count
        place = (place + 1) & mask
    if count == states.node.size - 1:
        states.base[count] = NONE
        return count
    table[place] = count
    states.rest[count], states.node[count], states.base[count] = rest, node, base
    states.bits[count] = bits
    return count + 1


@compiled
def _are_equal(one: Integers, other: Integers) -> bool:
    for at in range(one.size):  # noqa: SIM110
        if one[at] != other[at]:
            return False
    return True


@compiled
def ranks(hosts: HostArrays, states: HostStates, entered: Words, near: Words) -> Integers:
    """By state: positions from the first from which the kinds unused can run the rest to its own last, less so many for
    each host that is partly used."""
    num_words = entered.shape[2]
    ranks = np.zeros(states.node.size, dtype=np.int64)
    for state in range(states.node.size):
        base, first, last = states.base[state], 64 * num_words, 0
        for word in range(num_words - 1, -1, -1):
            some = np.uint64(0)
            for link in range(entered.shape[1]):
                some |= entered[base, link, word]
            for row in range(near.shape[1]):
                some |= near[base, row, word]
            for bit in range(63, -1, -1):
                if some >> np.uint64(bit) & np.uint64(1) != 0:
                    first = 64 * word + bit
                if last == 0 and states.bits[state, word] >> np.uint64(bit) & np.uint64(1) != 0:
                    last = 64 * word + bit
        ranks[state] = last - first
        for host in range(hosts.whole.size):
            rest = states.rest[state, host]
            if rest < hosts.whole[host] and hosts.fewer[rest].max() >= 0:
                ranks[state] -= _PARTLY_USED
    return ranks
