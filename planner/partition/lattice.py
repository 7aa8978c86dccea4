"""The lattice of order ideals: sets of items that hold every predecessor of their members. Any first stages are one.

An ideal is a bitset, a number with the bit of each of its items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.partition.arcs import after_of_arcs
from planner.partition.problem import Booleans, Integers

Words = npt.NDArray[np.uint64]

# Bitsets held at once, in words: 64 MiB.
MAX_WORDS = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """The direct predecessors and successors of each item."""

    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]

    @property
    def num_items(self) -> int:
        return len(self.after)


def order_of(num_items: int, arc_source: Integers, arc_target: Integers) -> Order:
    sources, targets = arc_source.tolist(), arc_target.tolist()
    return Order(before=after_of_arcs(targets, sources, num_items), after=after_of_arcs(sources, targets, num_items))


def enumerate_ideals(order: Order, limit: int) -> dict[int, int] | None:
    """Each ideal, smaller ones first, with the bitset of the items that it can grow by. O(ideals * width).

    None if there are more than `limit`, or than MAX_WORDS hold.
    """
    num_words = -(-order.num_items // 64)
    limit = min(limit, MAX_WORDS // max(1, num_words))
    if order.num_items >= limit:
        return None
    before = [_bitset(items) for items in order.before]
    level = {0: _bitset(item for item, needed in enumerate(before) if not needed)}
    ideals = dict(level)
    for _ in range(order.num_items):
        level = _next_level(level, before, order.after, limit - len(ideals))
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


def _bitset(items: Iterable[int]) -> int:
    members = 0
    for item in items:
        members |= 1 << item
    return members


def _next_level(
    level: dict[int, int], before: Sequence[int], after: Sequence[Sequence[int]], room: int
) -> dict[int, int]:
    """Ideals of one more item, each with the bitset of items that may come next. Ends early beyond `room` ideals."""
    longer: dict[int, int] = {}
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
