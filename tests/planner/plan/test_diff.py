"""What has to move from one plan to another, counted by hand on a chain of four layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from planner.plan.diff import NodeMove, StateMove, diff_plans
from tests.builders.plans import plan_of
from tests.contract.graphs import linear_chain

LAYER_BYTES = 8 * 8 * 4


def test_nothing_moves_to_the_same_plan() -> None:
    graph = linear_chain(4)
    plan = plan_of(graph, [0, 0, 1, 1])
    found = diff_plans(graph, plan, plan)
    assert (found.num_nodes, found.num_nodes_moved, found.moved_bytes) == (4, 0, 0)
    assert found.node_moves == found.state_moves == found.dropped_bytes == ()


def test_a_layer_changes_devices() -> None:
    graph = linear_chain(4)
    found = diff_plans(graph, plan_of(graph, [0, 0, 1, 1]), plan_of(graph, [0, 1, 1, 1]))
    assert found.node_moves == (
        NodeMove(source_device_ids=("node0/cpu",), target_device_ids=("node1/cpu",), num_nodes=1),
    )
    assert found.state_moves == (
        StateMove(source_device_id="node0/cpu", target_device_id="node1/cpu", num_states=1, size_bytes=LAYER_BYTES),
    )
    assert found.dropped_bytes == (("node0/cpu", LAYER_BYTES),)
    assert found.bottleneck_seconds[0] < found.bottleneck_seconds[1]


def test_tied_states_move_once() -> None:
    graph = tied(linear_chain(4))
    found = diff_plans(graph, plan_of(graph, [0, 0, 0, 0]), plan_of(graph, [0, 0, 1, 1]))
    assert sum(move.num_states for move in found.state_moves) == 1
    assert found.moved_bytes == LAYER_BYTES
    back = diff_plans(graph, plan_of(graph, [0, 0, 1, 1]), plan_of(graph, [0, 0, 0, 0]))
    assert back.moved_bytes == 0
    assert back.dropped_bytes == (("node1/cpu", LAYER_BYTES),)


def test_plans_of_different_graphs_are_refused() -> None:
    graph = linear_chain(2)
    plan = plan_of(graph, [0, 1])
    with pytest.raises(InvalidArgument, match="different graphs"):
        diff_plans(graph, plan, replace(plan, graph_id="another"))


def tied(graph: Graph) -> Graph:
    """All layers share one weight."""
    return replace(graph, states=tuple(replace(state, tie_group=1) for state in graph.states))
