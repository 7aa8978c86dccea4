"""Items that may go to any device: each would double the order ideals, so the search leaves most of them out at first.

Left out, an item is charged to every stage at the least that the stage can pay because of it, whether the item is in
the stage or not: a relaxation. Items for which that is too little are kept, and searched like all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.placement.ideals.contraction import Hyperedges, ItemCosts, Items
from planner.partition.problem import Floats, Integers

# What leaving out one item makes wider is forgotten: items left out one after another would tie all together.
_MAX_PINS = 16
# The hyperedges at each item that is left out.
Pinned = dict[int, set[tuple[int, ...]]]


def without_free_items(costs: ItemCosts, items: Items, searched: Sequence[int]) -> tuple[ItemCosts, Integers]:
    """Costs that bound every load, whoever takes the items left out; and the old number of each item still there."""
    edges = dict(costs.edges)
    left = [*range(items.num_ordered), *searched]
    pinned: Pinned = {item: set() for item in range(items.num_ordered, items.num_items) if item not in searched}
    for pins in edges:
        _index(pinned, pins)
    for item in pinned:
        _leave_out(edges, pinned, item, costs)
    renumbered = {item: index for index, item in enumerate(left)}
    relaxed = ItemCosts(
        seconds=costs.seconds[:, left],
        supported=costs.supported[:, left],
        item_bytes=costs.item_bytes[left],
        edges={tuple(sorted(renumbered[pin] for pin in pins)): table for pins, table in edges.items()},
    )
    return relaxed, np.array(left, dtype=np.int64)


def _leave_out(edges: Hyperedges, pinned: Pinned, item: int, costs: ItemCosts) -> None:
    """Direct edges become one star over the neighbours; an edge of more pins loses its pin."""
    neighbours: dict[int, Floats] = {}
    for pins in sorted(pinned[item]):
        table = edges.pop(pins)
        for pin in pins:
            if pin in pinned and pin != item:
                pinned[pin].discard(pins)
        rest = tuple(pin for pin in pins if pin != item)
        if len(rest) == 1:
            neighbours[rest[0]] = table[:, 1]
        elif 1 < len(rest) <= _MAX_PINS:
            _add(edges, pinned, rest, np.minimum(table[:, :-1], table[:, 1:]))
    if 0 < len(neighbours) <= _MAX_PINS:
        own = np.where(costs.supported[:, item], costs.seconds[:, item], np.inf)
        _add(edges, pinned, tuple(sorted(neighbours)), _star(np.array(list(neighbours.values())), own))


def _star(seconds: Floats, own: Floats) -> Floats:
    """[k, neighbours + 1]: a stage with some neighbours pays for those inside, or for the item and the others."""
    lowest = np.cumsum(np.sort(seconds, axis=0), axis=0).T
    lowest = np.concatenate([np.zeros((lowest.shape[0], 1)), lowest], axis=1)
    return np.minimum(lowest, own[:, None] + lowest[:, ::-1])


def _add(edges: Hyperedges, pinned: Pinned, pins: tuple[int, ...], table: Floats) -> None:
    if (table > 0).any():
        edges[pins] = edges[pins] + table if pins in edges else table
        _index(pinned, pins)


def _index(pinned: Pinned, pins: tuple[int, ...]) -> None:
    for pin in pins:
        if pin in pinned:
            pinned[pin].add(pins)
