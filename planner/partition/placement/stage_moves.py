"""Items of a pipeline moved from stage to stage, one by one and a few at once, as long as the bottleneck falls.

For programs that could run in many orders: segments of a few of these leave most of what stages can be untried.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from planner.partition.arcs import grouped
from planner.partition.placement.problem import OutOfTime
from planner.partition.problem import Booleans, Floats, Integers

if TYPE_CHECKING:
    from planner.partition.placement.stage_moves_kernel import Pipeline, State

# Steps, of which a second has some 300,000: benchmark nets gain nearly all that they gain from more.
MIN_STEPS, STEPS_PER_ITEM, MAX_STEPS = 20_000, 300, 400_000
_MAX_TABLE = 20_000_000
_CHUNK_STEPS = 1 << 16
# Rounds, each from the best: the first temperature, and how often loads are squared in the energy.
_HEATS = ((3.0, 3), (0.3, 4), (1.0, 3), (0.1, 5))
# Rounds that large programs may have in vain, one after the other: deep transformers gain nothing in any.
_MOST_IN_VAIN = 2
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Items, the values between them and the arcs that say which stands before which.

    `maker` [values] is -1 for what the caller gives; `reads` are distinct (value, item) pairs, without makers; `arcs`
    distinct pairs (before, after) of items.
    """

    num_items: int
    maker: Integers
    is_returned: Booleans
    reads: tuple[Integers, Integers]
    arcs: tuple[Integers, Integers]

    @classmethod
    def of(
        cls,
        num_items: int,
        maker: Integers,
        is_returned: Booleans,
        reads: tuple[Integers, Integers],
        arcs: tuple[Integers, Integers],
    ) -> Flow:
        """Of (value, item) reads that may stand twice, and be of what the item makes itself."""
        value, reader = np.divmod(np.unique(reads[0] * num_items + reads[1]), num_items)
        apart = maker[value] != reader
        return cls(
            num_items=num_items, maker=maker, is_returned=is_returned, reads=(value[apart], reader[apart]), arcs=arcs
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """As in stage_moves_kernel.Pipeline. `spare` [stages]: bytes that may be used beyond those of the start."""

    seconds: Floats
    kind_of_stage: Integers
    link: Integers
    sent: Floats
    received: Floats
    latency: Floats
    held: Floats
    buffered: Floats
    spare: Floats


def is_too_large(flow: Flow, num_stages: int, num_links: int) -> bool:
    """For numbers of each value on each stage and on each unlike link: then nothing is to be moved."""
    return flow.maker.size * max(num_stages, num_links) > _MAX_TABLE


def with_items_moved(
    flow: Flow, costs: Costs, stage_of_item: Integers, *, effort: float, target_seconds: float, out_of_time: OutOfTime
) -> Integers:
    """[items] stages of the least bottleneck that was met, no worse than `stage_of_item`; ends at `target_seconds` or
    when its steps are spent. No stage is left empty."""
    from planner.partition.placement import stage_moves_kernel as kernel
    from planner.partition.placement.draws_kernel import EXPONENTIAL

    tails, heads = flow.arcs
    assert (stage_of_item[tails] <= stage_of_item[heads]).all(), "stages follow the arcs"
    pipeline, state = _pipeline(flow, costs), _state(flow, costs, stage_of_item)
    kernel.recount(pipeline, state)
    pipeline.room[:] = state.used + costs.spare
    state.best_value[0] = state.load.max()

    def is_over() -> bool:
        return bool(state.best_value[0] <= target_seconds * (1 + _NEGLIGIBLE)) or out_of_time()

    steps = max(MIN_STEPS, STEPS_PER_ITEM * flow.num_items)
    is_large = steps > MAX_STEPS
    round_steps = int(min(steps, MAX_STEPS) * effort) // len(_HEATS)
    in_vain = 0
    for heat, doublings in _HEATS:
        if is_large and in_vain == _MOST_IN_VAIN:
            break
        before = float(state.best_value[0])
        state.stage[:] = state.best
        for done in count(0, _CHUNK_STEPS):
            more = min(_CHUNK_STEPS, round_steps - done)
            if more <= 0 or is_over():
                break
            # Sums kept up step by step drift; from the stages alone they do not.
            kernel.recount(pipeline, state)
            ends = np.array([1 - done / round_steps, 1 - (done + more) / round_steps])
            kernel.anneal(pipeline, state, EXPONENTIAL, heat, ends, doublings, more)
        in_vain = 0 if state.best_value[0] < before else in_vain + 1
    return state.best.copy()


def _pipeline(flow: Flow, costs: Costs) -> Pipeline:
    from planner.partition.placement.stage_moves_kernel import Pipeline

    value, item = flow.reads
    made = np.flatnonzero(flow.maker >= 0)
    reader_first, reader = grouped(value, item, flow.maker.size)
    touching, touched = np.concatenate([item, flow.maker[made]]), np.concatenate([value, made])
    touched_first, touched = grouped(touching, touched, flow.num_items)
    tails, heads = flow.arcs
    before_first, before = grouped(heads, tails, flow.num_items)
    after_first, after = grouped(tails, heads, flow.num_items)
    return Pipeline(
        seconds=np.ascontiguousarray(costs.seconds),
        kind_of_stage=costs.kind_of_stage,
        maker=flow.maker,
        is_returned=flow.is_returned,
        reader_first=reader_first,
        reader=reader,
        touched_first=touched_first,
        touched=touched,
        before_first=before_first,
        before=before,
        after_first=after_first,
        after=after,
        link=np.ascontiguousarray(costs.link),
        sent=np.ascontiguousarray(costs.sent),
        received=np.ascontiguousarray(costs.received),
        latency=costs.latency,
        held=costs.held,
        buffered=costs.buffered,
        room=np.zeros(costs.spare.size),
    )


def _state(flow: Flow, costs: Costs, stage_of_item: Integers) -> State:
    from planner.partition.placement.draws_kernel import SEED
    from planner.partition.placement.stage_moves_kernel import MAX_MOVED, State

    items, values, stages = flow.num_items, flow.maker.size, costs.spare.size
    return State(
        stage=stage_of_item.astype(np.int64),
        readers=np.zeros((values, stages), dtype=np.int32),
        stages_reading=np.zeros(values, dtype=np.int64),
        messages=np.zeros((stages, stages), dtype=np.int64),
        waits=np.zeros((2, stages)),
        load=np.zeros(stages),
        used=np.zeros(stages),
        num_items=np.zeros(stages, dtype=np.int64),
        beside=np.zeros((2, items), dtype=np.int64),
        able=np.zeros((2, items), dtype=np.int64),
        num_able=np.zeros(2, dtype=np.int64),
        place=np.zeros((2, items), dtype=np.int64),
        moved=np.zeros(MAX_MOVED, dtype=np.int64),
        random=np.array([SEED], dtype=np.uint64),
        best=stage_of_item.astype(np.int64),
        best_value=np.zeros(1),
    )
