"""From an assignment to a plan: what the numbers chose, spelled out in tensors, tables and edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cost.inventory import Inventory
from planner.cost.sources import CostSource
from planner.graph.expansion import expand
from planner.graph.gradients import values_with_gradient
from planner.graph.ir import Graph, values_in
from planner.partition.assignment import Assignment
from planner.plan.crossing import find_residence
from planner.plan.dimensions import largest_setting, planned_sizes, settings_of
from planner.plan.edges import stage_edges
from planner.plan.liveness import liveness_tables
from planner.plan.node_ranges import node_ranges, ranges_of
from planner.plan.options import PlanOptions
from planner.plan.plan import PassOrder, Plan, Stage, StageMemory
from planner.plan.ties import tie_groups

if TYPE_CHECKING:
    from planner.partition.evaluate import Evaluation


def build_plan(
    graph: Graph,
    graph_id: str,
    inventory: Inventory,
    options: PlanOptions,
    assignment: Assignment,
    evaluation: Evaluation,
    cost_sources: tuple[CostSource, ...] = (),
) -> Plan:
    """Sizes are the largest over the options' shape buckets. Linear in the graph and in the tables."""
    num_stages = len(assignment.device_of_stage)
    expanded = expand(graph, assignment.stage_of_node, assignment.recomputed)
    values = graph.values_by_id()
    settings = settings_of(graph, options)
    symbol_values = largest_setting(graph, settings).symbol_values
    sizes = planned_sizes(graph, settings)
    residence = find_residence(expanded.graph, expanded.stage_of_node, num_stages)
    tables = liveness_tables(residence, values, sizes, num_stages)
    ranges = node_ranges(assignment.stage_of_node, num_stages)
    modules = [_end_modules(graph, stage_ranges) for stage_ranges in ranges]
    stages = tuple(
        Stage(
            index=index,
            node_ranges=ranges[index],
            device_ids=tuple(inventory.devices[device].id for device in assignment.devices_of_stage[index]),
            states=residence.states[index],
            liveness=tables[index],
            outputs=residence.outputs[index],
            compute_seconds=costs.compute_seconds,
            communication_seconds=costs.communication_seconds,
            flops=costs.flops,
            memory=StageMemory(
                state_bytes=costs.state_bytes,
                activation_bytes=costs.activation_bytes,
                buffer_bytes=costs.buffer_bytes,
                gradient_bytes=costs.gradient_bytes,
                optimizer_bytes=costs.optimizer_bytes,
                saved_bytes=costs.saved_bytes,
            ),
            reason=assignment.reasons[index],
            first_module=modules[index][0],
            last_module=modules[index][1],
            backward_seconds=costs.backward_seconds,
            weight_share=costs.weight_share,
            recomputed_ranges=ranges_of(assignment.recomputed[index]) if assignment.recomputed else (),
            recomputes_activations=costs.recomputes_activations,
            delivery_seconds=costs.delivery_seconds,
        )
        for index, costs in enumerate(evaluation.stages)
    )
    return Plan(
        graph_id=graph_id,
        graph_name=graph.name,
        num_nodes=len(graph.nodes),
        options=options,
        inventory=inventory,
        stages=stages,
        edges=stage_edges(residence, sizes, options.routing, num_stages, _with_gradient(graph, options)),
        tie_groups=tie_groups(graph, residence.states, sizes),
        bottleneck_seconds=evaluation.bottleneck_seconds,
        latency_seconds=evaluation.latency_seconds,
        lower_bound_seconds=assignment.lower_bound_seconds,
        symbol_values=tuple(sorted((symbol.name, symbol_values[symbol.id]) for symbol in graph.symbols)),
        cost_sources=cost_sources,
        step_seconds=evaluation.step_seconds,
        pass_orders=tuple(
            PassOrder(device_id=inventory.devices[device].id, steps=steps) for device, steps in assignment.orders
        ),
    )


def _with_gradient(graph: Graph, options: PlanOptions) -> frozenset[int]:
    """Values that a backward pass hands back a gradient of; zero-sized ones too."""
    if options.training is None:
        return frozenset()
    inputs = {value_id for entry in graph.inputs for value_id in values_in(entry.content)}
    return values_with_gradient(graph) - inputs


def _end_modules(graph: Graph, ranges: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """Modules of the first and the last node that belong to one."""
    paths = [graph.nodes[index].module_path for start, end in ranges for index in range(start, end)]
    named = [path for path in paths if path]
    return (named[0], named[-1]) if named else ("", "")
