"""What a call does to storage: which values it writes, and which outputs may share storage with what it reads.

Schemas say most of it (`Operator.mutated_arguments`, `Operator.aliased_arguments`); what torch does and its schemas do
not say is in `planner.graph.operators`. In doubt an output aliases and an argument is written: a needless tie costs a
cut, a missed one costs the right numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.graph.ir import Argument, Graph, Node, OperatorKind, Value, ValueKind, values_in
from planner.graph.operators import facts_of
from planner.graph.subgraphs import subgraphs_run

_WITH_STORAGE = frozenset({ValueKind.TENSOR, ValueKind.OPAQUE})


def writes(graph: Graph, node: Node) -> tuple[int, ...]:
    """Ids of the values that the call writes in place."""
    written = set(_values_at(node, node.operator.mutated_arguments))
    if facts_of(node.operator.name).statistics and _argument(node, 5) is not False:
        written.update(_values_at(node, (3, 4)))
    if _is_in_place(node):
        written.update(_values_at(node, (0,)))
    if any(_writes_an_input(graph.subgraphs[index]) for index in subgraphs_run(node)):
        written.update(_all_values(node))
    return tuple(sorted(written))


def shares(graph: Graph, node: Node, values: dict[int, Value]) -> Iterator[tuple[int, int]]:
    """(output, argument) ids of each pair that may share storage, the likeliest argument of an output first."""
    sources = [value_id for value_id in _sources(graph, node) if values[value_id].kind in _WITH_STORAGE]
    outputs = [value_id for value_id in node.outputs if value_id and values[value_id].kind in _WITH_STORAGE]
    one_to_one = len(sources) == len(node.outputs) == len(outputs)
    for position, output in enumerate(outputs):
        preferred = sources[position : position + 1] if one_to_one else []
        for source in dict.fromkeys([*preferred, *sources]):
            if facts_of(node.operator.name).converts and values[source].dtype is not values[output].dtype:
                continue
            yield output, source


def copies(node: Node, output: Value, source: Value) -> bool:
    """Whether a call whose output may share storage with `source` has to copy it, as far as strides tell."""
    match facts_of(node.operator.name).copies:
        case "restrided":
            return output.strides != source.strides
        case "strided":
            return bool(source.strides)
    return False


def _sources(graph: Graph, node: Node) -> tuple[int, ...]:
    facts = facts_of(node.operator.name)
    if any(_returns_an_input(graph.subgraphs[index]) for index in subgraphs_run(node)):
        return _all_values(node)
    if facts.lone_operand:
        operands = _operands(node)
        return operands if len(operands) == 1 else ()
    # An exported dropout says of both of its cases that it may return its input.
    declared = () if facts.dropout else node.operator.aliased_arguments
    positions = (*declared, *facts.returned_positions)
    if _is_in_place(node) or (facts.dropout and drops_nothing(node)):
        positions = (*positions, 0)
    return _values_at(node, tuple(dict.fromkeys(positions)))


def _is_in_place(node: Node) -> bool:
    name = node.operator.name
    return node.operator.kind is OperatorKind.ATEN and name.endswith("_") and not name.endswith("__")


def drops_nothing(node: Node) -> bool:
    """Of a dropout, which takes (input, p, train)."""
    return _argument(node, 2) is not True or _argument(node, 1) == 0


def _argument(node: Node, position: int) -> Argument:
    return node.arguments[position] if position < len(node.arguments) else None


def _values_at(node: Node, positions: tuple[int, ...]) -> tuple[int, ...]:
    """Ids at schema positions. A position beyond the positional ones is some keyword: then all keywords count."""
    value_ids = [value for position in positions for value in values_in(_argument(node, position))]
    if any(position >= len(node.arguments) for position in positions):
        value_ids += [value for _, argument in node.keyword_arguments for value in values_in(argument)]
    return tuple(dict.fromkeys(value_ids))


def _all_values(node: Node) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_operands(node)))


def _operands(node: Node) -> tuple[int, ...]:
    """One value as often as it is given."""
    arguments = (*node.arguments, *(argument for _, argument in node.keyword_arguments))
    return tuple(value for argument in arguments for value in values_in(argument))


def _writes_an_input(subgraph: Graph) -> bool:
    sharing = _sharing_with_inputs(subgraph)
    return any(value in sharing for node in subgraph.nodes for value in writes(subgraph, node))


def _returns_an_input(subgraph: Graph) -> bool:
    sharing = _sharing_with_inputs(subgraph)
    return any(value in sharing for output in subgraph.outputs for value in values_in(output.content))


def _sharing_with_inputs(subgraph: Graph) -> set[int]:
    values = subgraph.values_by_id()
    sharing = {value for graph_input in subgraph.inputs for value in values_in(graph_input.content)}
    sharing = {value for value in sharing if values[value].kind in _WITH_STORAGE}
    for node in subgraph.nodes:
        sharing.update(output for output, source in shares(subgraph, node, values) if source in sharing)
    return sharing
