"""Which values a backward pass reaches, and which gradients edges bring back, found anew from the graph.

A value has a gradient if a chain of differentiable values leads there from a trained state; a write in place leads to
all that was in the storage so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.graph.ir import Graph, Node, ValueKind, values_in
from planner.graph.operators import facts_of
from planner.partition.objective import Activations
from planner.plan.invariants.broken import broken
from planner.plan.invariants.history import ProgramHistory
from planner.plan.plan import Plan

_DIFFERENTIABLE = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Value ids with a gradient, node indexes that a backward pass goes through, storages (tokens) that are trained."""

    values: frozenset[int]
    nodes: frozenset[int]
    trained_tokens: frozenset[int]


def find_gradients(plan: Plan, graph: Graph, history: ProgramHistory) -> Gradients:
    """None in inference."""
    if plan.options.training is None:
        return Gradients(values=frozenset(), nodes=frozenset(), trained_tokens=frozenset())
    trained = {state.value_id for state in graph.states if state.requires_grad}
    kinds = {
        value.id: _is_differentiable(value.kind, value.dtype.value if value.dtype else "") for value in graph.values
    }
    values = set(trained)
    tokens_of = history.final.tokens
    holders: dict[int, list[int]] = {}
    for value_id in history.given_tokens:
        _hold(holders, tokens_of[value_id], value_id)
    for node, effect in zip(graph.nodes, history.effects, strict=True):
        for value_id in effect.outputs:
            _hold(holders, tokens_of[value_id], value_id)
        if _differentiates(node) and any(value_id in values for value_id in effect.reads):
            touched = {token for value_id in _changed(node) for token in tokens_of[value_id]}
            # What was in them is reached once and for all.
            reached = (*effect.outputs, *(value_id for token in touched for value_id in holders.pop(token, ())))
            values.update(value_id for value_id in reached if kinds[value_id])
    nodes = frozenset(index for index, effect in enumerate(history.effects) if not values.isdisjoint(effect.outputs))
    input_ids = {value_id for entry in graph.inputs for value_id in values_in(entry.content)}
    tokens = frozenset(history.given_tokens[value_id] for value_id in trained)
    return Gradients(values=frozenset(values - input_ids), nodes=nodes, trained_tokens=tokens)


def check_gradients(plan: Plan, gradients: Gradients) -> None:
    for edge in plan.edges:
        needed = tuple(value_id for value_id in edge.value_ids if value_id in gradients.values)
        if edge.gradient_value_ids != needed:
            raise broken(
                "edge_gradients",
                f"stage {edge.target_stage} gives stage {edge.source_stage} gradients of {edge.gradient_value_ids}, "
                f"needs {needed}",
            )
    for stage in plan.stages:
        needed_pass = plan.options.training is not None and not gradients.nodes.isdisjoint(stage.node_indexes())
        if stage.backward_seconds and not needed_pass:
            raise broken(
                "backward_seconds",
                f"stage {stage.index} spends {stage.backward_seconds} s on a backward pass that nothing asks for",
                stage=stage.index,
            )
        if stage.recomputes_activations and not _may_recompute(plan):
            raise broken(
                "recomputed_activations",
                f"stage {stage.index} computes its activations again, and the options have them kept",
                stage=stage.index,
            )


def _may_recompute(plan: Plan) -> bool:
    training = plan.options.training
    return training is not None and training.activations is not Activations.KEPT


def _differentiates(node: Node) -> bool:
    return node.context.grad_enabled and not facts_of(node.operator.name).detaches


def _hold(holders: dict[int, list[int]], tokens: Iterable[int], value_id: int) -> None:
    for token in tokens:
        holders.setdefault(token, []).append(value_id)


def _changed(node: Node) -> Iterator[int]:
    for position in node.operator.mutated_arguments:
        if position < len(node.arguments):
            yield from values_in(node.arguments[position])


def _is_differentiable(kind: ValueKind, dtype: str) -> bool:
    return kind is ValueKind.OPAQUE or dtype.startswith(_DIFFERENTIABLE)
