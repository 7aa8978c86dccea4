"""Order ideals: sets of bundles that hold all that their own read. A stage is the difference of two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.partition.lattice import Order, enumerate_ideals, members_of
from planner.partition.problem import Booleans
from planner.partition.program_orders import Bundles


@dataclass(frozen=True, kw_only=True, eq=False)
class Ideals:
    """`members` [ideals, bundles], smaller ideals first: the first is empty, the last holds all."""

    members: Booleans

    @property
    def count(self) -> int:
        return int(self.members.shape[0])

    @cached_property
    def words(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        """`members` as bits."""
        padded = np.zeros((self.count, -(-self.members.shape[1] // 64) * 64), dtype=np.bool_)
        padded[:, : self.members.shape[1]] = self.members
        return np.packbits(padded, axis=1).view(np.uint64)


def all_ideals(bundles: Bundles, limit: int) -> Ideals | None:
    """None if there are more than `limit`. O(ideals x bundles)."""
    before = [sum(1 << producer for producer in producers) for producers in bundles.before]
    following = enumerate_ideals(Order(num_items=bundles.count, before=before, after=bundles.after), limit)
    if following is None:
        return None
    ideals = sorted(following, key=lambda ideal: (ideal.bit_count(), ideal))
    members = np.zeros((len(ideals), bundles.count), dtype=np.bool_)
    for row, ideal in zip(members, ideals, strict=True):
        row[members_of(ideal)] = True
    return Ideals(members=members)
