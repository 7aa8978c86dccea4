"""Nodes that may run again elsewhere and give the same: what a stage can make for itself instead of receiving it."""

from __future__ import annotations

from planner.graph.alias import written_storages
from planner.graph.effects import writes
from planner.graph.expression import symbols_in
from planner.graph.ir import Graph, Node, OperatorKind, StateKind, Value, values_read
from planner.graph.operators import facts_of

# Calls whose meaning is all in their operator and arguments.
PLAIN_KINDS = frozenset({OperatorKind.ATEN, OperatorKind.PYTHON})


def recomputable_nodes(graph: Graph) -> tuple[bool, ...]:
    """By node: it draws nothing at random, writes nothing, reads no parameter and touches no storage that is written.

    Buffers and constants that nothing writes may be read: each stage that does so holds a copy. Left out are values
    whose size is known only once they are made, and the last node, which stands for what the program returns. Linear.
    """
    barred = {state.value_id for state in graph.states if state.kind is StateKind.PARAMETER or state.requires_grad}
    barred.update(value_id for storage in written_storages(graph) for value_id in storage.value_ids)
    unbacked = {symbol.id for symbol in graph.symbols if symbol.unbacked}
    if unbacked:
        barred.update(value.id for value in graph.values if not unbacked.isdisjoint(_symbols(value)))
    last = len(graph.nodes) - 1
    return tuple(index != last and _is_pure(graph, node, barred) for index, node in enumerate(graph.nodes))


def _is_pure(graph: Graph, node: Node, barred: set[int]) -> bool:
    operator = node.operator
    if operator.kind not in PLAIN_KINDS or operator.random or not any(node.outputs):
        return False
    if facts_of(operator.name).uninitialised:
        return False
    return barred.isdisjoint(values_read(node)) and barred.isdisjoint(node.outputs) and not writes(graph, node)


def _symbols(value: Value) -> set[int]:
    symbols = {symbol for expression in (*value.dims, *value.strides) for symbol in symbols_in(expression)}
    return symbols if value.expression is None else symbols | set(symbols_in(value.expression))
