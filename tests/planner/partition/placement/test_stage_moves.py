"""Items that move from stage to stage: what the search keeps up step by step is what the stages alone give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost_graphs.placement import contiguous
from planner.cost_graphs.placement.contiguous import best_contiguous
from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.partition.arcs import components, distinct_arcs
from planner.partition.objective import PipelineSchedule, Training
from planner.partition.out_of_time import never
from planner.partition.placement import stage_moves
from planner.partition.placement import stage_moves_kernel as kernel
from planner.partition.placement.draws_kernel import EXPONENTIAL
from planner.partition.placement.stage_moves import Costs, Flow, with_items_moved
from planner.partition.problem import Floats, Integers
from planner.partition.turns_kernel import ONCE, Turns, turns_of
from tests.nightly import nightly
from tests.planner.cost_graphs.placement.small_problems import random_problem

STAGES = 4


def random_flow(number: int, num_items: int = 30) -> Flow:
    """Values 0 and 1 are the caller's, the last item's goes to it; item k makes value k + 2."""
    random = np.random.default_rng(number)
    reads = {(int(random.integers(item + 2)), item) for item in range(num_items) for _ in range(2)}
    value, reader = np.array(sorted(reads)).T
    made = value >= 2
    return Flow(
        num_items=num_items,
        maker=np.append([-1, -1], np.arange(num_items)),
        is_returned=np.arange(num_items + 2) == num_items + 1,
        comes_back=random.random(num_items + 2) < 0.7,
        reads=(value, reader),
        arcs=(value[made] - 2, reader[made]),
    )


def random_costs(number: int, flow: Flow, spare: float = np.inf, turns: Turns | None = None) -> Costs:
    """Two kinds of devices, two of each; three links. There and back; in turns stages may be idle, and change devices
    of which two are alike."""
    random = np.random.default_rng(number)
    values, in_turns = flow.maker.size, turns is not None
    rows = 3 if turns is not None and turns.splits else 2
    return Costs(
        seconds=random.integers(1, 9, (rows, 2, flow.num_items)).astype(float),
        by_maker=random.integers(0, 3, (2, 3, values)).astype(float),
        by_reader=random.integers(0, 3, (2, 3, values)).astype(float),
        latency=np.array([[0.0, 0.5, 1.5], [0.25, 0.0, 2.0]]),
        handover=np.array([[0.0, 0.125, 0.0], [1.0, 0.0, 0.0]]),
        held=random.integers(0, 5, flow.num_items).astype(float),
        buffered=random.integers(0, 5, values).astype(float),
        saved=random.integers(0, 3, flow.num_items).astype(float),
        given=random.integers(0, 3, values).astype(float),
        kept=np.arange(STAGES, 0, -1).astype(float),
        link=random.integers(0, 3, (STAGES, STAGES)),
        kind=np.array([0, 1, 1, 0]),
        memory=np.full(STAGES, 1e6),
        spare=np.full(STAGES, spare),
        alike=np.array([0, 1, 1, 2]) if in_turns else None,
        may_be_idle=in_turns,
        turns=turns,
    )


def in_quarters(flow: Flow) -> Integers:
    return np.arange(flow.num_items) * STAGES // flow.num_items


ONE_F_ONE_B, ZERO_BUBBLE = (
    turns_of(Training(schedule=schedule, microbatches=3))
    for schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE)
)
ALL_TURNS = [None, ONCE, ONE_F_ONE_B, ZERO_BUBBLE]


@pytest.mark.parametrize("turns", ALL_TURNS)
@pytest.mark.parametrize("number", range(6))
def test_running_sums_counts_and_lists_hold_after_many_steps(number: int, turns: Turns | None) -> None:
    flow = random_flow(number)
    costs = random_costs(number, flow, turns=turns)
    pipeline, passes = stage_moves.pipeline_of(flow, costs), stage_moves.passes_for(costs)
    state = stage_moves.state_of(flow, costs, in_quarters(flow), np.arange(STAGES))
    first = value_of(flow, costs, in_quarters(flow), np.arange(STAGES))
    kernel.recount(pipeline, state)
    state.best_value[0] = first
    kernel.anneal(pipeline, state, passes, EXPONENTIAL, 0.5, np.array([1.0, 0.5]), 3, 5_000)
    names = ("readers", "stages_reading", "messages", "sums", "num_items", "beside", "num_able")
    running = {name: getattr(state, name).copy() for name in names}
    able = [set(row[:count].tolist()) for row, count in zip(state.able, state.num_able, strict=True)]
    kernel.recount(pipeline, state)
    for name, expected in running.items():
        np.testing.assert_allclose(getattr(state, name), expected, atol=1e-9, err_msg=name)
    assert able == [set(row[:count].tolist()) for row, count in zip(state.able, state.num_able, strict=True)]
    assert state.best_value[0] < first
    assert state.best_value[0] == pytest.approx(value_of(flow, costs, state.best, state.best_device))
    if turns is None:
        assert state.best_device.tolist() == list(range(STAGES))


@pytest.mark.parametrize("number", range(6))
def test_anywhere_running_sums_hold_and_what_a_device_cannot_run_stays_away(number: int) -> None:
    flow = random_flow(number)
    costs = replace(random_costs(number, flow), is_anywhere=True, may_be_idle=True)
    costs.seconds[:, 1, ::5] = np.inf
    start = np.where(np.arange(flow.num_items) % 5 == 0, 0, in_quarters(flow))
    pipeline, passes = stage_moves.pipeline_of(flow, costs), stage_moves.passes_for(costs)
    state = stage_moves.state_of(flow, costs, start, np.arange(STAGES))
    first = value_of(flow, costs, start, np.arange(STAGES))
    kernel.recount(pipeline, state)
    state.best_value[0] = first
    kernel.anneal_anywhere(pipeline, state, passes, EXPONENTIAL, 0.5, np.array([1.0, 0.5]), 3, 5_000)
    names = ("readers", "stages_reading", "messages", "sums", "num_items")
    running = {name: getattr(state, name).copy() for name in names}
    kernel.recount(pipeline, state)
    for name, expected in running.items():
        np.testing.assert_allclose(getattr(state, name), expected, atol=1e-9, err_msg=name)
    assert state.best_value[0] < first
    assert state.best_value[0] == pytest.approx(value_of(flow, costs, state.best, state.best_device))
    tails, heads = flow.arcs
    assert (state.best[tails] > state.best[heads]).any(), "values go either way"


def test_anywhere_items_move_with_those_around_them() -> None:
    """Nothing is accepted that is worse: one item alone at an end costs more to send than it spares."""
    chained = Flow(
        num_items=12,
        maker=np.append([-1], np.arange(12)),
        is_returned=np.zeros(13, dtype=np.bool_),
        comes_back=np.zeros(13, dtype=np.bool_),
        reads=(np.arange(12), np.arange(12)),
        arcs=(np.arange(11), np.arange(1, 12)),
    )
    assert coldly_moved(chained, plain_costs(np.ones(12), value_seconds=1.5, devices=3), np.zeros(12)) < 8.0


def test_anywhere_two_items_change_devices_that_are_full() -> None:
    none = np.array([], dtype=np.int64)
    alone = Flow(
        num_items=4,
        maker=np.arange(4),
        is_returned=np.zeros(4, dtype=np.bool_),
        comes_back=np.zeros(4, dtype=np.bool_),
        reads=(none, none),
        arcs=(none, none),
    )
    costs = plain_costs(np.array([3.0, 3.0, 1.0, 1.0]), value_seconds=0.0, devices=2)
    full = replace(costs, held=np.ones(4), memory=np.full(2, 2.0))
    assert coldly_moved(alone, full, np.array([0, 0, 1, 1])) == 4.0


def plain_costs(seconds: Floats, value_seconds: float, devices: int) -> Costs:
    """Of equal devices anywhere, over equal links."""
    items = seconds.size
    values = items + 1 if value_seconds else items
    return Costs(
        seconds=seconds.reshape(1, 1, items),
        by_maker=np.full((1, 1, values), value_seconds),
        by_reader=np.full((1, 1, values), value_seconds),
        latency=np.zeros((1, 1)),
        held=np.zeros(items),
        buffered=np.zeros(values),
        link=np.zeros((devices, devices), dtype=np.int64),
        kind=np.zeros(devices, dtype=np.int64),
        memory=np.full(devices, 1e6),
        spare=np.zeros(devices),
        may_be_idle=True,
        is_anywhere=True,
    )


def coldly_moved(flow: Flow, costs: Costs, start: Integers | Floats) -> float:
    """The least load that steps come to of which none makes it worse."""
    devices, stage_of_item = np.arange(costs.spare.size), start.astype(np.int64)
    pipeline, passes = stage_moves.pipeline_of(flow, costs), stage_moves.passes_for(costs)
    state = stage_moves.state_of(flow, costs, stage_of_item, devices)
    kernel.recount(pipeline, state)
    state.best_value[0] = value_of(flow, costs, stage_of_item, devices)
    kernel.anneal_anywhere(pipeline, state, passes, EXPONENTIAL, 1e-12, np.array([1.0, 0.5]), 3, 5_000)
    return float(state.best_value[0])


def value_of(flow: Flow, costs: Costs, stage_of_item: Integers, device_of_stage: Integers) -> float:
    pipeline, passes = stage_moves.pipeline_of(flow, costs), stage_moves.passes_for(costs)
    state = stage_moves.state_of(flow, costs, stage_of_item, device_of_stage)
    kernel.recount(pipeline, state)
    kernel.energy(pipeline, state, passes, 0, np.inf)
    return float(state.value[0])


@pytest.mark.parametrize("turns", ALL_TURNS)
@pytest.mark.parametrize("number", range(6))
def test_items_stay_in_their_order_and_memory_suffices(number: int, turns: Turns | None) -> None:
    flow = random_flow(number)
    costs = random_costs(number, flow, spare=6.0, turns=turns)
    start, devices = in_quarters(flow), np.arange(STAGES)
    moved, to = with_items_moved(flow, costs, start, devices, effort=1.0, target_seconds=0.0, out_of_time=never)
    assert not np.array_equal(moved, start)
    assert value_of(flow, costs, moved, to) < value_of(flow, costs, start, devices)
    tails, heads = flow.arcs
    assert (moved[tails] <= moved[heads]).all()
    sizes = np.bincount(moved, minlength=STAGES)
    assert sizes[[0, -1]].all()
    assert turns is not None or sizes.all()
    used = []
    for stages, on in ((start, devices), (moved, to)):
        state = stage_moves.state_of(flow, costs, stages, on)
        kernel.recount(stage_moves.pipeline_of(flow, costs), state)
        used.append(state.sums[kernel.USED])
    assert (used[1] <= used[0] + 6.0).all()


def test_a_search_ends_at_its_target() -> None:
    flow = random_flow(3)
    costs = random_costs(3, flow)
    calls = 0

    def count_calls() -> bool:
        nonlocal calls
        calls += 1
        return False

    start = in_quarters(flow)
    devices = np.arange(STAGES)
    same, _ = with_items_moved(flow, costs, start, devices, effort=1e6, target_seconds=1e9, out_of_time=count_calls)
    assert np.array_equal(same, start)
    assert calls == 0


def test_a_stage_keeps_an_item_however_dear_what_it_exchanges_is() -> None:
    flow = Flow(
        num_items=5,
        maker=np.arange(5),
        is_returned=np.zeros(5, dtype=bool),
        comes_back=np.zeros(5, dtype=bool),
        reads=(np.arange(4), np.arange(1, 5)),
        arcs=(np.arange(4), np.arange(1, 5)),
    )
    dear = replace(random_costs(0, flow), by_maker=np.full((2, 3, 5), 50.0), by_reader=np.full((2, 3, 5), 50.0))
    start = np.array([0, 1, 1, 2, 3])
    devices = np.arange(STAGES)
    moved, _ = with_items_moved(flow, dear, start, devices, effort=1.0, target_seconds=0.0, out_of_time=never)
    assert sorted(set(moved.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("classes", [(3,), (2, 2)])
@pytest.mark.parametrize("number", [*range(4), *nightly(range(4, 8))])
def test_placements_of_graphs_with_too_many_ideals_come_close_to_the_least(
    number: int, classes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so few pairs of ideals that none is looked at."""
    problem = random_problem(number, nodes=14, classes=classes, groups=14, tightness=3.0)
    least = best_contiguous(problem)
    assert least.gap < 1e-6
    moved = best_contiguous(problem, max_pairs=0)
    monkeypatch.setattr(contiguous, "move_items", lambda *arguments: None)
    alone = best_contiguous(problem, max_pairs=0)
    assert least.value_seconds <= moved.value_seconds * (1 + 1e-9)
    assert moved.value_seconds <= alone.value_seconds
    assert moved.value_seconds <= least.value_seconds * (1.001 if classes == (3,) else 1.1)
    devices = np.array(moved.device_of_node)
    assert device_loads(problem, devices).max() == pytest.approx(moved.value_seconds)
    assert (device_bytes(problem, devices) <= problem.class_bytes[problem.class_of_device]).all()
    tails, heads = distinct_arcs(
        devices[problem.tensor_producer[problem.read_tensor]], devices[problem.read_node], problem.num_devices
    )
    assert np.unique(components(tails, heads, problem.num_devices)).size == problem.num_devices
