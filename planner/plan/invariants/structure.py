"""Every node in one stage, data forward only, every stage on known devices, every number a number."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.graph.ir import Graph, values_read
from planner.plan.invariants.broken import broken
from planner.plan.plan import Plan, Stage


def check_structure(plan: Plan, graph: Graph) -> tuple[int, ...]:
    """The stage of each node."""
    _check_graph(plan, graph)
    if not plan.stages or [stage.index for stage in plan.stages] != list(range(len(plan.stages))):
        raise broken("stage_indexes", f"the stages are numbered {[stage.index for stage in plan.stages]}, needs 0, 1 …")
    _check_devices(plan)
    _check_finite(plan)
    stage_of_node = _cover(plan)
    _check_order(graph, stage_of_node)
    _check_edges_forward(plan)
    return stage_of_node


def _check_graph(plan: Plan, graph: Graph) -> None:
    if plan.num_nodes != len(graph.nodes):
        raise broken("graph", f"the plan is of {plan.num_nodes} nodes, the graph has {len(graph.nodes)}")
    names = sorted(symbol.name for symbol in graph.symbols)
    if sorted(name for name, _ in plan.symbol_values) != names:
        raise broken("symbols", f"values for {[name for name, _ in plan.symbol_values]}, the graph's are {names}")


def _cover(plan: Plan) -> tuple[int, ...]:
    stage_of_node = [-1] * plan.num_nodes
    for stage in plan.stages:
        for start, end in _ranges(stage, plan.num_nodes):
            for node in range(start, end):
                if stage_of_node[node] >= 0:
                    raise broken("cover", f"node {node} is in stages {stage_of_node[node]} and {stage.index}")
                stage_of_node[node] = stage.index
    if -1 in stage_of_node:
        raise broken("cover", f"node {stage_of_node.index(-1)} is in no stage")
    return tuple(stage_of_node)


def _ranges(stage: Stage, num_nodes: int) -> Iterator[tuple[int, int]]:
    if not stage.node_ranges and num_nodes:
        raise broken("cover", f"stage {stage.index} has no nodes", stage=stage.index)
    last_end = 0
    for start, end in stage.node_ranges:
        if not last_end <= start < end <= num_nodes:
            raise broken(
                "cover",
                f"stage {stage.index} has nodes {start} to {end} after {last_end}, of {num_nodes} in all",
                stage=stage.index,
            )
        last_end = end
        yield start, end


def _check_order(graph: Graph, stage_of_node: tuple[int, ...]) -> None:
    made_in: dict[int, int] = {}
    for index, (node, stage) in enumerate(zip(graph.nodes, stage_of_node, strict=True)):
        for value_id in values_read(node):
            if made_in.get(value_id, 0) > stage:
                raise broken(
                    "order",
                    f"node {index} in stage {stage} reads value {value_id}, which stage {made_in[value_id]} makes",
                    node=index,
                )
        made_in.update((value_id, stage) for value_id in node.outputs if value_id)


def _check_edges_forward(plan: Plan) -> None:
    pairs = [(edge.source_stage, edge.target_stage) for edge in plan.edges]
    for source, target in pairs:
        if not 0 <= source < target < len(plan.stages):
            raise broken("edges_forward", f"there is an edge from stage {source} to {target}")
    if pairs != sorted(set(pairs)):
        raise broken("edges_sorted", f"edges are {pairs}, needs each pair once, in order")


def _check_devices(plan: Plan) -> None:
    device_ids = {device.id for device in plan.inventory.devices}
    for stage in plan.stages:
        if not stage.device_ids or len(set(stage.device_ids)) < len(stage.device_ids):
            raise broken("devices", f"stage {stage.index} is on {stage.device_ids}, needs devices", stage=stage.index)
        for device_id in stage.device_ids:
            if device_id not in device_ids:
                raise broken(
                    "devices",
                    f"stage {stage.index} is on {device_id!r}; there are {sorted(device_ids)}",
                    stage=stage.index,
                )


def _check_finite(plan: Plan) -> None:
    numbers: list[tuple[str, float]] = [
        ("bottleneck_seconds", plan.bottleneck_seconds),
        ("latency_seconds", plan.latency_seconds),
        ("lower_bound_seconds", plan.lower_bound_seconds or 0.0),
    ]
    for stage in plan.stages:
        numbers += [
            (f"stage {stage.index}: compute_seconds", stage.compute_seconds),
            (f"stage {stage.index}: communication_seconds", stage.communication_seconds),
            (f"stage {stage.index}: delivery_seconds", stage.delivery_seconds),
            (f"stage {stage.index}: flops", stage.flops),
            (f"stage {stage.index}: state_bytes", stage.memory.state_bytes),
            (f"stage {stage.index}: activation_bytes", stage.memory.activation_bytes),
            (f"stage {stage.index}: buffer_bytes", stage.memory.buffer_bytes),
            (f"stage {stage.index}: backward_seconds", stage.backward_seconds),
            (f"stage {stage.index}: gradient_bytes", stage.memory.gradient_bytes),
            (f"stage {stage.index}: optimizer_bytes", stage.memory.optimizer_bytes),
            (f"stage {stage.index}: saved_bytes", stage.memory.saved_bytes),
        ]
    for name, number in numbers:
        if not math.isfinite(number) or number < 0:
            raise broken("finite", f"{name} is {number}")
