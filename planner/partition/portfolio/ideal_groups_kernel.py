"""The loops of `ideal_groups`, compiled.

Each entry is an ideal, a row of `words`, that stands in all groups from `first_group` to `last_group` of the entry.
Groups ascend with what their ideals hold; the first and the last hold nothing and everything.
"""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.least_over_walks import Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Booleans, Floats, Integers


@compiled
def holds(words: Words, ideal: int, bundle: int) -> bool:
    return bundle < 0 or words[ideal, bundle >> 6] >> np.uint64(bundle & 63) & np.uint64(1) != 0


@compiled
def sums(words: Words, amount: Floats, total: Floats) -> None:
    """Adds to `total` [ideal, row] the `amount` [bundle, row] of all that an ideal holds."""
    for ideal in range(words.shape[0]):
        for word in range(words.shape[1]):
            left, bundle = words[ideal, word], 64 * word
            while left:
                if left & np.uint64(1):
                    for row in range(amount.shape[1]):
                        total[ideal, row] += amount[bundle, row]
                left >>= np.uint64(1)
                bundle += 1


@compiled
def work_beside(
    words: Words, seconds: Floats, ancestor_begin: Integers, ancestor: Integers, descendant_begin: Integers,
    descendant: Integers, least: Floats, most: Floats,
) -> None:  # fmt: skip
    """Adds the `seconds` of items, which are in no ideal: to `most` [ideal] where all ancestors of the item are held,
    to `least` [ideal] as well where any of its descendants is."""
    for ideal in range(words.shape[0]):
        for item in range(seconds.size):
            may, must = True, False
            for at in range(ancestor_begin[item], ancestor_begin[item + 1]):
                may = may and holds(words, ideal, ancestor[at])
            for at in range(descendant_begin[item], descendant_begin[item + 1]):
                must = must or holds(words, ideal, descendant[at])
            if may:
                most[ideal] += seconds[item]
            if must:
                least[ideal] += seconds[item]


@compiled
def extremes(
    ideal_of_entry: Integers, first_group: Integers, last_group: Integers, amount: Floats, least: Floats, most: Floats
) -> None:
    """Fills [row, group] the `least` and the `most` of an `amount` [ideal, row] that a group's ideals have."""
    least[:], most[:] = np.inf, -np.inf
    for entry in range(ideal_of_entry.size):
        ideal = ideal_of_entry[entry]
        for group in range(first_group[entry], last_group[entry] + 1):
            for row in range(amount.shape[1]):
                least[row, group] = min(least[row, group], amount[ideal, row])
                most[row, group] = max(most[row, group], amount[ideal, row])


@compiled
def first_and_certain(
    words: Words, ideal_of_entry: Integers, first_group: Integers, last_group: Integers, num_bundles: int
) -> tuple[Integers, Integers]:
    """By bundle: the first group of which some ideal holds it, and the first from which on all ideals do."""
    first = np.full(num_bundles, last_group[-1] + 1, dtype=np.int64)
    certain = np.zeros(num_bundles, dtype=np.int64)
    for entry in range(ideal_of_entry.size):
        for bundle in range(num_bundles):
            if holds(words, ideal_of_entry[entry], bundle):
                first[bundle] = min(first[bundle], first_group[entry])
            else:
                certain[bundle] = max(certain[bundle], last_group[entry] + 1)
    return first, certain


@compiled
def least_exchanged(
    words: Words, ideal_of_entry: Integers, first_group: Integers, last_group: Integers, first: Integers,
    certain: Integers, producer: Integers, sizes: Floats, reader_begin: Integers, reader: Integers, returned: Booleans,
    relay: bool, received: Floats, sent: Floats,
) -> None:  # fmt: skip
    """Fills the bytes that each stage between ideals of two groups exchanges at least: `received` [start, end] and
    `sent` [end, start].

    `producer` [values] is a bundle, -1 for the caller. The readers of a value stand from one begin to the next.
    `first` and `certain` are those of `first_and_certain`. An entry that stands in many groups goes to two rows, each
    for so many groups from the row's on as the largest power of two that is not more; rows are divided in two after it.
    """
    num_groups = received.shape[0]
    received[:], sent[:] = np.inf, np.inf
    # Of stages from the entry on, by the group of their end, and of those up to it, by the group of their start.
    arrived, left = np.zeros(num_groups), np.zeros(num_groups)
    reach = 1
    while 2 * reach <= (last_group - first_group).max() + 1:
        reach *= 2
    while reach:
        for entry in range(ideal_of_entry.size):
            length = last_group[entry] + 1 - first_group[entry]
            if length < reach or length >= 2 * reach:
                continue
            ideal = ideal_of_entry[entry]
            arrived[:], left[:] = 0.0, 0.0
            for value in range(sizes.size):
                maker = producer[value]
                if first_group[entry] == num_groups - 1 or not holds(words, ideal, maker):
                    continue
                soonest, is_needed = num_groups - 1, returned[value]
                for at in range(reader_begin[value], reader_begin[value + 1]):
                    if not holds(words, ideal, reader[at]):
                        soonest, is_needed = min(soonest, certain[reader[at]]), True
                if is_needed:
                    arrived[0 if relay else soonest] += sizes[value]
                    # Made by each stage that begins before any ideal that holds its maker; the first gives on what is
                    # the caller's.
                    left[num_groups - 1 if relay else (1 if maker < 0 else first[maker]) - 1] += sizes[value]
            for group in range(1, num_groups):
                arrived[group] += arrived[group - 1]
                left[num_groups - 1 - group] += left[num_groups - group]
            for row in (first_group[entry], last_group[entry] + 1 - reach):
                for group in range(num_groups):
                    received[row, group] = min(received[row, group], arrived[group])
                    sent[row, group] = min(sent[row, group], left[group])
        reach //= 2
        if reach:
            for row in range(num_groups - 1, reach - 1, -1):
                for group in range(num_groups):
                    received[row, group] = min(received[row, group], received[row - reach, group])
                    sent[row, group] = min(sent[row, group], sent[row - reach, group])


@compiled
def pairs_within(
    low: Floats, high: Floats, least: Floats, most: Floats, at_will: Floats, level: Integers, limit: float
) -> tuple[Integers, Integers]:
    """Pairs of groups between which a stage may stand, within `limit` seconds on some kind of device.

    From `low` to `high` [group] of the first kind's seconds are held, of which others' are `at_will` [kind] times at
    least, and from `least` to `most` [kind, group] more. Seconds and `level` [group] do not fall on the way.
    """
    num_groups = low.size
    starts, ends = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.int64)
    count = 0
    for start in range(num_groups):
        for end in range(start + 1, num_groups):
            within = False
            for kind in range(least.shape[0]):
                more = least[kind, end] - most[kind, start]
                within = within or more + at_will[kind] * (low[end] - high[start]) <= limit
            if within and high[end] >= low[start] and level[end] >= level[start]:
                if count == starts.size:
                    starts, ends = np.append(starts, starts), np.append(ends, ends)
                starts[count], ends[count] = start, end
                count += 1
    return starts[:count], ends[:count]
