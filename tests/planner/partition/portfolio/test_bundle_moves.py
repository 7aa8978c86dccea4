"""Bundles that change stages: at what `evaluate` says it costs, and to where cuts of an order do not come."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from benchmarks.chains_on_clusters import problems_of
from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import evaluate
from planner.partition.modes import optimal as mode
from planner.partition.modes.optimal import CONTIGUOUS, optimal
from planner.partition.objective import Objective, Training
from planner.partition.ordered.hosts import hosts_of
from planner.partition.placement import stage_moves
from planner.partition.placement import stage_moves_kernel as kernel
from planner.partition.placement.stage_moves import with_items_moved
from planner.partition.placement.stage_moves_kernel import State
from planner.partition.portfolio import bundle_moves, exact_ideals
from planner.partition.portfolio.bundle_moves import offer_moved_anywhere, offer_moved_bundles
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from planner.partition.score import Scored, score
from planner.partition.traffic import traffic
from tests.planner.partition.exact import every_assignment
from tests.planner.partition.ordered.test_cut_moves import drawn
from tests.planner.partition.problems import chain, problem, problems
from tests.random_examples import random_examples, random_seeds

THROUGHPUT = Request(mode="optimal", objective=Objective.THROUGHPUT)
ANYWHERE = replace(THROUGHPUT, free=True)


def modelled(
    drawn: PartitionProblem, assignment: Assignment, objective: Objective, slots: bundle_moves._Slots | None = None
) -> State:
    """What moves take the assignment to cost."""
    bundles, flow = bundles_of(drawn), bundle_moves._flow(drawn, bundles_of(drawn))
    turns = bundle_moves._turns(drawn, objective)
    slots = slots or bundle_moves._Slots.of(hosts_of(drawn), assignment, with_idle=turns is not None)
    scored = score(drawn, assignment, objective)
    costs = bundle_moves._costs(drawn, bundles, scored, slots, bundle_moves._links(drawn), turns)
    stage_of_bundle = np.empty(bundles.count, dtype=np.int64)
    stage_of_bundle[bundles.bundle_of_node] = slots.slot_of_stage[list(assignment.stage_of_node)]
    pipeline, state = (
        stage_moves.pipeline_of(flow, costs),
        stage_moves.state_of(flow, costs, stage_of_bundle, slots.device),
    )
    kernel.recount(pipeline, state)
    kernel.energy(pipeline, state, stage_moves.passes_for(costs), 0, np.inf)
    return state


@random_examples(60)
@given(drawn=problems(max_nodes=6, max_devices=4, relay=False, barred=True))
def test_loads_are_those_of_evaluate_and_buffers_those_of_its_crossings(drawn: PartitionProblem) -> None:
    bundles = bundles_of(drawn)
    for assignment in islice(every_assignment(drawn), 0, 400, 7):
        scored = score(drawn, assignment, Objective.THROUGHPUT)
        if not np.isfinite(scored.value):
            continue
        state, stages = modelled(drawn, assignment, Objective.THROUGHPUT), scored.evaluation.stages
        loads = [kernel.load(state.sums, state.waits, stage) for stage in range(len(stages))]
        np.testing.assert_allclose(loads, [stage.load_seconds for stage in stages], rtol=1e-9, atol=1e-12)
        assert state.value[0] == pytest.approx(scored.value)
        held = bundle_moves._bytes(drawn, bundles, len(stages))["held"]
        stage_of_bundle = np.array([assignment.stage_of_node[members[0]] for members in bundles.members])
        of_states = np.bincount(stage_of_bundle, held, len(stages))
        np.testing.assert_allclose(state.sums[kernel.USED] - of_states, buffers(drawn, assignment))
        assert (of_states <= [stage.state_bytes for stage in stages]).all()


@random_examples(60)
@given(drawn=problems(max_nodes=6, max_devices=4, relay=False, barred=True))
def test_anywhere_loads_are_those_of_devices(drawn: PartitionProblem) -> None:
    """With one stage for each: its messages are as many as evaluate counts."""
    for assignment in islice(every_assignment(drawn), 0, 400, 7):
        scored = score(drawn, assignment, Objective.THROUGHPUT)
        if not np.isfinite(scored.value):
            continue
        slots = bundle_moves._Slots.anywhere(drawn.num_devices, assignment)
        state = modelled(drawn, assignment, Objective.THROUGHPUT, slots)
        loads = [kernel.load(state.sums, state.waits, slot) for slot in range(drawn.num_devices)]
        expected = np.array(scored.evaluation.device_load_seconds)[slots.device]
        np.testing.assert_allclose(loads, expected, rtol=1e-9, atol=1e-12)


def test_a_device_takes_the_ends_of_a_chain_and_another_one_its_middle() -> None:
    """That is even; one stage each is not. And not where the stage more finds no memory."""
    drawn = chain([[1.0, 2.0, 1.0]] * 2, value_bytes=[1, 8, 8, 1], latency=0.01)
    assert optimal(drawn, THROUGHPUT).device_of_stage != (0, 1, 0)
    assignment = optimal(drawn, ANYWHERE)
    assert assignment.stage_of_node == (0, 1, 2)
    assert assignment.device_of_stage in [(0, 1, 0), (1, 0, 1)]
    scored = score(drawn, assignment, Objective.THROUGHPUT)
    assert scored.value == pytest.approx(2.02)
    needed = max(scored.evaluation.device_peak_bytes)
    tight = replace(drawn, device_memory_bytes=np.array([needed - 1] * 2))
    assert optimal(tight, ANYWHERE).num_stages == 2


def test_the_room_of_stages_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many stages as devices, and moves fit at once, so that none are made in vain."""
    _, drawn = list(problems_of("hosts:1.05"))[1]
    portfolio = Portfolio(drawn, ANYWHERE)
    portfolio.keep(score(drawn, optimal(drawn, THROUGHPUT), Objective.THROUGHPUT))
    assert portfolio.best is not None
    start, offers = portfolio.best, list[Scored]()
    offer = Portfolio.offer

    def noted(portfolio: Portfolio, assignment: Assignment | None) -> Scored | None:
        scored = offer(portfolio, assignment)
        assert scored is not None
        offers.append(scored)
        return scored

    monkeypatch.setattr(Portfolio, "offer", noted)
    offer_moved_anywhere(portfolio)
    assert all(scored.fits for scored in offers)
    assert offers[-1].value < start.value
    assert offers[-1].assignment.num_stages > 2 * start.assignment.num_stages


