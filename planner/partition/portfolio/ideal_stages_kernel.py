"""The loops of `ideal_stages`, compiled. Stages are pairs of ideals: from `starts` to `ends`."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.least_over_walks import Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Booleans, Floats, Integers


@compiled
def stages_within(words: Words, seconds: Floats, barred: Integers, limit: float) -> tuple[Integers, Integers]:
    """Pairs of ideals of which the second holds the first and more, within `limit` seconds on some kind of device.

    `words` [ideal, word] are their members; `seconds` and `barred` [kind, ideal] of work, and nodes that it cannot run.
    """
    size = words.shape[0]
    starts, ends = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.int64)
    count = 0
    for start in range(size):
        for end in range(start + 1, size):
            within = False
            for kind in range(seconds.shape[0]):
                if seconds[kind, end] - seconds[kind, start] <= limit and barred[kind, end] == barred[kind, start]:
                    within = True
            for word in range(words.shape[1]):
                within = within and words[start, word] & ~words[end, word] == 0
            if within:
                if count == starts.size:
                    starts, ends = np.append(starts, starts), np.append(ends, ends)
                starts[count], ends[count] = start, end
                count += 1
    return starts[:count], ends[:count]


@compiled
def exchanges(
    starts: Integers, ends: Integers, made: Booleans, num_read: Integers, needed: Booleans, returned: Booleans,
    sizes: Floats, relay: bool, received: Floats, sent: Floats, counts: Integers,
) -> None:  # fmt: skip
    """Fills by stage the bytes that are `received` and `sent`, and `counts` [stage, 2] of such values.

    By ideal and value: whether it is `made` in it, how many of its nodes read it, and whether it is `needed` after it.
    """
    last = made.shape[0] - 1
    for stage in range(starts.size):
        start, end = starts[stage], ends[stage]
        for value in range(sizes.size):
            goes_on = needed[end, value] and end != last
            if made[start, value]:
                if relay:
                    arrives = needed[start, value]
                else:
                    arrives = num_read[end, value] > num_read[start, value] or (returned[value] and end == last)
                if arrives and start > 0:
                    received[stage] += sizes[value]
                    counts[stage, 0] += 1
                # What the caller gives, the first stage sends; what is relayed, each stage on the way.
                goes_on = goes_on and needed[start, value] and (relay or start == 0)
            else:
                goes_on = goes_on and made[end, value]
            if goes_on:
                sent[stage] += sizes[value]
                counts[stage, 1] += 1


@compiled
def between_neighbours(
    starts: Integers, ends: Integers, made: Booleans, num_read: Integers, returned: Booleans, sizes: Floats,
    made_begin: Integers, made_value: Integers, read_begin: Integers, read_value: Integers, last_begin: Integers,
    last_bundle: Integers, next_begin: Integers, next_bundle: Integers, received: Floats, sent: Floats,
) -> None:  # fmt: skip
    """Fills by stage the bytes that the stage before gives it at least, and those that it gives to the one behind it.

    The stage before holds some bundle that is last in the first ideal, which none of it reads: here the one whose
    values the stage reads least. The one behind holds a bundle that may come next after the second ideal, likewise.
    What bundles make and read, and last and next bundles of ideals, stand from one begin to the next.
    """
    final = made.shape[0] - 1
    for stage in range(starts.size):
        start, end = starts[stage], ends[stage]
        if start > 0:
            received[stage] = np.inf
            for at in range(last_begin[start], last_begin[start + 1]):
                size, bundle = 0.0, last_bundle[at]
                for index in range(made_begin[bundle], made_begin[bundle + 1]):
                    value = made_value[index]
                    if num_read[end, value] > num_read[start, value] or (returned[value] and end == final):
                        size += sizes[value]
                received[stage] = min(received[stage], size)
        if end < final:
            sent[stage] = np.inf
            for at in range(next_begin[end], next_begin[end + 1]):
                size, bundle = 0.0, next_bundle[at]
                for index in range(read_begin[bundle], read_begin[bundle + 1]):
                    value = read_value[index]
                    if made[end, value] and (start == 0 or not made[start, value]):
                        size += sizes[value]
                sent[stage] = min(sent[stage], size)


@compiled
def flowing_bytes(
    starts: Integers, ends: Integers, members: Booleans, made: Booleans, needed: Booleans, sizes: Floats,
    num_read: Integers, returned: Booleans, relays: bool, root_of_value: Integers, root_bytes: Floats,
    root_producer: Integers, access_begin: Integers, access_node: Integers, root_is_returned: Booleans,
    microbatches_in_flight: int,
) -> Floats:  # fmt: skip
    """By stage, the peak of one microbatch's activations and all buffers. `members` [ideal, node].

    Storages live from their producer, or the stage's start, to their last access there, or to its end where a later
    stage or the caller needs them. What enters and what leaves is buffered for each microbatch in flight.
    """
    size, n, final = root_bytes.size, members.shape[1], made.shape[0] - 1
    peaks = np.zeros(starts.size)
    entering, last, change = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(n + 1)
    for stage in range(starts.size):
        start, end = starts[stage], ends[stage]
        entering[:], last[:], change[:] = 0.0, -1, 0.0
        for root in range(size):
            for at in range(access_begin[root], access_begin[root + 1]):
                node = access_node[at]
                if members[end, node] and not members[start, node]:
                    last[root] = max(last[root], node)
            if root_is_returned[root] and end == final:
                last[root] = n - 1
        buffered = 0.0
        for value in range(sizes.size):
            root = root_of_value[value]
            # The caller's enter the first stage, and what is relayed each one until it is needed no more.
            enters = relays or start == 0 or num_read[end, value] > num_read[start, value]
            enters = enters or (returned[value] and end == final)
            if enters and made[start, value] and needed[start, value]:
                entering[root] += sizes[value]
                buffered += sizes[value]
            if made[end, value] and needed[end, value]:
                last[root] = n - 1
                if not made[start, value]:
                    buffered += sizes[value]
        for root in range(size):
            producer, live_bytes = root_producer[root], entering[root]
            if producer >= 0 and members[end, producer] and not members[start, producer]:
                change[producer] += root_bytes[root]
                live_bytes += root_bytes[root]
            change[0] += entering[root]
            change[last[root] + 1] -= live_bytes
        live = 0.0
        for node in range(n):
            live += change[node]
            peaks[stage] = max(peaks[stage], live)
        peaks[stage] += microbatches_in_flight * buffered
    return peaks
