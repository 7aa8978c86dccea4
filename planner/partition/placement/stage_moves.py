"""Items of a pipeline moved from stage to stage, one by one and a few at once, as long as the bottleneck falls, or a
training step, or a lone batch, is over sooner.

For programs that could run in many orders: segments of a few of these leave most of what stages can be untried, and
stages of segments seldom run side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner.partition.arcs import grouped
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Booleans, Floats, Integers

if TYPE_CHECKING:
    from planner.partition.placement.stage_moves_kernel import Pipeline, State
    from planner.partition.turns_kernel import Passes, Turns

# Steps, of which a second has some 300,000: benchmark nets gain nearly all that they gain from more.
MIN_STEPS, STEPS_PER_ITEM, MAX_STEPS = 20_000, 300, 400_000
# Anywhere an item has more ways to go: with ten times as many, chains gain one to three per cent. Each step looks at
# all pairs of devices: at so many in all, two seconds.
_TIMES_ANYWHERE, _MAX_STEPS_ANYWHERE, _MAX_PAIRS_ANYWHERE = 10, 1_000_000, 4e9
_MAX_TABLE = 20_000_000
_CHUNK_STEPS = 1 << 16
# Rounds, each from the best: the first temperature, and how often loads are squared in the energy.
_HEATS = ((3.0, 3), (0.3, 4), (1.0, 3), (0.1, 5))
# Likewise where a last pass's end is asked for, in shares of the best.
_HEATS_OF_ENDS = ((0.02, 0), (0.005, 0), (0.01, 0), (0.002, 0))
# Of ends, what all rounds may look at, in passes and stages: two to four seconds.
_MAX_LOOKED_AT, _PER_STAGE = 1.2e8, 20
# For one that has stages change devices, which counts all items again: as much as so many passes for each of them.
_LEAST_STEPS_PER_EXCHANGE, _ITEMS_PER_STEP, _PER_ITEM = 128, 4, 25
# Rounds that large programs may have in vain, one after the other: deep transformers gain nothing in any.
_MOST_IN_VAIN = 2
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Items, the values between them and the arcs that say which stands before which.

    `maker` [values] is -1 for what the caller gives; gradients of those that `comes_back` [values] says come back;
    `reads` are distinct (value, item) pairs, without makers; `arcs` distinct pairs (before, after) of items.
    """

    num_items: int
    maker: Integers
    is_returned: Booleans
    comes_back: Booleans
    reads: tuple[Integers, Integers]
    arcs: tuple[Integers, Integers]

    @classmethod
    def of(
        cls,
        num_items: int,
        maker: Integers,
        is_returned: Booleans,
        comes_back: Booleans,
        reads: tuple[Integers, Integers],
        arcs: tuple[Integers, Integers],
    ) -> Flow:
        """Of (value, item) reads that may stand twice, and be of what the item makes itself."""
        value, reader = np.divmod(np.unique(reads[0] * num_items + reads[1]), num_items)
        apart = maker[value] != reader
        return cls(
            num_items=num_items,
            maker=maker,
            is_returned=is_returned,
            comes_back=comes_back,
            reads=(value[apart], reader[apart]),
            arcs=arcs,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """As in stage_moves_kernel.Pipeline; what is left out costs nothing. `spare` [stages]: bytes that may be used
    beyond those of the start. `turns`: the last pass's end is to be least, and not the bottleneck. `is_anywhere`: each
    stage is all that one device runs, in no order; what the program returns is `returning` from that one."""

    seconds: Floats
    by_maker: Floats
    by_reader: Floats
    latency: Floats
    held: Floats
    buffered: Floats
    link: Integers
    kind: Integers
    memory: Floats
    spare: Floats
    handover: Floats | None = None
    saved: Floats | None = None
    given: Floats | None = None
    kept: Floats | None = None
    alike: Integers | None = None
    may_be_idle: bool = False
    is_anywhere: bool = False
    returning: int = -1
    turns: Turns | None = None


class Moved(NamedTuple):
    """`stage_of_item` [items], `device_of_stage` [stages]; stages that hold nothing are idle."""

    stage_of_item: Integers
    device_of_stage: Integers


def is_too_large(flow: Flow, num_stages: int, num_links: int) -> bool:
    """For numbers of each value on each stage and on each unlike link: then nothing is to be moved."""
    return flow.maker.size * max(num_stages, num_links) > _MAX_TABLE


def with_items_moved(
    flow: Flow,
    costs: Costs,
    stage_of_item: Integers,
    device_of_stage: Integers,
    *,
    effort: float,
    target_seconds: float,
    out_of_time: OutOfTime,
) -> Moved:
    """What was met of the least seconds, no worse than what is given; ends at `target_seconds` or when its steps are
    spent. Unless stages `may_be_idle` none is left empty; devices stay where they are unless some are `alike`."""
    from planner.partition.placement import stage_moves_kernel as kernel
    from planner.partition.placement.draws_kernel import EXPONENTIAL

    tails, heads = flow.arcs
    assert costs.is_anywhere or (stage_of_item[tails] <= stage_of_item[heads]).all(), "stages follow the arcs"
    anneal = kernel.anneal_anywhere if costs.is_anywhere else kernel.anneal
    pipeline, state = pipeline_of(flow, costs), state_of(flow, costs, stage_of_item, device_of_stage)
    passes = passes_for(costs)
    kernel.recount(pipeline, state)
    pipeline.fixed[:] = costs.memory[device_of_stage] - costs.spare - state.sums[kernel.USED]
    kernel.energy(pipeline, state, passes, 0, np.inf)
    state.best_value[0] = state.value[0]

    def is_over() -> bool:
        return bool(state.best_value[0] <= target_seconds * (1 + _NEGLIGIBLE)) or out_of_time()

    steps, most = max(MIN_STEPS, STEPS_PER_ITEM * flow.num_items), float(MAX_STEPS)
    if costs.is_anywhere:
        steps, most = _TIMES_ANYWHERE * steps, min(_MAX_STEPS_ANYWHERE, _MAX_PAIRS_ANYWHERE / device_of_stage.size**2)
    is_large = steps > most
    heats = _HEATS
    if costs.turns is not None:
        looked_at = device_of_stage.size * (2 * costs.turns.microbatches + _PER_STAGE)
        looked_at += _PER_ITEM * flow.num_items // steps_per_exchange(flow)
        heats, most = _HEATS_OF_ENDS, min(most, _MAX_LOOKED_AT / looked_at)
    round_steps = int(min(steps, most) * effort) // len(heats)
    in_vain = 0
    for heat, doublings in heats:
        if is_large and in_vain == _MOST_IN_VAIN:
            break
        before = float(state.best_value[0])
        state.stage[:], state.device[:] = state.best, state.best_device
        for done in count(0, _CHUNK_STEPS):
            more = min(_CHUNK_STEPS, round_steps - done)
            if more <= 0 or is_over():
                break
            # Sums kept up step by step drift; from the stages alone they do not.
            kernel.recount(pipeline, state)
            ends = np.array([1 - done / round_steps, 1 - (done + more) / round_steps])
            anneal(pipeline, state, passes, EXPONENTIAL, heat, ends, doublings, more)
        in_vain = 0 if state.best_value[0] < before else in_vain + 1
    return Moved(state.best.copy(), state.best_device.copy())


def steps_per_exchange(flow: Flow) -> int:
    return max(_LEAST_STEPS_PER_EXCHANGE, flow.num_items // _ITEMS_PER_STEP)


def pipeline_of(flow: Flow, costs: Costs) -> Pipeline:
    from planner.partition.placement.stage_moves_kernel import ItemCosts, Pipeline, ValueCosts
    from planner.partition.turns_kernel import ONCE

    value, item = flow.reads
    made = np.flatnonzero(flow.maker >= 0)
    reader_first, reader = grouped(value, item, flow.maker.size)
    touching, touched = np.concatenate([item, flow.maker[made]]), np.concatenate([value, made])
    touched_first, touched = grouped(touching, touched, flow.num_items)
    tails, heads = flow.arcs
    before_first, before = grouped(heads, tails, flow.num_items)
    after_first, after = grouped(tails, heads, flow.num_items)
    num_stages, num_devices = costs.spare.size, costs.kind.size
    kept = np.zeros(num_stages) if costs.kept is None else costs.kept
    return Pipeline(
        of_items=ItemCosts(
            seconds=np.ascontiguousarray(costs.seconds),
            held=costs.held,
            saved=np.zeros(flow.num_items) if costs.saved is None else costs.saved,
            kept=kept,
        ),
        of_values=ValueCosts(
            seconds=np.stack([costs.by_maker, costs.by_reader], axis=1),
            link=np.ascontiguousarray(costs.link),
            buffered=costs.buffered,
            given=np.zeros(flow.maker.size) if costs.given is None else costs.given,
            kept=kept,
            comes_back=flow.comes_back,
            is_input=flow.maker < 0,
        ),
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
        latency=np.ascontiguousarray(costs.latency),
        handover=np.zeros_like(costs.latency) if costs.handover is None else np.ascontiguousarray(costs.handover),
        kind=costs.kind,
        alike=np.arange(num_devices) if costs.alike is None else costs.alike,
        memory=costs.memory,
        fixed=np.zeros(num_stages),
        may_be_idle=costs.may_be_idle,
        steps_per_exchange=0 if costs.alike is None else steps_per_exchange(flow),
        by_last_end=costs.turns is not None,
        is_anywhere=costs.is_anywhere,
        returning=range(num_stages)[costs.returning],
        turns=costs.turns or ONCE,
    )


def passes_for(costs: Costs) -> Passes:
    from planner.partition.turns_kernel import passes_of

    return passes_of(costs.spare.size, costs.turns.microbatches if costs.turns else 1)


def state_of(flow: Flow, costs: Costs, stage_of_item: Integers, device_of_stage: Integers) -> State:
    from planner.partition.placement.draws_kernel import SEED
    from planner.partition.placement.stage_moves_kernel import MAX_MOVED, NUM_SUMS, State

    items, values, stages, ways = flow.num_items, flow.maker.size, device_of_stage.size, costs.by_maker.shape[0]
    return State(
        stage=stage_of_item.astype(np.int64),
        device=device_of_stage.astype(np.int64),
        readers=np.zeros((values, stages), dtype=np.int32),
        stages_reading=np.zeros(values, dtype=np.int64),
        messages=np.zeros((ways, stages, stages), dtype=np.int64),
        given=np.zeros(stages, dtype=np.int64),
        waits=np.zeros((3, 2, stages)),
        sums=np.zeros((NUM_SUMS, stages)),
        num_items=np.zeros(stages, dtype=np.int64),
        beside=np.zeros((2, items), dtype=np.int64),
        able=np.zeros((2, items), dtype=np.int64),
        num_able=np.zeros(2, dtype=np.int64),
        place=np.zeros((2, items), dtype=np.int64),
        moved=np.zeros(MAX_MOVED, dtype=np.int64),
        rank=np.zeros(stages, dtype=np.int64),
        random=np.array([SEED], dtype=np.uint64),
        best=stage_of_item.astype(np.int64),
        best_device=device_of_stage.astype(np.int64),
        best_value=np.ones(1),
        value=np.zeros(1),
    )