def test_bundles_move_on_from_where_they_came_to_as_long_as_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = chain([[1.0] * 6] * 2, value_bytes=[0] * 7)
    ends = [contiguous(drawn, (0, cut, 6), (0, 1)) for cut in (4, 3, 3, 3)]
    starts: list[float] = []

    def moved(portfolio: Portfolio, start: Scored) -> None:
        starts.append(start.value)
        portfolio.offer(ends[len(starts) - 1])

    monkeypatch.setattr(bundle_moves, "_offer_moved_from", moved)
    portfolio = Portfolio(drawn, THROUGHPUT)
    portfolio.offer(contiguous(drawn, (0, 5, 6), (0, 1)))
    offer_moved_bundles(portfolio)
    assert starts == pytest.approx([5.0, 4.0, 3.0], rel=1e-3)
    offer_moved_bundles(portfolio)
    assert len(starts) == 4, "from the same start only once"


@random_examples(60)
@given(drawn=problems(max_nodes=6, max_devices=4, relay=False, barred=True))
def test_a_lone_batch_is_done_when_evaluate_says(drawn: PartitionProblem) -> None:
    for assignment in islice(every_assignment(drawn), 0, 400, 7):
        scored = score(drawn, assignment, Objective.LATENCY)
        if np.isfinite(scored.value):
            assert modelled(drawn, assignment, Objective.LATENCY).value[0] == pytest.approx(scored.value)


def test_a_lone_batch_is_done_while_its_first_stage_is_still_sending() -> None:
    """Two large values, to a stage each."""
    one = problem(
        compute_seconds=[[1.0, 1.0, 0.1, 0.1, 0.1]] * 4,
        reads=[[0], [0], [1], [2], [3, 4]],
        value_bytes=[1, 10, 10, 0, 0, 1],
        returned=(5,),
        per_byte=1.0,
    )
    side_by_side = Assignment(stage_of_node=(0, 0, 1, 2, 3), device_of_stage=(0, 1, 2, 3))
    assert modelled(one, side_by_side, Objective.LATENCY).value[0] == pytest.approx(12.2)
    assert score(one, side_by_side, Objective.LATENCY).value == pytest.approx(12.2)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_a_step_ends_when_evaluate_says(seed: int) -> None:
    """Of stages beside each other, on devices of unlike hosts."""
    one = forked(seed)
    for assignment in islice(every_assignment(one), 0, 4000, 37):
        expected = score(one, assignment, Objective.STEP_TIME)
        assert modelled(one, assignment, Objective.STEP_TIME).value[0] == pytest.approx(expected.value, rel=1e-12)


