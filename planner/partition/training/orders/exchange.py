"""Improves the orders of devices: moves passes within critical blocks, remembering which pairs changed places lately.

Tabu search on the disjunctive graph of a job shop: neighbourhood and estimate of Balas and Vazacopoulos (1998), memory
of Nowicki and Smutnicki (1996). A critical block is a run of passes of one device on a longest path; nothing shortens
the step that leaves the order of every block as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.training.step_graph import Jobs
from planner.partition.training.step_time import places, starts, tails

Array = np.ndarray[Any, Any]

# Pairs of passes that changed places lately are looked up in a table of this size; a clash forbids a move too many.
_TABLE = 1 << 16
# For how many moves a pair may not change places again, and how much of that is drawn at random: of the usual tabu
# tenures of job shops (8 to 14), and longer ones did no better on 40 random steps.
_TENURE, _SPREAD = 8, 12


@compiled
def _random(state: Array, below: int) -> int:
    """A linear congruential generator's next number: the same on every machine."""
    state[0] = (state[0] * 1103515245 + 12345) % 2147483648
    number: int = (state[0] >> 8) % below
    return number


@compiled
def _longest_path(value: float, offset: int, after: Array, start: Array, tail: Array, jobs: Jobs, path: Array) -> int:
    """Fills in a path of length `value`, along devices where it can be; how many passes it has."""
    length, number = 0, -1
    for at in range(jobs.seconds.size):
        candidate = (at + offset) % jobs.seconds.size
        if start[candidate] == 0.0 and tail[candidate] == value:
            number = candidate
            break
    while number >= 0:
        path[length] = number
        length += 1
        following = -1
        other = after[number]
        if other >= 0 and start[other] == start[number] + jobs.seconds[number] and start[other] + tail[other] == value:
            following = other
        if following < 0:
            for arc in range(jobs.arcs_from[number], jobs.arcs_from[number + 1]):
                other = jobs.out_target[arc]
                if start[other] == start[number] + jobs.out_delay[arc] and start[other] + tail[other] == value:
                    following = other
                    break
        number = following
    return length


@compiled
def _last_place(number: int, target: int, sequence: Array, place: Array, start: Array, jobs: Jobs) -> int:
    """How far back in its block, at most to place `target`, a pass may go without a circle.

    It may not pass what waits for it. Whatever waits for one of these begins no sooner than that makes something.
    """
    reach = np.inf
    for arc in range(jobs.arcs_from[number], jobs.arcs_from[number + 1]):
        other = jobs.out_target[arc]
        reach = min(reach, start[other] + jobs.lag[other])
        if jobs.device[other] == jobs.device[number]:
            target = min(target, place[other] - 1)
    while target > place[number] and start[sequence[target]] >= reach:
        target -= 1
    return target


@compiled
def _first_place(number: int, target: int, sequence: Array, place: Array, start: Array, jobs: Jobs) -> int:
    """How far to the front of its block it may go, likewise."""
    limit = -1.0
    for arc in range(jobs.arcs_into[number], jobs.arcs_into[number + 1]):
        other = jobs.into_source[arc]
        limit = max(limit, start[other])
        if jobs.device[other] == jobs.device[number]:
            target = max(target, place[other] + 1)
    while target < place[number] and start[sequence[target]] + jobs.lag[sequence[target]] <= limit:
        target += 1
    return target


@compiled
def _estimate(
    moved: int, low: int, high: int, is_later: bool, sequence: Array, first: int, end: int, start: Array, tail: Array,
    jobs: Jobs, heads: Array,
) -> float:  # fmt: skip
    """The longest path through places `low` to `high` of a device that has places `first` to `end`, once the pass at
    one of the two has moved to the other, as if nothing else changed."""
    last = sequence[low - 1] if low > first else -1
    free = start[last] + jobs.seconds[last] if last >= 0 else 0.0
    for position in range(low, high + 1):
        number = _pass_at(position, moved, low, high, is_later, sequence)
        begins = free
        for arc in range(jobs.arcs_into[number], jobs.arcs_into[number + 1]):
            begins = max(begins, start[jobs.into_source[arc]] + jobs.into_delay[arc])
        heads[position] = begins
        free = begins + jobs.seconds[number]
    behind = tail[sequence[high + 1]] if high + 1 < end else jobs.closing[jobs.device[moved]]
    longest = 0.0
    for position in range(high, low - 1, -1):
        number = _pass_at(position, moved, low, high, is_later, sequence)
        behind += jobs.seconds[number]
        for arc in range(jobs.arcs_from[number], jobs.arcs_from[number + 1]):
            behind = max(behind, jobs.out_delay[arc] + tail[jobs.out_target[arc]])
        longest = max(longest, heads[position] + behind)
    return longest


