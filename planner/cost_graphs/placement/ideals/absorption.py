"""Items that lose nothing by joining a neighbour's device, whatever the placement: joined, they leave fewer ideals.

Item f joins g if no device gets slower when f moves there from wherever it was: on every class that g may run on, the
seconds of f and all hyperedges that g has no part in are at most the hyperedge between the two; and no class that f may
leave pays more than it is rid of. The order of the stages has to stand: g is the last of f's predecessors, or the first
of its successors. So the joined items are ordered as g was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from planner.cost_graphs.placement.ideals.contraction import ItemCosts, Items
from planner.partition.problem import Floats

# The order is held as one bitset of ancestors per item.
MAX_ITEMS = 8192


def absorb(items: Items, costs: ItemCosts, class_bytes: Floats) -> Items:
    """The same optimum over fewer items. O(items * (arcs + pins)) in the worst case."""
    if items.num_items > MAX_ITEMS:
        return items
    joining = _Joining(items, costs, class_bytes)
    joining.run()
    return _renumbered(items, joining.into, joining.before)


class _Joining:
    """`into`: the item that each joined one has joined. `before`: direct predecessors, among those that have not."""

    def __init__(self, items: Items, costs: ItemCosts, class_bytes: Floats) -> None:
        self._seconds, self._supported = costs.seconds.copy(), costs.supported.copy()
        self._bytes = costs.item_bytes.copy()
        self._num_ordered = items.num_ordered
        self._roomy = bool((costs.item_bytes.sum() <= class_bytes).all())
        count = items.num_items
        self.before: list[set[int]] = [set() for _ in range(count)]
        self._after: list[set[int]] = [set() for _ in range(count)]
        for source, target in zip(items.arc_source.tolist(), items.arc_target.tolist(), strict=True):
            self.before[target].add(source)
            self._after[source].add(target)
        self._ancestors = [0] * count
        for item in range(items.num_ordered):
            for other in self.before[item]:
                self._ancestors[item] |= self._ancestors[other] | 1 << other
        self._edges = {pins: table[:, 1] for pins, table in costs.edges.items()}
        self._pinned: list[set[tuple[int, ...]]] = [set() for _ in range(count)]
        for pins in self._edges:
            for pin in pins:
                self._pinned[pin].add(pins)
        self.into: dict[int, int] = {}

    def run(self) -> None:
        waiting = deque(range(self._num_ordered))
        queued = set(waiting)
        while waiting:
            item = waiting.popleft()
            queued.discard(item)
            other = next((other for other in self._candidates(item) if self._may_join(item, other)), None)
            if item in self.into or other is None:
                continue
            touched = {pin for pins in self._pinned[item] for pin in pins} | self.before[item] | self._after[item]
            self._join(item, other)
            waiting.extend(sorted(touched - queued - self.into.keys()))
            queued |= touched

    def _candidates(self, item: int) -> Iterator[int]:
        if item in self.into or item >= self._num_ordered:
            return
        before, after, ancestors = self.before[item], self._after[item], self._ancestors
        if before:
            last = max(before)
            if all(other == last or ancestors[last] >> other & 1 for other in before):
                yield last
        if after:
            first = min(after)
            if all(other == first or ancestors[other] >> first & 1 for other in after):
                yield first

    def _may_join(self, item: int, other: int) -> bool:
        if not (self._roomy or self._bytes[item] == 0) or (self._supported[:, other] & ~self._supported[:, item]).any():
            return False
        shared = self._edges.get((min(item, other), max(item, other)))
        paid = sum(
            (self._edges[pins] for pins in sorted(self._pinned[item]) if other not in pins),
            np.zeros(len(self._seconds)),
        )
        paid = paid if shared is None else paid - shared
        gained = paid + self._seconds[:, item]
        return (
            not ((gained > 0) & self._supported[:, other]).any()
            and not ((paid > self._seconds[:, item]) & self._supported[:, item]).any()
        )

    def _join(self, item: int, other: int) -> None:
        self.into[item] = other
        self._seconds[:, other] += self._seconds[:, item]
        self._supported[:, other] &= self._supported[:, item]
        self._bytes[other] += self._bytes[item]
        for pins in sorted(self._pinned[item]):
            seconds = self._edges.pop(pins)
            for pin in pins:
                self._pinned[pin].discard(pins)
            merged = tuple(sorted({other if pin == item else pin for pin in pins}))
            if len(merged) > 1:
                self._edges[merged] = self._edges[merged] + seconds if merged in self._edges else seconds
                for pin in merged:
                    self._pinned[pin].add(merged)
        before, after = self.before[item], self._after[item]
        for earlier in before:
            self._after[earlier].discard(item)
        for later in after:
            self.before[later].discard(item)
        if other in before:
            self._link(after, other, self.before, self._after)
        elif other in after:
            self._link(before, other, self._after, self.before)

    def _link(self, ends: set[int], other: int, back: list[set[int]], forth: list[set[int]]) -> None:
        for end in ends:
            back[end].add(other)
            forth[other].add(end)


def _renumbered(items: Items, joined: dict[int, int], before: list[set[int]]) -> Items:
    remaining = [item for item in range(items.num_items) if item not in joined]
    rank = np.full(items.num_items, -1, dtype=np.int64)
    rank[remaining] = np.arange(len(remaining))
    for item, target in joined.items():
        while target in joined:
            target = joined[target]
        rank[item] = rank[target]
    arcs = [(source, target) for target in remaining for source in sorted(before[target])]
    pairs = np.array(arcs, dtype=np.int64).reshape(-1, 2)
    return Items(
        item_of_node=rank[items.item_of_node],
        num_items=len(remaining),
        num_ordered=sum(item < items.num_ordered for item in remaining),
        arc_source=rank[pairs[:, 0]],
        arc_target=rank[pairs[:, 1]],
    )
