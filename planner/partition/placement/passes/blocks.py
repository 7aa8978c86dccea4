"""Every block that fits an accelerator: a pair of ideals, a class, and the least seconds that it can last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.placement.passes.unit_ideals import PassIdeals
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
    from planner.partition.placement.passes.blocks_kernel import BlockTables, list_blocks

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
