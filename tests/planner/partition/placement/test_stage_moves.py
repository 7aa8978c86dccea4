"""Items that move from stage to stage: what the search keeps up step by step is what the stages alone give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.arcs import components, distinct_arcs
from planner.partition.placement import stage_moves, stage_moves_kernel
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.costs import device_bytes, device_loads
from planner.partition.placement.draws_kernel import EXPONENTIAL
from planner.partition.placement.problem import never
from planner.partition.placement.stage_moves import Costs, Flow, with_items_moved
from planner.partition.problem import Integers
from tests.nightly import nightly
from tests.planner.partition.placement.small_problems import random_problem

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
        reads=(value, reader),
        arcs=(value[made] - 2, reader[made]),
    )


def random_costs(number: int, flow: Flow, spare: float = np.inf) -> Costs:
    """Two kinds of devices, two of each; three links."""
    random = np.random.default_rng(number)
    values = flow.maker.size
    return Costs(
        seconds=random.integers(1, 9, (2, flow.num_items)).astype(float),
        kind_of_stage=np.array([0, 1, 1, 0]),
        link=random.integers(0, 3, (STAGES, STAGES)),
        sent=random.integers(0, 3, (3, values)).astype(float),
        received=random.integers(0, 3, (3, values)).astype(float),
        latency=np.array([0.0, 0.5, 1.5]),
        held=random.integers(0, 5, flow.num_items).astype(float),
        buffered=random.integers(0, 5, values).astype(float),
        spare=np.full(STAGES, spare),
    )


def in_quarters(flow: Flow) -> Integers:
    return np.arange(flow.num_items) * STAGES // flow.num_items


@pytest.mark.parametrize("number", range(6))
def test_running_sums_counts_and_lists_hold_after_many_steps(number: int) -> None:
    flow = random_flow(number)
    costs = random_costs(number, flow)
    pipeline, state = stage_moves._pipeline(flow, costs), stage_moves._state(flow, costs, in_quarters(flow))
    stage_moves_kernel.recount(pipeline, state)
    pipeline.room[:] = np.inf
    state.best_value[0] = state.load.max()
    stage_moves_kernel.anneal(pipeline, state, EXPONENTIAL, 0.5, np.array([1.0, 0.5]), 3, 5_000)
    names = ("readers", "stages_reading", "messages", "waits", "load", "used", "num_items", "beside", "num_able")
    running = {name: getattr(state, name).copy() for name in names}
    able = [set(row[:count].tolist()) for row, count in zip(state.able, state.num_able, strict=True)]
    stage_moves_kernel.recount(pipeline, state)
    for name, expected in running.items():
        np.testing.assert_allclose(getattr(state, name), expected, atol=1e-9, err_msg=name)
    assert able == [set(row[:count].tolist()) for row, count in zip(state.able, state.num_able, strict=True)]
    assert state.best_value[0] < state.load.max()
    state.stage[:] = state.best
    stage_moves_kernel.recount(pipeline, state)
    assert state.load.max() == pytest.approx(state.best_value[0])


@pytest.mark.parametrize("number", range(6))
def test_items_stay_in_their_order_no_stage_is_empty_and_memory_suffices(number: int) -> None:
    flow = random_flow(number)
    costs = random_costs(number, flow, spare=4.0)
    moved = with_items_moved(flow, costs, in_quarters(flow), effort=1.0, target_seconds=0.0, out_of_time=never)
    assert not np.array_equal(moved, in_quarters(flow))
    tails, heads = flow.arcs
    assert (moved[tails] <= moved[heads]).all()
    assert (np.bincount(moved, minlength=STAGES) > 0).all()
    used = []
    for stages in (in_quarters(flow), moved):
        state = stage_moves._state(flow, costs, stages)
        stage_moves_kernel.recount(stage_moves._pipeline(flow, costs), state)
        used.append(state.used)
    assert (used[1] <= used[0] + 4.0).all()


def test_a_search_ends_at_its_target() -> None:
    flow = random_flow(3)
    costs = random_costs(3, flow)
    calls = 0

    def count_calls() -> bool:
        nonlocal calls
        calls += 1
        return False

    start = in_quarters(flow)
    same = with_items_moved(flow, costs, start, effort=1e6, target_seconds=1e9, out_of_time=count_calls)
    assert np.array_equal(same, start)
    assert calls == 0


def test_a_stage_keeps_an_item_however_dear_what_it_exchanges_is() -> None:
    flow = Flow(
        num_items=5,
        maker=np.arange(5),
        is_returned=np.zeros(5, dtype=bool),
        reads=(np.arange(4), np.arange(1, 5)),
        arcs=(np.arange(4), np.arange(1, 5)),
    )
    dear = replace(random_costs(0, flow), sent=np.full((3, 5), 50.0), received=np.full((3, 5), 50.0))
    start = np.array([0, 1, 1, 2, 3])
    moved = with_items_moved(flow, dear, start, effort=1.0, target_seconds=0.0, out_of_time=never)
    assert sorted(set(moved.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("classes", [(3,), (2, 2)])
@pytest.mark.parametrize("number", [*range(4), *nightly(range(4, 8))])
def test_placements_of_graphs_with_too_many_ideals_come_close_to_the_least(
    number: int, classes: tuple[int, ...]
) -> None:
    """With so few pairs of ideals that none is looked at."""
    problem = random_problem(number, nodes=14, classes=classes, groups=14, tightness=3.0)
    least = best_contiguous(problem)
    assert least.gap < 1e-6
    alone = best_contiguous(problem, max_pairs=0, moves_items=False)
    moved = best_contiguous(problem, max_pairs=0)
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
