"""Which values carry a gradient in training: those that depend on a trained state, and can vary with it."""

from __future__ import annotations

from planner.graph.ir import Graph, Node, Value, ValueKind, values_in, values_read
from planner.graph.operators import facts_of


def values_with_gradient(graph: Graph) -> frozenset[int]:
    """Ids, trained states among them. Inputs carry none. O(reads)."""
    value_ids = {state.value_id for state in graph.states if state.requires_grad}
    values = graph.values_by_id()
    for node in graph.nodes:
        stops = not node.context.grad_enabled or facts_of(node.operator.name).detaches
        if stops or value_ids.isdisjoint(values_read(node)):
            continue
        changed = (*(value_id for value_id in node.outputs if value_id), *_written(node))
        value_ids.update(value_id for value_id in changed if _can_vary(values[value_id]))
    return frozenset(value_ids)


def _written(node: Node) -> tuple[int, ...]:
    positions = [position for position in node.operator.mutated_arguments if position < len(node.arguments)]
    return tuple(value_id for position in positions for value_id in values_in(node.arguments[position]))


def _can_vary(value: Value) -> bool:
    return value.kind is ValueKind.OPAQUE or (value.dtype is not None and value.dtype.facts.differentiable)
