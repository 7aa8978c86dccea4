"""What daemons are told of a training step's edges: how many messages each holds, in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.dispatch.stage_modules import connect_requests
from planner.partition.objective import Training
from planner.plan.depths import edge_depths
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.store.records import deployment, placement


@pytest.mark.parametrize("num_stages", [3, 8])
def test_what_skips_stages_holds_more_and_all_else_as_much_as_ever(num_stages: int) -> None:
    """The first stage's output is read by all others. With two messages for each of its edges, 8 stages cannot end."""
    writer = GraphWriter()
    first = value = writer.multiply(writer.input(), writer.state())
    for _ in range(num_stages - 1):
        value = writer.multiply(value, writer.multiply(first, writer.state()))
    graph = writer.graph(value)
    graph = replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))
    stage_of_node = [0, *(stage for stage in range(1, num_stages) for _ in range(2))]
    plan = plan_of(graph, stage_of_node, training=Training(microbatches=8))
    stages = tuple(placement(stage.index, stage.device_ids[0]) for stage in plan.stages)
    requests = connect_requests(deployment(stages=stages), plan, graph, 9.5)
    expected = {
        (edge.source_stage, edge.target_stage): 2 + max(0, edge.target_stage - edge.source_stage - 1)
        for edge in plan.edges
    }
    assert max(expected.values()) == num_stages
    assert tuple(expected.values()) == edge_depths(plan)
    for request in requests.values():
        assert request.training.messages_in_flight == 2
        for edge in request.training.edges:
            ends = edge.values.source_stage, edge.values.target_stage
            assert edge.values.microbatches_in_flight == edge.gradients.microbatches_in_flight == expected[ends]
        for stream in request.edges:
            held = stream.microbatches_in_flight or request.microbatches_in_flight
            assert held == expected[stream.source_stage, stream.target_stage]