@compiled
def _pass_at(position: int, moved: int, low: int, high: int, is_later: bool, sequence: Array) -> int:
    """The pass at a place once `moved` has gone from `low` to `high`, or, not later, from `high` to `low`."""
    if is_later:
        return moved if position == high else sequence[position + 1]
    return moved if position == low else sequence[position - 1]


@compiled
def _is_forbidden(
    moved: int, low: int, high: int, is_later: bool, sequence: Array, forbidden: Array, step: int
) -> bool:
    """Whether the move undoes a change of places that is too young."""
    for position in range(low, high + 1):
        other = sequence[position]
        if other != moved:
            pair = other * sequence.size + moved if is_later else moved * sequence.size + other
            if forbidden[pair % _TABLE] >= step:
                return True
    return False


@compiled
def _move(moved: int, low: int, high: int, is_later: bool, sequence: Array, forbidden: Array, until: int) -> None:
    if is_later:
        for position in range(low, high):
            sequence[position] = sequence[position + 1]
            forbidden[(moved * sequence.size + sequence[position]) % _TABLE] = until
        sequence[high] = moved
    else:
        for position in range(high, low, -1):
            sequence[position] = sequence[position - 1]
            forbidden[(sequence[position] * sequence.size + moved) % _TABLE] = until
        sequence[low] = moved


@compiled
def improve(sequence: Array, begin: Array, jobs: Jobs, target: float, work: int, seed: int) -> tuple[float, Array]:
    """(least seconds, the sequence that has them). Ends at `target`, or once it has looked at `work` passes.

    Seconds are whole numbers, so that paths compare exactly. Infinite where the first sequence is a deadlock.
    """
    num_passes = jobs.seconds.size
    before, after = np.empty(num_passes, dtype=np.int64), np.empty(num_passes, dtype=np.int64)
    turn, place = np.empty(num_passes, dtype=np.int64), np.empty(num_passes, dtype=np.int64)
    start, tail, heads = np.empty(num_passes), np.empty(num_passes), np.empty(num_passes)
    path, forbidden = np.empty(num_passes, dtype=np.int64), np.zeros(_TABLE, dtype=np.int64)
    sequence, best_sequence, best = sequence.copy(), sequence.copy(), np.inf
    state = np.array([seed])
    step, looked_at = 0, 0
    while True:
        step += 1
        looked_at += num_passes
        places(sequence, begin, before, after)
        count = starts(before, after, jobs, start, turn)
        if count < num_passes:
            break
        tails(after, jobs, turn, tail)
        value = (start + tail).max()
        if value < best:
            best = value
            best_sequence[:] = sequence
        if best <= target or looked_at > work:
            break
        for position in range(num_passes):
            place[sequence[position]] = position
        offset = _random(state, num_passes)
        length = _longest_path(value, offset, after, start, tail, jobs, path)
        least, chosen, chosen_to, seen = np.inf, -1, -1, 0
        drawn, drawn_to = -1, -1
        at = 0
        while at < length:
            end = at
            while end + 1 < length and after[path[end]] == path[end + 1]:
                end += 1
            first, last = place[path[at]], place[path[end]]
            at = end + 1
            for position in range(first, last + 1):
                number = sequence[position]
                # To the block's end, one place later, to its start, one place earlier.
                for way in range(4):
                    is_later = way < 2
                    if (way == 1 and position + 1 >= last) or (way == 3 and position - 1 <= first):
                        continue
                    if is_later:
                        to = _last_place(number, last if way == 0 else position + 1, sequence, place, start, jobs)
                    else:
                        to = _first_place(number, first if way == 2 else position - 1, sequence, place, start, jobs)
                    if to == position or (to > position) != is_later:
                        continue
                    low, high, owner = min(position, to), max(position, to), jobs.device[number]
                    estimate = _estimate(
                        number, low, high, is_later, sequence, begin[owner], begin[owner + 1], start, tail, jobs, heads
                    )
                    seen += 1
                    looked_at += high - low + 1
                    if _random(state, seen) == 0:
                        drawn, drawn_to = position, to
                    if estimate < least and (
                        estimate < best or not _is_forbidden(number, low, high, is_later, sequence, forbidden, step)
                    ):
                        least, chosen, chosen_to = estimate, position, to
        if seen == 0:
            break
        if chosen < 0:
            chosen, chosen_to = drawn, drawn_to
        until = step + _TENURE + _random(state, _SPREAD)
        low, high = min(chosen, chosen_to), max(chosen, chosen_to)
        _move(sequence[chosen], low, high, chosen_to > chosen, sequence, forbidden, until)
    return best, best_sequence
