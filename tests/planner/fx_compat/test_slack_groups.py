"""Groups of operations of one device: as quick as single operations, and far fewer."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from planner.fx_compat.byte_model.group_operations import grouped_latency, groups_of_one
from planner.fx_compat.byte_model.operation_graph import OperationGraph
from planner.fx_compat.byte_model.slack_groups import groups_by_slack
from planner.fx_compat.byte_model.transfer_problem import transfer_problem

RATE = 4.0


def graph_of(inputs: Sequence[tuple[int, ...]], out_bytes: Sequence[int], num_givens: int = 0) -> OperationGraph:
    return OperationGraph(
        out_bytes=tuple(out_bytes),
        total_bytes=tuple(out_bytes),
        inputs=tuple(inputs),
        is_operation=tuple(node >= num_givens for node in range(len(inputs))),
    )


def groups_on(
    graph: OperationGraph, seconds: Sequence[float], device_of_node: Sequence[int]
) -> tuple[Sequence[frozenset[int]], float, float]:
    """Groups, their latency, and that of single operations."""
    problem = transfer_problem(graph, seconds, RATE, [10**9] * 3)
    singles = grouped_latency(graph, seconds, RATE, groups_of_one(graph, device_of_node))
    device = [device_of_node[node] for node in problem.nodes]
    placed = groups_by_slack(graph, problem, RATE, device, singles * (1 + 1e-12))
    assert placed is not None
    for group, (at,) in zip(placed.groups, placed.devices, strict=True):
        assert {device_of_node[node] for node in group if graph.is_operation[node]} == {at}
    return [frozenset(group) for group in placed.groups], grouped_latency(graph, seconds, RATE, placed), singles


def test_a_chain_on_one_device_is_one_group() -> None:
    graph = graph_of([(), (0,), (1,), (2,)], [8] * 4)
    groups, latency, singles = groups_on(graph, [1.0] * 4, [0] * 4)
    assert groups == [frozenset(range(4))]
    assert latency == singles == 4.0


def test_whoever_would_delay_what_others_wait_for_begins_a_group() -> None:
    # 0 -> 1 on the same device, and 0 -> 2 -> 3 elsewhere, which is the longest path.
    graph = graph_of([(), (0,), (0,), (2,)], [8] * 4)
    groups, latency, singles = groups_on(graph, [1.0, 3.0, 5.0, 5.0], [0, 0, 1, 1])
    assert groups == [{0}, {1}, {2, 3}]
    assert latency == singles


def test_two_tensors_that_one_operation_waits_for_leave_from_two_groups() -> None:
    # Side by side they take 2 s; out of one group, one after the other, 4 s.
    graph = graph_of([(), (), (0, 1)], [8] * 3)
    groups, latency, singles = groups_on(graph, [1.0] * 3, [0, 0, 1])
    assert groups == [{0}, {1}, {2}]
    assert latency == singles == 4.0


def test_givens_are_held_wherever_they_are_read() -> None:
    graph = graph_of([(), (0,), (0, 1), (2,)], [8] * 4, num_givens=1)
    groups, latency, singles = groups_on(graph, [0.0, 1.0, 1.0, 1.0], [0, 1, 1, 2])
    assert groups == [{0, 1, 2}, {3}]
    assert latency == singles


@pytest.mark.parametrize("seed", range(60))
def test_no_path_gets_longer_and_every_operation_is_in_one_group(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.randrange(2, 30)
    inputs = [
        tuple(sorted(draw.sample(range(node), min(node, draw.choice((1, 1, 1, 2, 3)))))) if node else ()
        for node in range(n)
    ]
    graph = graph_of(inputs, [draw.choice((0, 8, 8, 16)) for _ in range(n)], num_givens=1)
    device = [0] * n
    for node in range(1, n):
        device[node] = device[node - 1] if draw.random() < 0.7 else draw.randrange(3)
    groups, latency, singles = groups_on(graph, [float(draw.randrange(1, 9)) for _ in range(n)], device)
    assert latency <= singles * (1 + 1e-9)
    members = sorted(node for group in groups for node in group if graph.is_operation[node])
    assert members == list(graph.operations)
