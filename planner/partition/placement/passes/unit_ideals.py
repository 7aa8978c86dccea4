"""The order ideals of the units: each is what has run at some moment of a single pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.partition.lattice import as_bits, as_words, enumerate_ideals, members_of, order_of, prefixes
from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.problem import Integers
from planner.partition.topological_order import after_of_arcs, depth_first_order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassIdeals:
    """Ideals [i] by size, the empty one first and the full one last; `inside` [i, u].

    `step_begin` [i + 1] into `step_from`, `step_unit` [s]: the ideals that lack one unit, and that unit.
    """

    inside: npt.NDArray[np.uint8]
    step_begin: Integers
    step_from: Integers
    step_unit: Integers

    @property
    def num_ideals(self) -> int:
        return int(self.inside.shape[0])


def pass_ideals(graph: PassGraph, max_ideals: int) -> PassIdeals | None:
    """All of them, or None if there are more than `max_ideals`. O(ideals * width)."""
    order = order_of(graph.num_units, *graph.unit_arcs())
    ready = enumerate_ideals(order, max_ideals)
    if ready is None:
        return None
    ideals = list(ready)
    number = {ideal: index for index, ideal in enumerate(ideals)}
    steps: list[list[tuple[int, int]]] = [[] for _ in ideals]
    for index, ideal in enumerate(ideals):
        for unit in members_of(ready[ideal]):
            steps[number[ideal | 1 << unit]].append((index, unit))
    return _packed(graph.num_units, ideals, steps)


def prefix_ideals(graph: PassGraph) -> PassIdeals:
    """Those of one depth-first order only: its prefixes. Blocks are then its intervals."""
    makers, readers = (units.tolist() for units in graph.unit_arcs())
    order = depth_first_order(after_of_arcs(makers, readers, graph.num_units))
    steps = [[], *([(index, unit)] for index, unit in enumerate(order))]
    return _packed(graph.num_units, prefixes([order]), steps)


def _packed(num_units: int, ideals: list[int], steps: list[list[tuple[int, int]]]) -> PassIdeals:
    counts = [len(of_ideal) for of_ideal in steps]
    flat = np.array([step for of_ideal in steps for step in of_ideal], dtype=np.int64).reshape(-1, 2)
    return PassIdeals(
        inside=np.ascontiguousarray(as_bits(as_words(ideals, num_units), num_units)).view(np.uint8),
        step_begin=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)]),
        step_from=flat[:, 0].copy(),
        step_unit=flat[:, 1].copy(),
    )
