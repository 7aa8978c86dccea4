"""The order ideals of the units, and every block between two of them.

An ideal is what has run at some moment of a single pass. A block fits an accelerator: a pair of ideals, a class, and
the least seconds that it can last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cost_graphs.single_pass.unit_graph import PassGraph
from planner.partition.arcs import after_of_arcs, depth_first_order
from planner.partition.lattice import as_bits, as_words, enumerate_ideals, members_of, order_of, prefixes
from planner.partition.problem import Floats, Integers

# Sums of bytes that are no whole numbers may round; a block this little over is let through and checked later.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassBlocks:
    """Blocks [b] by the ideal after them: `begin` [i + 1] into `before`, `serial_class` and `seconds` [b]."""

    begin: Integers
    before: Integers
    serial_class: Integers
    seconds: Floats


def pass_blocks(graph: PassGraph, ideals: PassIdeals, max_blocks: int) -> PassBlocks | None:
    """None if there are more than `max_blocks`. O(pairs of ideals within memory * border)."""
    from planner.cost_graphs.single_pass.chain_kernel import BlockTables, list_blocks

    inside = ideals.inside
    reads = np.zeros((graph.num_units, graph.num_tensors), dtype=np.float32)
    of_pin = np.repeat(np.arange(graph.num_tensors), np.diff(graph.reader_begin))
    reads[graph.reader_unit, of_pin] = 1
    num_read = (inside.astype(np.float32) @ reads).astype(np.int16)
    open_tensors = inside[:, graph.tensor_unit].astype(np.bool_) & (num_read < np.diff(graph.reader_begin)[None, :])
    border_begin = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(open_tensors.sum(axis=1), dtype=np.int64)])
    border_tensor = np.nonzero(open_tensors)[1]
    used_bytes = np.concatenate([inside @ graph.unit_bytes[:, None]], axis=1)[:, 0]
    runs = np.isfinite(graph.unit_seconds)
    busy_seconds = np.where(runs, graph.unit_seconds, 0.0) @ inside.T
    barred = (~runs).astype(np.float64) @ inside.T
    option_unit = graph.units.option_unit
    optional_bytes = graph.option_bytes @ inside[:, option_unit].T
    optional_seconds = graph.option_seconds @ inside[:, option_unit].T
    option_of_tensor = np.full(graph.num_tensors, -1, dtype=np.int64)
    sinks = np.flatnonzero(graph.option_tensor >= 0)
    option_of_tensor[graph.option_tensor[sinks]] = sinks
    # Cheapest loss per byte first, as a fractional knapsack leaves them.
    option_order = np.argsort(graph.option_loss / np.maximum(graph.option_bytes, 1e-300), axis=1, kind="stable")
    limits = graph.problem.class_bytes[graph.serial] * (1 + ROUNDING)
    tables = (
        inside, ideals.step_begin, ideals.step_from, num_read, border_begin, border_tensor, graph.tensor_unit,
        graph.transfer_seconds, used_bytes, busy_seconds, barred, option_unit, option_of_tensor, graph.option_bytes,
        graph.option_seconds, graph.option_loss, option_order, optional_bytes, optional_seconds, limits,
    )  # fmt: skip
    # Of one layout: the kernel is compiled for each that it is given.
    begin, before, classes, seconds = list_blocks(max_blocks, BlockTables._make(map(np.ascontiguousarray, tables)))
    if begin[-1] > max_blocks:
        return None
    return PassBlocks(begin=begin, before=before, serial_class=classes, seconds=seconds)


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
