"""Fewer and larger units, where all order ideals are too many: what is found there is a start for the finer search.

Joining units loses placements, so a bound found on joined units holds for none of the finer ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.partition.arcs import components
from planner.partition.placement.passes.contraction import FREE, PassUnits
from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.problem import Integers
from planner.partition.topological_order import after_of_arcs, depth_first_order

# A joined unit may take this share of the largest accelerator.
LARGEST_SHARE = 0.25


def segmented_units(graph: PassGraph, num_segments: int) -> PassUnits:
    """A chain of at most about twice `num_segments` units: a depth-first order, cut where bytes or counts fill up."""
    makers, readers = (units.tolist() for units in graph.unit_arcs())
    used_bytes = graph.unit_bytes
    limit = max(LARGEST_SHARE * _largest_device(graph), float(used_bytes.sum()) / num_segments)
    most = -(-graph.num_units // num_segments)
    root = np.arange(graph.num_units)
    head, filled, count = -1, 0.0, 0
    for unit in depth_first_order(after_of_arcs(makers, readers, graph.num_units)):
        if head < 0 or count >= most or filled + used_bytes[unit] > limit:
            head, filled, count = unit, 0.0, 0
        root[unit] = head
        filled += used_bytes[unit]
        count += 1
    return _joined(graph, root)


def _largest_device(graph: PassGraph) -> float:
    return float(graph.problem.class_bytes[graph.serial].max(initial=0.0))


def _joined(graph: PassGraph, root: Integers) -> PassUnits:
    """Units by their root, and what then waits for itself as one."""
    makers, readers = graph.unit_arcs()
    least = components(root[makers], root[readers], graph.num_units)
    names, number = np.unique(least[root], return_inverse=True)
    new = np.append(number, FREE)
    units = graph.units
    return replace(
        units,
        num_units=int(names.size),
        unit_of_node=new[units.unit_of_node],
        option_unit=new[units.option_unit],
    )
