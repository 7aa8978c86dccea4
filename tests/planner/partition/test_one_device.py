"""The fastest device alone, and what a plan says beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.partition.modes.single import OneDevice, fastest_alone
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.plan.options import BalancedMode, OptimalMode, PlanOptions
from planner.planning import explain_plan, make_plan
from tests.builders.random_graphs import GraphWriter
from tests.planner.partition.problems import chain


def test_it_is_the_fastest_of_those_that_hold_the_program() -> None:
    states = [(100, (0,)), (100, (1,))]
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=4)
    arguments = {"states": states, "value_bytes": [10] * 3, "training": training, "latency": 0.5}
    problem = chain([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]], memory_bytes=[10_000, 10_000, 300], **arguments)
    assert fastest_alone(problem) == OneDevice(device=0, step_seconds=4 * 2 * 3)
    barred = chain([[1.0, np.inf], [2.0, 2.0], [0.5, 0.5]], memory_bytes=[10_000, 10_000, 300], **arguments)
    assert fastest_alone(barred) == OneDevice(device=1, step_seconds=4 * 4 * 3)
    assert fastest_alone(chain([[1.0, 1.0]] * 2, memory_bytes=[300, 300], **arguments)) is None


@pytest.mark.parametrize(("latency", "said"), [(1.0, "do not pipeline: d"), (0.0, "times as fast")])
@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.BEST])
def test_a_plan_says_whether_to_pipeline(schedule: PipelineSchedule, latency: float, said: str) -> None:
    writer = GraphWriter()
    value = writer.input()
    for _ in range(4):
        value = writer.multiply(value, writer.state())
    graph = writer.graph(value)
    graph = replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))
    inventory = Inventory(
        devices=tuple(Device(id=f"d{index}", kind="cpu", host="h", memory_bytes=1 << 40) for index in range(2)),
        default_link=LinkSpeed(bytes_per_second=1e30, latency_seconds=latency),
    )
    training = Training(schedule=schedule, microbatches=6)
    two = PlanOptions(mode=BalancedMode(num_stages=2), objective=Objective.STEP_TIME, training=training)
    plan = make_plan(graph, "id", inventory, two)
    assert [line for line in explain_plan(graph, plan) if said in line]
    best_plan = make_plan(graph, "id", inventory, replace(two, mode=OptimalMode(effort=0.1)))
    # For the best order there may be several stages on each device.
    assert len(best_plan.stages) in ((1,) if latency else (2, 3, 4) if schedule is PipelineSchedule.BEST else (2,))
    lines = [line for line in explain_plan(graph, best_plan) if "do not pipeline" in line]
    assert lines == (["do not pipeline: no stages on the 2 devices were found that take less"] if latency else [])
    inference = make_plan(graph, "id", inventory, PlanOptions(mode=BalancedMode(num_stages=2)))
    assert not [line for line in explain_plan(graph, inference) if "pipeline" in line]
