"""What clients hand in and are given is load of the devices with the program's ends: in every value, bound and plan."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.measured import Delivery, MeasuredTimes
from planner.errors import Infeasible
from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import evaluate
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.partition.problem import PartitionProblem
from planner.partition.registry import partition
from planner.partition.request import Request
from planner.plan.options import BalancedMode, Mode, OptimalMode, PlanOptions
from planner.planning import make_plan
from planner.schedule.inference import inference_schedule
from planner.schedule.simulate import simulate
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import random_graph
from tests.planner.partition.exact import every_assignment, least, value_of
from tests.planner.partition.problems import chain, problems, trainings
from tests.random_examples import random_examples

STEP = Training(schedule=PipelineSchedule.GPIPE, microbatches=2, backward_ratio=2.0)


def delivering(problem: PartitionProblem, input_seconds: float, output_seconds: float) -> PartitionProblem:
    deliveries = np.zeros_like(problem.compute_seconds)
    deliveries[:, 0] += input_seconds
    deliveries[:, -1] += output_seconds
    return replace(problem, compute_seconds=problem.compute_seconds + deliveries, delivery_seconds=deliveries)


def test_the_ends_pay_and_a_lone_batch_waits_for_both() -> None:
    case = delivering(chain([[1.0, 2.0, 4.0]] * 3), 10.0, 20.0)
    evaluation = evaluate(case, contiguous(case, (0, 1, 2, 3), (0, 1, 2), [""] * 3))
    assert [stage.compute_seconds for stage in evaluation.stages] == [1.0, 2.0, 4.0]
    assert [stage.delivery_seconds for stage in evaluation.stages] == [10.0, 0.0, 20.0]
    assert evaluation.device_load_seconds == (11.0, 2.0, 24.0)
    assert evaluation.latency_seconds == 37.0


def test_nothing_is_delivered_in_a_backward_pass() -> None:
    case = delivering(chain([[1.0, 2.0]] * 2, training=STEP), 10.0, 20.0)
    evaluation = evaluate(case, contiguous(case, (0, 1, 2), (0, 1), [""] * 2))
    assert [stage.backward_seconds for stage in evaluation.stages] == [2.0, 4.0]
    assert evaluation.device_load_seconds == (13.0, 26.0)
    np.testing.assert_array_equal(case.work_seconds, [[13.0, 26.0]] * 2)


def test_whoever_runs_a_node_again_is_handed_nothing() -> None:
    case = replace(
        delivering(chain([[1.0, 2.0]] * 2), 10.0, 20.0), node_recomputable=np.array([True, False], dtype=np.bool_)
    )
    again = Assignment(stage_of_node=(0, 1), device_of_stage=(0, 1), reasons=("", ""), recomputed=((), (0,)))
    evaluation = evaluate(case, again)
    assert [stage.compute_seconds for stage in evaluation.stages] == [1.0, 3.0]
    assert [stage.delivery_seconds for stage in evaluation.stages] == [10.0, 20.0]


@random_examples(12)
@given(problems(max_nodes=4, max_devices=2, training=st.none() | trainings), st.sampled_from([0.0, 1.0, 7.0]))
def test_no_bound_is_above_the_best_plan_with_its_deliveries(problem: PartitionProblem, seconds: float) -> None:
    problem = delivering(problem, seconds, 3.0)
    for objective in (Objective.THROUGHPUT, Objective.LATENCY):
        best = least(problem, objective, every_assignment(problem))
        try:
            assignment = partition(problem, Request(mode="optimal", objective=objective, effort=0.2))
        except Infeasible:
            assert math.isinf(best)
            continue
        assert value_of(problem, assignment, objective) >= best * (1 - 1e-9)
        assert (assignment.lower_bound_seconds or 0.0) <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    "mode", [BalancedMode(num_stages=2), OptimalMode(effort=0.2), OptimalMode(free=True, recompute=True, effort=0.2)]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_measured_deliveries_reach_the_plan_and_its_simulation(mode: Mode, seed: int) -> None:
    graph = random_graph(seed, 12)
    times = MeasuredTimes(
        graph_id="",
        device_kind="cpu",
        seconds=tuple((node, 1.0) for node in range(len(graph.nodes))),
        delivery=Delivery(input_seconds=2.0, output_seconds=5.0),
    )
    # The verifier has reckoned the loads again before the plan is here.
    plan = make_plan(graph, "g", inventory_of(2), PlanOptions(mode=mode), [times])
    assert math.isclose(sum(stage.delivery_seconds for stage in plan.stages), 7.0)
    lone = simulate(plan, inference_schedule(plan), microbatches=1)
    assert math.isclose(lone.output_seconds[0], plan.latency_seconds)
