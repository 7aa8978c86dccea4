"""What has to move from one plan to another, counted by hand on a chain of four layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from planner.plan.diff import NOWHERE, NodeMove, StateMove, diff_plans
from planner.plan.plan import Plan
from tests.builders.plans import plan_of
from tests.contract.graphs import linear_chain

LAYER_BYTES = 8 * 8 * 4


def test_nothing_moves_to_the_same_plan() -> None:
    graph = linear_chain(4)
    plan = plan_of(graph, [0, 0, 1, 1])
    diff = diff_plans(graph, plan, plan)
    assert (diff.num_nodes, diff.num_nodes_moved, diff.moved_bytes) == (4, 0, 0)
    assert diff.node_moves == diff.state_moves == diff.dropped_bytes == ()


def test_a_layer_changes_devices() -> None:
    graph = linear_chain(4)
    diff = diff_plans(graph, plan_of(graph, [0, 0, 1, 1]), plan_of(graph, [0, 1, 1, 1]))
    assert diff.node_moves == (
        NodeMove(source_device_ids=("node0/cpu",), target_device_ids=("node1/cpu",), num_nodes=1),
    )
    assert diff.state_moves == (
        StateMove(source_device_id="node0/cpu", target_device_id="node1/cpu", num_states=1, size_bytes=LAYER_BYTES),
    )
    assert diff.dropped_bytes == (("node0/cpu", LAYER_BYTES),)
    assert diff.bottleneck_seconds[0] < diff.bottleneck_seconds[1]


def test_tied_states_move_once() -> None:
    graph = tied(linear_chain(4))
    diff = diff_plans(graph, plan_of(graph, [0, 0, 0, 0]), plan_of(graph, [0, 0, 1, 1]))
    assert sum(move.num_states for move in diff.state_moves) == 1
    assert diff.moved_bytes == LAYER_BYTES
    back = diff_plans(graph, plan_of(graph, [0, 0, 1, 1]), plan_of(graph, [0, 0, 0, 0]))
    assert back.moved_bytes == 0
    assert back.dropped_bytes == (("node1/cpu", LAYER_BYTES),)


def test_plans_of_different_graphs_are_refused() -> None:
    graph = linear_chain(2)
    plan = plan_of(graph, [0, 1])
    with pytest.raises(InvalidArgument, match="different graphs"):
        diff_plans(graph, plan, replace(plan, graph_id="another"))


def on(plan: Plan, *devices: tuple[str, ...]) -> Plan:
    """Stages on other devices, and so with copies."""
    stages = (replace(stage, device_ids=ids) for stage, ids in zip(plan.stages, devices, strict=True))
    return replace(plan, stages=tuple(stages))


A, B, C = "node0/cpu", "node1/cpu", "node2/cpu"


def test_copies_in_another_order_run_where_they_ran() -> None:
    graph = linear_chain(2)
    plan = plan_of(graph, [0, 1])
    diff = diff_plans(graph, on(plan, (A, B), (C,)), on(plan, (B, A), (C,)))
    assert (diff.num_nodes_moved, diff.node_moves, diff.state_moves, diff.dropped_bytes) == (0, (), (), ())


def test_a_new_copy_fetches_from_the_first_that_holds_it() -> None:
    graph = linear_chain(2)
    plan = plan_of(graph, [0, 0])
    diff = diff_plans(graph, on(plan, (B, A)), on(plan, (B, A, C)))
    assert diff.node_moves == (NodeMove(source_device_ids=(B, A), target_device_ids=(B, A, C), num_nodes=2),)
    assert diff.state_moves == (
        StateMove(source_device_id=B, target_device_id=C, num_states=2, size_bytes=2 * LAYER_BYTES),
    )
    back = diff_plans(graph, on(plan, (B, A, C)), on(plan, (B, C)))
    assert (back.moved_bytes, back.dropped_bytes) == (0, ((A, 2 * LAYER_BYTES),))


def test_a_state_that_nothing_held_comes_from_nowhere() -> None:
    graph = linear_chain(2)
    before = plan_of(graph, [0, 1])
    without = replace(before, stages=(replace(before.stages[0], states=()), before.stages[1]))
    diff = diff_plans(graph, without, before)
    assert [(move.source_device_id, move.target_device_id, move.num_states) for move in diff.state_moves] == [
        (NOWHERE, A, 1)
    ]


def test_both_plans_figures_are_given() -> None:
    graph = linear_chain(4)
    before = replace(plan_of(graph, [0, 0, 1, 1]), latency_seconds=1.0, bottleneck_seconds=2.0, step_seconds=3.0)
    after = replace(plan_of(graph, [0, 1, 1, 2]), latency_seconds=4.0, bottleneck_seconds=5.0)
    diff = diff_plans(graph, before, after)
    assert (diff.num_nodes, diff.num_nodes_moved, diff.num_stages) == (4, 2, (2, 3))
    assert diff.latency_seconds == (1.0, 4.0)
    assert diff.bottleneck_seconds == (2.0, 5.0)
    assert diff.step_seconds == (3.0, None)


def tied(graph: Graph) -> Graph:
    """All layers share one weight."""
    return replace(graph, states=tuple(replace(state, tie_group=1) for state in graph.states))
