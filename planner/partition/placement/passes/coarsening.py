"""Fewer and larger units, where all order ideals are too many: what is found there is a start for the finer search.

Joining units loses placements, so a bound found on joined units holds for none of the finer ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import rustworkx as rx

from planner.partition.placement.passes.contraction import CORE, FREE, PassUnits
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Floats, Integers
from planner.partition.topological_order import depth_first_order

# A joined unit may take this share of the largest accelerator.
LARGEST_SHARE = 0.25


def shorter_units(problem: PlacementProblem, units: PassUnits) -> PassUnits | None:
    """Each unit with the only reader of what it makes, if that reads nothing else; None where there is no such pair."""
    before, after = _neighbours(problem, units)
    used_bytes = unit_bytes(problem, units)
    limit = LARGEST_SHARE * _largest_device(problem)
    root = list(range(units.num_units))
    touched: set[int] = set()
    for unit in depth_first_order(after):
        if len(after[unit]) != 1 or unit in touched:
            continue
        (reader,) = after[unit]
        if len(before[reader]) == 1 and reader not in touched and used_bytes[unit] + used_bytes[reader] <= limit:
            root[reader] = unit
            touched.update((unit, reader))
    return _joined(problem, units, root) if touched else None


def segmented_units(problem: PlacementProblem, units: PassUnits, num_segments: int) -> PassUnits:
    """A chain of at most about twice `num_segments` units: a depth-first order, cut where bytes or counts fill up."""
    _, after = _neighbours(problem, units)
    used_bytes = unit_bytes(problem, units)
    limit = max(LARGEST_SHARE * _largest_device(problem), float(used_bytes.sum()) / num_segments)
    most = -(-units.num_units // num_segments)
    root = list(range(units.num_units))
    head, filled, count = -1, 0.0, 0
    for unit in depth_first_order(after):
        if head < 0 or count >= most or filled + used_bytes[unit] > limit:
            head, filled, count = unit, 0.0, 0
        root[unit] = head
        filled += used_bytes[unit]
        count += 1
    return _joined(problem, units, root)


def unit_bytes(problem: PlacementProblem, units: PassUnits) -> Floats:
    """[u] of core nodes."""
    core = (units.unit_of_node != FREE) & (units.option_of_node == CORE)
    used_bytes = np.zeros(units.num_units)
    np.add.at(used_bytes, units.unit_of_node[core], problem.node_bytes[core])
    return used_bytes


def _largest_device(problem: PlacementProblem) -> float:
    return float(problem.class_bytes[~problem.class_is_parallel].max(initial=0.0))


def _arcs(problem: PlacementProblem, units: PassUnits) -> Integers:
    core = (units.unit_of_node != FREE) & (units.option_of_node == CORE)
    maker, reader = problem.tensor_producer[problem.read_tensor], problem.read_node
    is_core = core[maker] & core[reader]
    arcs = np.stack([units.unit_of_node[maker[is_core]], units.unit_of_node[reader[is_core]]])
    return np.unique(arcs[:, arcs[0] != arcs[1]], axis=1)


def _neighbours(problem: PlacementProblem, units: PassUnits) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(units.num_units)]
    after: list[list[int]] = [[] for _ in range(units.num_units)]
    for first, second in _arcs(problem, units).T.tolist():
        before[second].append(first)
        after[first].append(second)
    return before, after


def _joined(problem: PlacementProblem, units: PassUnits, root: list[int]) -> PassUnits:
    """Units by their root, and what then waits for itself as one."""
    wait = rx.PyDiGraph()
    wait.add_nodes_from(range(units.num_units))
    wait.add_edges_from_no_data([(root[first], root[second]) for first, second in _arcs(problem, units).T.tolist()])
    heads = list(root)
    for component in rx.strongly_connected_components(wait):
        for unit in component:
            heads[unit] = min(component)
    final = [heads[root[unit]] for unit in range(units.num_units)]
    number = {head: index for index, head in enumerate(sorted(set(final)))}
    new = np.array([number[head] for head in final] + [FREE], dtype=np.int64)
    return replace(
        units,
        num_units=len(number),
        unit_of_node=new[units.unit_of_node],
        option_unit=new[units.option_unit],
    )
