"""Arcs as two arrays, of tails and of heads: each arc once, and what a cycle ties together."""

from __future__ import annotations

import numpy as np
import rustworkx as rx

from planner.partition.problem import Integers


def distinct_arcs(tails: Integers, heads: Integers, num_items: int) -> tuple[Integers, Integers]:
    """Ascending by tail, then head, without arcs from an item to itself."""
    apart = tails != heads
    keys = np.unique(tails[apart] * num_items + heads[apart])
    return keys // num_items, keys % num_items


def components(tails: Integers, heads: Integers, num_items: int) -> Integers:
    """[items] the least of the items that wait for each other with it: of its strongly connected component."""
    graph = rx.PyDiGraph(multigraph=False)
    graph.add_nodes_from([None] * num_items)
    graph.add_edges_from_no_data(list(zip(tails.tolist(), heads.tolist(), strict=True)))
    least = np.arange(num_items)
    for members in rx.strongly_connected_components(graph):
        if len(members) > 1:
            least[list(members)] = min(members)
    return least
