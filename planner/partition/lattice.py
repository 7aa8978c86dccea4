"""The lattice of order ideals: sets of items that hold every predecessor of their members. Any first stages are one.

An ideal is a bitset, a number with the bit of each of its items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.partition.problem import Booleans, Integers

Words = npt.NDArray[np.uint64]

# Bitsets held at once, in words: 64 MiB.
MAX_WORDS = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """`before[i]`: the bitset of the direct predecessors of item i. `after[i]`: the direct successors."""

    num_items: int
    before: Sequence[int]
    after: Sequence[Sequence[int]]


def order_of(num_items: int, arc_source: Integers, arc_target: Integers) -> Order:
    before = [0] * num_items
    after: list[list[int]] = [[] for _ in range(num_items)]
    for source, target in zip(arc_source.tolist(), arc_target.tolist(), strict=True):
        before[target] |= 1 << source
        after[source].append(target)
    return Order(num_items=num_items, before=before, after=after)


def enumerate_ideals(order: Order, limit: int) -> dict[int, int] | None:
    """Each ideal, smaller ones first, with the bitset of the items that it can grow by. O(ideals * width).

    None if there are more than `limit`, or than MAX_WORDS hold.
    """
    num_words = -(-order.num_items // 64)
    limit = min(limit, MAX_WORDS // max(1, num_words))
    if order.num_items >= limit:
        return None
    level = {0: sum(1 << item for item, before in enumerate(order.before) if not before)}
    ideals = dict(level)
    for _ in range(order.num_items):
        level = _next_level(level, order, limit - len(ideals))
        ideals |= level
        if len(ideals) > limit:
            return None
    return ideals


def prefixes(orders: Iterable[Sequence[int]]) -> list[int]:
    """The distinct prefixes of topological orders, smaller ones first."""
    ideals = {0}
    for order in orders:
        ideal = 0
        for item in order:
            ideal |= 1 << item
            ideals.add(ideal)
    return sorted(ideals, key=lambda ideal: (ideal.bit_count(), ideal))


def members_of(ideal: int) -> list[int]:
    return [place for place, bit in enumerate(reversed(f"{ideal:b}")) if bit == "1"]


def as_words(ideals: Sequence[int], num_items: int) -> Words:
    """[ideals, words], little end first."""
    num_words = max(1, -(-num_items // 64))
    packed = b"".join(ideal.to_bytes(8 * num_words, "little") for ideal in ideals)
    return np.frombuffer(packed, dtype="<u8").reshape(len(ideals), num_words).astype(np.uint64)


def as_bits(words: Words, num_items: int) -> Booleans:
    """[ideals, items] whether the ideal holds the item."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=num_items, bitorder="little")
    return bits.view(np.bool_)


def _next_level(level: dict[int, int], order: Order, room: int) -> dict[int, int]:
    """Ideals of one more item, each with the bitset of items that may come next. Ends early beyond `room` ideals."""
    longer: dict[int, int] = {}
    before, after = order.before, order.after
    for ideal, ready in level.items():
        if len(longer) > room:
            return longer
        left = ready
        while left:
            bit = left & -left
            left ^= bit
            larger = ideal | bit
            if larger in longer:
                continue
            enabled = ready ^ bit
            for successor in after[bit.bit_length() - 1]:
                if before[successor] & larger == before[successor]:
                    enabled |= 1 << successor
            longer[larger] = enabled
    return longer
