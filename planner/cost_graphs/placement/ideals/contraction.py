"""What a contiguous placement moves as one: the nodes of a colocation class, and of a cycle between such classes.

The quotient of the devices over forward arcs has to be acyclic: a cycle of classes over forward arcs shares a device.
An item without a forward node is free: it may go to any device, whatever the order of the stages. Each free item would
double the order ideals, so the search leaves most of them out at first. Left out, an item is charged to every stage at
the least that the stage can pay because of it, whether the item is in the stage or not: a relaxation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.arcs import after_of_arcs, components, distinct_arcs, least_first_order
from planner.partition.problem import Booleans, Floats, Integers

# Sorted pins -> [k, pins + 1]: the seconds that a device of each class pays when it holds 0, 1, ... of the pins.
Hyperedges = dict[tuple[int, ...], Floats]
# What leaving out one item makes wider is forgotten: items left out one after another would tie all together.
_MAX_PINS = 16
# The hyperedges at each item that is left out.
Pinned = dict[int, set[tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """`item_of_node` [n]; items count from 0 in a topological order, the free ones last. Arcs are distinct pairs."""

    item_of_node: Integers
    num_items: int
    num_ordered: int
    arc_source: Integers
    arc_target: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemCosts:
    """By class [k] and item [i]. `seconds` is 0 where `supported` is False. A device's load is the seconds of its items
    and what it pays for each hyperedge."""

    seconds: Floats
    supported: Booleans
    item_bytes: Floats
    edges: Hyperedges

    @property
    def num_items(self) -> int:
        return int(self.item_bytes.size)


def items_of(problem: PlacementProblem) -> Items:
    """O((n + r) log n)."""
    source = problem.tensor_producer[problem.read_tensor]
    forward = ~(problem.is_backward[source] | problem.is_backward[problem.read_node])
    groups = problem.colocation
    count = int(groups.max()) + 1
    tails, heads = distinct_arcs(groups[source[forward]], groups[problem.read_node[forward]], count)
    component = components(tails, heads, count)
    tails, heads = distinct_arcs(component[tails], component[heads], count)
    free = np.ones(count, dtype=np.bool_)
    free[component[groups[~problem.is_backward]]] = False
    present = np.unique(component)
    ordered = set(present[~free[present]].tolist())
    # Whatever else is numbered has no arcs.
    after = after_of_arcs(tails.tolist(), heads.tolist(), count)
    order = [item for item in least_first_order(after) if item in ordered]
    rank = np.empty(count, dtype=np.int64)
    rank[[*order, *present[free[present]].tolist()]] = np.arange(present.size)
    return Items(
        item_of_node=rank[component[groups]],
        num_items=int(present.size),
        num_ordered=len(order),
        arc_source=rank[tails],
        arc_target=rank[heads],
    )


def item_costs(problem: PlacementProblem, item_of_node: Integers) -> ItemCosts:
    """O(n + r)."""
    count = int(item_of_node.max()) + 1
    seconds = np.zeros((problem.num_classes, count))
    supported = np.ones((problem.num_classes, count), dtype=np.bool_)
    for index, row in enumerate(problem.seconds):
        runs = np.isfinite(row)
        seconds[index] = np.bincount(item_of_node, np.where(runs, row, 0.0), count)
        supported[index, item_of_node[~runs]] = False
    return ItemCosts(
        seconds=np.where(supported, seconds, 0.0),
        supported=supported,
        item_bytes=np.bincount(item_of_node, problem.node_bytes, count).astype(np.float64),
        edges=_hyperedges(problem, item_of_node),
    )


def _hyperedges(problem: PlacementProblem, item_of_node: Integers) -> Hyperedges:
    """A tensor is paid once by each device that holds some of its items but not all, its producer's included."""
    count = int(item_of_node.max()) + 1
    tensors = np.concatenate([np.arange(problem.num_tensors), problem.read_tensor])
    items = item_of_node[np.concatenate([problem.tensor_producer, problem.read_node])]
    keys = np.unique(tensors * count + items)
    tensors, items = keys // count, keys % count
    starts = np.searchsorted(tensors, np.arange(problem.num_tensors + 1)).tolist()
    pins = items.tolist()
    costly = (problem.transfer_seconds.sum(axis=0) > 0).tolist()
    members: dict[tuple[int, ...], list[int]] = {}
    for tensor, (start, end) in enumerate(pairwise(starts)):
        if end - start > 1 and costly[tensor]:
            members.setdefault(tuple(pins[start:end]), []).append(tensor)
    return {key: _plain(problem.transfer_seconds[:, own], len(key)) for key, own in members.items()}


def _plain(seconds: Floats, num_pins: int) -> Floats:
    table = np.zeros((seconds.shape[0], num_pins + 1))
    table[:, 1:-1] = seconds.sum(axis=1)[:, None]
    return table


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