def forked(seed: int) -> PartitionProblem:
    """Each node reads one or two that are up to four before it."""
    draw = np.random.default_rng(seed)
    reads = [sorted({max(0, k - int(back)) for back in draw.integers(0, 4, 2)}) for k in range(7)]
    return drawn(seed, 7, 3, reads=reads, relay=False)


def buffers(drawn: PartitionProblem, assignment: Assignment) -> list[float]:
    """Of what stages send and receive: what bypasses a stage, or is the caller's, is there wherever bundles are."""
    crossings = traffic(drawn, np.array(assignment.stage_of_node), assignment.num_stages).crossings
    ends = {
        (value, stage)
        for value, *stages in np.stack([crossings.values, crossings.sources, crossings.targets], axis=1).tolist()
        for stage in stages
    }
    held = [0.0] * assignment.num_stages
    for value, stage in ends:
        held[stage] += float(drawn.microbatches_in_flight * drawn.value_bytes[value])
    return held


def side_by_side(per_byte: float = 0.001, **more: object) -> PartitionProblem:
    """A first node, two branches of three that a last one joins; onto eight equal devices, eight microbatches."""
    reads = [[0], [1], [2], [3], [1], [5], [6], [4, 7]]
    training = Training(microbatches=8)
    return chain([[1.0, *[2.0] * 6, 1.0]] * 8, reads=reads, per_byte=per_byte, training=training, **more)


@pytest.mark.parametrize("objective", [Objective.STEP_TIME, Objective.LATENCY])
def test_branches_run_side_by_side_on_devices_that_were_idle(objective: Objective) -> None:
    """A step's pipeline is half as deep then; and where memory asks for stages, a lone batch is there sooner."""
    one = side_by_side(states=[(10, (node,)) for node in range(8)], memory_bytes=[150] * 8)
    in_order = contiguous(one, (0, 2, 4, 6, 8), (0, 1, 2, 3))
    portfolio = Portfolio(one, Request(mode="optimal", objective=objective))
    start = portfolio.offer(in_order)
    assert start is not None
    assert start.fits
    offer_moved_bundles(portfolio)
    best = portfolio.best
    assert best is not None
    assert best.value < 0.85 * start.value
    assert best.fits
    stage = best.assignment.stage_of_node
    edges = traffic(one, np.array(stage), best.assignment.num_stages).edges
    assert any((before, before + 1) not in edges for before in range(best.assignment.num_stages - 1))


def test_as_many_stages_as_are_asked_for_stay() -> None:
    """Though messages are so dear that fewer would do better."""
    one = side_by_side(per_byte=20.0)
    portfolio = Portfolio(one, Request(mode="optimal", objective=Objective.STEP_TIME, num_stages=4))
    start = portfolio.offer(contiguous(one, (0, 1, 2, 3, 8), (0, 1, 2, 3)))
    offer_moved_bundles(portfolio)
    assert start is not None
    assert portfolio.best is not None
    assert portfolio.best.value < start.value
    assert portfolio.best.assignment.num_stages == 4


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_what_microbatches_keep_is_what_evaluate_counts(seed: int) -> None:
    """Behind the first stage, which is given the caller's too."""
    one = replace(forked(seed), node_kept_bytes=np.arange(7))
    bundles = bundles_of(one)
    for assignment in (each for each in islice(every_assignment(one), 0, 4000, 37) if each.num_stages == 3):
        state, stages = modelled(one, assignment, Objective.STEP_TIME), evaluate(one, assignment).stages
        stage_of_bundle = np.array([assignment.stage_of_node[members[0]] for members in bundles.members])
        held = np.bincount(stage_of_bundle, bundle_moves._bytes(one, bundles, 3)["held"], 3)
        saved = state.sums[kernel.USED] - held - buffers(one, assignment)
        np.testing.assert_allclose(saved[1:], [stage.saved_bytes for stage in stages[1:]])


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(12))
def test_steps_that_are_sooner_over_fit_where_devices_are_full(seed: int) -> None:
    ample = forked(seed)
    start = contiguous(ample, (0, 2, 4, 7), (0, 1, 2))
    one = replace(ample, device_memory_bytes=np.array(evaluate(ample, start).device_peak_bytes))
    portfolio = Portfolio(one, Request(mode="optimal", objective=Objective.STEP_TIME))
    portfolio.offer(start)
    offer_moved_bundles(portfolio)
    assert portfolio.best is not None
    assert portfolio.best.fits


