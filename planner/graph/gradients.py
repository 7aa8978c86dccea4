"""Which values carry a gradient in training: those that depend on a trained state, and can vary with it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.graph.effects import shares
from planner.graph.ir import Graph, Node, Value, ValueKind, values_in, values_read
from planner.graph.operators import facts_of


def values_with_gradient(graph: Graph) -> frozenset[int]:
    """Ids, trained states among them. Inputs carry none. O(reads). What is written in place through a view varies with
    it as a whole.
    """
    value_ids = {state.value_id for state in graph.states if state.requires_grad}
    values = graph.values_by_id()
    storages = _Storages(graph, values) if any(node.operator.mutated_arguments for node in graph.nodes) else None
    for node in graph.nodes:
        if storages is not None:
            storages.add(node)
        stops = not node.context.grad_enabled or facts_of(node.operator.name).detaches
        if stops or value_ids.isdisjoint(values_read(node)):
            continue
        changed = [value_id for value_id in node.outputs if value_id]
        if storages is not None:
            changed += [other for value_id in _written(node) for other in storages.take_sharing(value_id)]
        value_ids.update(value_id for value_id in changed if _can_vary(values[value_id]))
    return frozenset(value_ids)


class _Storages:
    """Which values, of nodes so far, of states and of inputs, may share storage."""

    def __init__(self, graph: Graph, values: dict[int, Value]) -> None:
        self._graph = graph
        self._values = values
        self._storages_of: dict[int, frozenset[int]] = {}
        self._values_in: dict[int, list[int]] = {}
        for entry in graph.inputs:
            for value_id in values_in(entry.content):
                self._hold(value_id, frozenset({value_id}))
        first_of_tie: dict[int, int] = {}
        for state in graph.states:
            owner = first_of_tie.setdefault(state.tie_group, state.value_id) if state.tie_group else state.value_id
            self._hold(state.value_id, frozenset({owner}))

    def add(self, node: Node) -> None:
        sources: dict[int, list[int]] = {}
        for output, source in shares(self._graph, node, self._values):
            sources.setdefault(output, []).append(source)
        for output in node.outputs:
            if output:
                shared = frozenset[int]().union(*(self._storages_of[source] for source in sources.get(output, ())))
                self._hold(output, shared or frozenset({output}))

    def take_sharing(self, value_id: int) -> Iterator[int]:
        """The values so far that may share storage with it, but for those that were taken before."""
        for storage in self._storages_of[value_id]:
            yield from self._values_in.pop(storage, ())

    def _hold(self, value_id: int, storages: frozenset[int]) -> None:
        self._storages_of[value_id] = storages
        for storage in storages:
            self._values_in.setdefault(storage, []).append(value_id)


def _written(node: Node) -> Iterator[int]:
    for position in node.operator.mutated_arguments:
        if position < len(node.arguments):
            yield from values_in(node.arguments[position])


def _can_vary(value: Value) -> bool:
    return value.kind is ValueKind.OPAQUE or (value.dtype is not None and value.dtype.facts.differentiable)
