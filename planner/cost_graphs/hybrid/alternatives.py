"""One alternative for each node of a stage: the least seconds within the memory, decided against a limit.

A multiple-choice knapsack. The Lagrangian dual of the memory bounds it from below and gives a choice that fits; where
the limit lies between the two, the partial choices that no other beats in both seconds and bytes are listed item by
item (Nemhauser and Ullmann 1969), less those that the bound excludes, up to MAX_CHOICES.
"""

from __future__ import annotations

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers

FITS, NONE_FITS, UNDECIDED = 1, 0, -1
MAX_CHOICES = 1 << 17
# Sums of seconds in another order may differ by so much.
ROUNDING = 1e-12


@compiled
def choose(seconds: Floats, item_bytes: Floats, limit_seconds: float, memory_bytes: float, choice: Integers) -> int:
    """`seconds`, `item_bytes` [items, alternatives], inf for none. Writes `choice` [items] where it answers FITS."""
    count = len(seconds)
    lean = np.zeros(count, dtype=np.int64)
    lean_seconds, lean_bytes = _cheapest(seconds, item_bytes, np.inf, lean)
    if lean_bytes > memory_bytes:
        return NONE_FITS
    fast = np.zeros(count, dtype=np.int64)
    fast_seconds, fast_bytes = _cheapest(seconds, item_bytes, 0.0, fast)
    if fast_bytes <= memory_bytes:
        _copy(fast, choice)
        return FITS if fast_seconds <= limit_seconds else NONE_FITS
    if fast_seconds > limit_seconds:
        return NONE_FITS
    price = 0.0
    between = np.zeros(count, dtype=np.int64)
    while True:
        # Between what fits and what does not: the line through both, until nothing lies below it.
        if lean_seconds <= limit_seconds:
            _copy(lean, choice)
            return FITS
        price = (lean_seconds - fast_seconds) / (fast_bytes - lean_bytes)
        between_seconds, between_bytes = _cheapest(seconds, item_bytes, price, between)
        bound = between_seconds + price * (between_bytes - memory_bytes)
        if bound > limit_seconds * (1 + ROUNDING):
            return NONE_FITS
        on_line = lean_seconds + price * (lean_bytes - memory_bytes)
        if bound >= on_line - ROUNDING * abs(on_line) or between_bytes in (lean_bytes, fast_bytes):
            break
        if between_bytes > memory_bytes:
            fast_seconds, fast_bytes = between_seconds, between_bytes
        else:
            lean_seconds, lean_bytes = between_seconds, between_bytes
            _copy(between, lean)
    return _by_listing(seconds, item_bytes, price, limit_seconds, memory_bytes, choice)


@compiled
def _cheapest(seconds: Floats, item_bytes: Floats, price: float, choice: Integers) -> tuple[float, float]:
    """The alternatives of least seconds + price * bytes, the leaner of equals; an infinite price counts bytes alone."""
    total_seconds = total_bytes = 0.0
    for item in range(len(seconds)):
        best, best_cost, best_bytes = 0, np.inf, np.inf
        for alternative in range(seconds.shape[1]):
            if seconds[item, alternative] == np.inf:
                continue
            bytes_ = item_bytes[item, alternative]
            if price == np.inf:
                cost, tie = bytes_, seconds[item, alternative]
            else:
                cost, tie = seconds[item, alternative] + price * bytes_, bytes_
            if cost < best_cost or (cost == best_cost and tie < best_bytes):
                best, best_cost, best_bytes = alternative, cost, tie
        choice[item] = best
        total_seconds += seconds[item, best]
        total_bytes += item_bytes[item, best]
    return total_seconds, total_bytes


@compiled
def _by_listing(
    seconds: Floats, item_bytes: Floats, price: float, limit_seconds: float, memory_bytes: float, choices: Integers
) -> int:
    """Items whose choice matters most come first: the bound on the others is then nearly exact."""
    count, width = seconds.shape
    order = _by_spread(seconds)
    rest_cost, rest_seconds, rest_bytes = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1)
    for at in range(count - 1, -1, -1):
        item = order[at]
        least_cost = least_seconds = least_bytes = np.inf
        for alternative in range(width):
            if seconds[item, alternative] < np.inf:
                least_cost = min(least_cost, seconds[item, alternative] + price * item_bytes[item, alternative])
                least_seconds = min(least_seconds, seconds[item, alternative])
                least_bytes = min(least_bytes, item_bytes[item, alternative])
        rest_cost[at] = rest_cost[at + 1] + least_cost
        rest_seconds[at], rest_bytes[at] = rest_seconds[at + 1] + least_seconds, rest_bytes[at + 1] + least_bytes
    # Choices for the first items, level after level; of each what it adds to which of the level before.
    level_seconds, used = np.empty(MAX_CHOICES), np.empty(MAX_CHOICES)
    before, added = np.empty(MAX_CHOICES, dtype=np.int32), np.empty(MAX_CHOICES, dtype=np.int16)
    level_seconds[0] = used[0] = 0.0
    first, last = 0, 1
    heads = np.empty(width, dtype=np.int64)
    for at in range(count):
        item, end = order[at], last
        for alternative in range(width):
            heads[alternative] = first
        least_used = np.inf
        while True:
            # Every level is in ascending seconds: the next of the new one is the least head of its alternatives.
            best, best_seconds, best_used = -1, np.inf, np.inf
            for alternative in range(width):
                if seconds[item, alternative] == np.inf or heads[alternative] == last:
                    continue
                now_seconds = level_seconds[heads[alternative]] + seconds[item, alternative]
                now_used = used[heads[alternative]] + item_bytes[item, alternative]
                if now_seconds < best_seconds or (now_seconds == best_seconds and now_used < best_used):
                    best, best_seconds, best_used = alternative, now_seconds, now_used
            if best < 0:
                break
            heads[best] += 1
            bound = best_seconds + price * best_used + rest_cost[at + 1] - price * memory_bytes
            if (
                best_used >= least_used
                or best_used + rest_bytes[at + 1] > memory_bytes
                or best_seconds + rest_seconds[at + 1] > limit_seconds * (1 + ROUNDING)
                or bound > limit_seconds * (1 + ROUNDING)
            ):
                continue
            if end == MAX_CHOICES:
                return UNDECIDED
            level_seconds[end], used[end], before[end], added[end] = best_seconds, best_used, heads[best] - 1, best
            least_used = best_used
            end += 1
        first, last = last, end
    if first == last or level_seconds[first] > limit_seconds:
        return NONE_FITS
    choice = first
    for at in range(count - 1, -1, -1):
        choices[order[at]] = added[choice]
        choice = before[choice]
    return FITS


@compiled
def _by_spread(seconds: Floats) -> Integers:
    """Items, those first whose alternatives differ most in seconds; sorted by insertion, for few items."""
    count, width = seconds.shape
    spread = np.zeros(count)
    for item in range(count):
        least, most = np.inf, 0.0
        for alternative in range(width):
            if seconds[item, alternative] < np.inf:
                least, most = min(least, seconds[item, alternative]), max(most, seconds[item, alternative])
        spread[item] = most - least
    order = np.empty(count, dtype=np.int64)
    for item in range(count):
        place = item
        while place > 0 and spread[order[place - 1]] < spread[item]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = item
    return order


@compiled
def _copy(source: Integers, target: Integers) -> None:
    # Assigned as a slice this takes seconds to compile.
    for index in range(len(source)):
        target[index] = source[index]
