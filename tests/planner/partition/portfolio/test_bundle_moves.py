"""Bundles that change stages: at what `evaluate` says it costs, and to where cuts of an order do not come."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from planner.partition.assignment import Assignment, contiguous
from planner.partition.modes import optimal as mode
from planner.partition.modes.optimal import CONTIGUOUS, optimal
from planner.partition.objective import Objective
from planner.partition.placement import stage_moves, stage_moves_kernel
from planner.partition.placement.stage_moves import with_items_moved
from planner.partition.portfolio import bundle_moves, exact_ideals, relaxation
from planner.partition.portfolio.bundle_moves import offer_moved_bundles
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.request import Request
from planner.partition.score import score
from planner.partition.traffic import traffic
from tests.planner.partition.exact import every_assignment
from tests.planner.partition.problems import problem, problems
from tests.random_examples import random_examples

THROUGHPUT = Request(mode="optimal", objective=Objective.THROUGHPUT)


@random_examples(60)
@given(drawn=problems(max_nodes=6, max_devices=4, relay=False, barred=True))
def test_loads_are_those_of_evaluate_and_buffers_those_of_its_crossings(drawn: PartitionProblem) -> None:
    bundles = bundles_of(drawn)
    flow = bundle_moves._flow(drawn, bundles)
    for assignment in islice(every_assignment(drawn), 0, 400, 7):
        scored = score(drawn, assignment, Objective.THROUGHPUT)
        if not np.isfinite(scored.value):
            continue
        links = bundle_moves._links(drawn, np.array(assignment.device_of_stage))
        costs = bundle_moves._costs(drawn, bundles, scored, links)
        stage_of_bundle = np.empty(bundles.count, dtype=np.int64)
        stage_of_bundle[bundles.bundle_of_node] = assignment.stage_of_node
        state = stage_moves._state(flow, costs, stage_of_bundle)
        stage_moves_kernel.recount(stage_moves._pipeline(flow, costs), state)
        stages = scored.evaluation.stages
        np.testing.assert_allclose(state.load, [stage.load_seconds for stage in stages], rtol=1e-9, atol=1e-12)
        states = np.bincount(stage_of_bundle, costs.held, len(stages))
        np.testing.assert_allclose(state.used - states, buffers(drawn, assignment))
        assert (states <= [stage.state_bytes for stage in stages]).all()


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
            patch.setattr(relaxation, "MAX_RELAXED_NODES_OVER_EQUAL_LINKS", 0)
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