def cells(number: int, *, num_cells: int = 3, width: int = 3) -> PartitionProblem:
    """Each cell reads the two before it, in branches of two nodes that a last one joins; onto four devices."""
    random = np.random.default_rng(number)
    reads, ends = [[0]], [1]
    for _ in range(num_cells):
        branches = []
        for _ in range(width):
            reads.append([ends[-1 - int(random.integers(min(2, len(ends))))]])
            reads.append([len(reads)])
            branches.append(len(reads))
        reads.append(branches)
        ends.append(len(reads))
    count = len(reads)
    return problem(
        compute_seconds=[random.uniform(0.5, 3.0, count).tolist()] * 4,
        reads=reads,
        value_bytes=[4, *random.integers(1, 6, count).tolist()],
        returned=(count,),
        states=[(int(random.integers(1, 9)), (node,)) for node in range(count)],
        per_byte=0.3,
    )


def test_plans_of_cells_come_close_to_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for programs with too many ideals to look at; four of them, of which moves leave most at their least."""
    above, above_without = [], []
    for number in range(4):
        drawn = cells(number)
        least = optimal(drawn, THROUGHPUT).lower_bound_seconds or 0.0
        with monkeypatch.context() as patch:
            patch.setattr(exact_ideals, "MAX_IDEALS", 0)
            value = score(drawn, optimal(drawn, THROUGHPUT), Objective.THROUGHPUT).value
            patch.setattr(mode, "CONTIGUOUS", tuple(one for one in CONTIGUOUS if one.run is not offer_moved_bundles))
            without = score(drawn, optimal(drawn, THROUGHPUT), Objective.THROUGHPUT).value
        assert least <= value * (1 + 1e-9)
        assert value <= without * (1 + 1e-9)
        above.append(value / least - 1)
        above_without.append(without / least - 1)
    assert np.mean(above) < 0.4 * np.mean(above_without)
    assert np.median(above) < 0.01


def test_what_does_not_fit_is_tried_with_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What flows within a stage is in no sum that moves keep."""
    trials = list[float]()

    def counted(*arguments: Any, effort: float, **more: Any) -> Any:
        trials.append(effort)
        return with_items_moved(*arguments, effort=effort, **more)

    monkeypatch.setattr(bundle_moves, "with_items_moved", counted)
    monkeypatch.setattr(bundle_moves, "_MOST_TIMES", 1)
    gained = 0
    for number in range(30):
        ample = cells(number)
        in_order = contiguous(ample, (0, 6, 12, 18, ample.num_nodes), (0, 1, 2, 3))
        peaks = [stage.peak_bytes for stage in score(ample, in_order, Objective.THROUGHPUT).evaluation.stages]
        drawn = replace(ample, device_memory_bytes=np.array(peaks) + 4)
        portfolio = Portfolio(drawn, THROUGHPUT)
        start = portfolio.offer(in_order)
        offer_moved_bundles(portfolio)
        assert portfolio.best is not None
        assert portfolio.best.fits
        gained += len(trials) > 1 and portfolio.best is not start
        trials.clear()
    assert gained


def test_tables_beyond_their_size_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = cells(0)
    portfolio = Portfolio(drawn, THROUGHPUT)
    start = portfolio.offer(contiguous(drawn, (0, 6, 12, 18, drawn.num_nodes), (0, 1, 2, 3)))
    monkeypatch.setattr(stage_moves, "_MAX_TABLE", 50)
    offer_moved_bundles(portfolio)
    assert portfolio.best is start
    monkeypatch.setattr(stage_moves, "_MAX_TABLE", 200)
    offer_moved_bundles(portfolio)
    assert portfolio.best is not start
