"""The last gate before a plan is stored: every invariant, re-derived without calling what built the plan.

| invariant | says |
|---|---|
| graph, symbols, stage_indexes | the plan is of this graph, at a value for each symbol, its stages numbered from 0 |
| cover, order | every node is in exactly one stage and reads from its own or earlier ones |
| recomputed | what a stage runs again is of an earlier one, and gives the same wherever it runs |
| edges_forward, edges_sorted | edges lead to later stages, one per pair |
| devices, finite | devices exist; numbers are finite and not negative |
| in_place, mutated_state | reads see the writes that the unsplit program shows; written states have one owner |
| liveness, outputs, states, tie_groups | the tables say what the graph says |
| edges, edge_bytes | edges carry exactly what the routing asks for |
| edge_gradients, backward_seconds | gradients come back where a backward pass goes, and nowhere else |
| recomputed_activations | activations are computed again only where the options ask for it |
| pass_orders | the order of a training step's passes is there where its schedule has no rule, and complete |
| stage_memory, device_memory | bytes are right, and each device can hold its stages |
| communication_seconds, bottleneck_seconds, latency_seconds, step_seconds, lower_bound | the sums are right |
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.ir import Graph
from planner.graph.saved import Saved
from planner.plan.expansion import expanded_plan
from planner.plan.invariants.broken import broken
from planner.plan.invariants.edges import check_edges
from planner.plan.invariants.gradients import check_gradients, find_gradients
from planner.plan.invariants.history import program_history
from planner.plan.invariants.memory import check_memory
from planner.plan.invariants.pass_orders import check_pass_orders
from planner.plan.invariants.recomputed import check_recomputed, check_same_program
from planner.plan.invariants.replay import check_writes_stay_together, replay
from planner.plan.invariants.seconds import check_seconds
from planner.plan.invariants.structure import check_structure
from planner.plan.invariants.tables import check_tables, find_needs
from planner.plan.invariants.ties import check_ties
from planner.plan.plan import Plan


def verify_plan(plan: Plan, graph: Graph, saved: Sequence[Saved] = ()) -> None:
    """Raises PlanInvariantError; its `metadata["invariant"]` is a name of the table above. Near-linear in the graph.

    `saved` [nodes]: what backward passes were measured to keep; empty: what they keep by rule.
    """
    check_recomputed(plan, graph, check_structure(plan, graph))
    expanded, expanded_of_plan, originals = expanded_plan(graph, plan)
    check_same_program(plan, graph, expanded)
    _verify_expanded(expanded_of_plan, expanded, [saved[index] for index in originals] if saved else ())


def _verify_expanded(plan: Plan, graph: Graph, saved: Sequence[Saved]) -> None:
    """Of a plan in which no node runs twice."""
    stage_of_node = check_structure(plan, graph)
    sizes = _sizes(plan, graph)
    values = graph.values_by_id()
    history = program_history(graph)
    _check_references(plan, graph)
    check_writes_stay_together(history, stage_of_node)
    needs = find_needs(graph, history, stage_of_node, len(plan.stages))
    check_tables(plan, needs, values, sizes)
    check_ties(plan, graph, history, sizes)
    check_edges(plan, needs, sizes)
    replay(plan, graph, history)
    gradients = find_gradients(plan, graph, history)
    check_gradients(plan, gradients)
    check_pass_orders(plan)
    check_memory(plan, graph, history, gradients, needs, sizes, saved)
    check_seconds(plan)


def _sizes(plan: Plan, graph: Graph) -> dict[int, int]:
    """Bytes of each value at the plan's symbol values, or at those of the shape bucket where it is largest."""
    planned = dict(plan.symbol_values)
    for symbol in graph.symbols:
        size = planned[symbol.name]
        if size < symbol.lower or (symbol.upper is not None and size > symbol.upper):
            raise broken("symbols", f"{symbol.name} is {size}, needs {symbol.lower} to {symbol.upper}")
    symbol_values = {symbol.id: planned[symbol.name] for symbol in graph.symbols}
    hints = {symbol.name: symbol.hint for symbol in graph.symbols}
    points = [symbol_values]
    for bucket in plan.options.buckets:
        bucket_values = {**hints, **dict(plan.options.symbol_values), **dict(bucket.symbol_values)}
        points.append({symbol.id: bucket_values[symbol.name] for symbol in graph.symbols})
    if plan.options.buckets and symbol_values not in points[1:]:
        raise broken("symbols", f"the plan stands at {planned}, which is none of its shape buckets")
    return {value.id: max(value.size_bytes(point) for point in points) for value in graph.values}


def _check_references(plan: Plan, graph: Graph) -> None:
    """What the plan names exists: a foreign name is a broken plan, not a KeyError later."""
    value_ids = {value.id for value in graph.values}
    names = {state.name for state in graph.states}
    for stage in plan.stages:
        unknown = [name for name in stage.states if name not in names]
        if unknown:
            raise broken("states", f"stage {stage.index} owns {unknown[0]!r}, which the graph does not have")
        for value_id in (*stage.outputs, *(entry.value_id for entry in stage.liveness)):
            if value_id not in value_ids:
                raise broken("liveness", f"stage {stage.index} speaks of value {value_id}, which the graph has not")
    for edge in plan.edges:
        for value_id in edge.value_ids:
            if value_id not in value_ids:
                raise broken("edges", f"an edge carries value {value_id}, which the graph does not have")
