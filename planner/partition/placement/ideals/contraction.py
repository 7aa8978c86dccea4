"""What a contiguous placement moves as one: the nodes of a colocation class, and of a cycle between such classes.

The quotient of the devices over forward arcs has to be acyclic: a cycle of classes over forward arcs shares a device.
An item without a forward node is free: it may go to any device, whatever the order of the stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.partition.arcs import components, distinct_arcs
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Booleans, Floats, Integers
from planner.partition.topological_order import after_of_arcs, least_first_order

# Sorted pins -> [k, pins + 1]: the seconds that a device of each class pays when it holds 0, 1, ... of the pins.
Hyperedges = dict[tuple[int, ...], Floats]


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
