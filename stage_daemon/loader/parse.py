"""From bytes to a Graph message whose counts, names, sizes and ids are within bounds.

Bytes are bounded before they are parsed, and protobuf itself refuses nesting over 100 levels. What a node means is
checked where it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader.bounds import (
    MAX_GRAPH_BYTES,
    MAX_INPUTS,
    MAX_NODES,
    MAX_STATES,
    MAX_SUBGRAPH_DEPTH,
    MAX_SUBGRAPHS,
    MAX_SYMBOLS,
    MAX_VALUES,
    check_count,
    check_state_name,
    shown,
)
from stage_daemon.loader.declared import Declared, declared_tensor, symbol_hints

SCHEMA_VERSION = 1


def parse_graph(graph_bytes: bytes) -> pb.Graph:
    """Raises InvalidGraph, naming the element, for bytes that are not a graph within bounds."""
    if len(graph_bytes) > MAX_GRAPH_BYTES:
        raise InvalidGraph(f"graph: {len(graph_bytes)} bytes, at most {MAX_GRAPH_BYTES} are allowed")
    try:
        graph = pb.Graph.FromString(graph_bytes)
    except DecodeError as error:
        raise InvalidGraph(f"graph: the bytes are not a serialized Graph ({error})") from error
    check_message(graph)
    return graph


def check_message(graph: pb.Graph) -> None:
    """The bounds and ids of a message that is parsed already."""
    if graph.schema_version != SCHEMA_VERSION:
        raise InvalidGraph(f"graph: schema version {graph.schema_version}, this daemon reads version {SCHEMA_VERSION}")
    _check_counts(tuple(_with_subgraphs(graph)))
    _check_part(graph, "", {})
    _check_states(graph)


def _with_subgraphs(graph: pb.Graph, depth_left: int = MAX_SUBGRAPH_DEPTH) -> Iterator[pb.Graph]:
    if depth_left < 0:
        raise InvalidGraph(f"graph: subgraphs are nested more than {MAX_SUBGRAPH_DEPTH} deep")
    yield graph
    for subgraph in graph.subgraphs:
        yield from _with_subgraphs(subgraph, depth_left - 1)


def _check_counts(parts: tuple[pb.Graph, ...]) -> None:
    check_count("graph", "subgraphs", len(parts) - 1, MAX_SUBGRAPHS)
    check_count("graph", "nodes", sum(len(part.nodes) for part in parts), MAX_NODES)
    check_count("graph", "values", sum(len(part.values) for part in parts), MAX_VALUES)
    check_count("graph", "states", sum(len(part.states) for part in parts), MAX_STATES)
    check_count("graph", "symbols", sum(len(part.symbols) for part in parts), MAX_SYMBOLS)
    check_count("graph", "inputs", sum(len(part.inputs) for part in parts), MAX_INPUTS)
    check_count("graph", "outputs", sum(len(part.outputs) for part in parts), MAX_INPUTS)


def _check_part(graph: pb.Graph, where: str, outer_hints: dict[int, int]) -> None:
    hints = outer_hints | symbol_hints(where, graph)
    _check_values(graph.values, where, hints)
    for index, subgraph in enumerate(graph.subgraphs):
        if subgraph.states:
            raise InvalidGraph(f"{where}subgraph {index}: has states of its own; they belong to the outermost graph")
        _check_part(subgraph, f"{where}subgraph {index}, ", hints)


def _check_values(values: Iterable[pb.Value], where: str, hints: dict[int, int]) -> None:
    seen: set[int] = set()
    for value in values:
        if value.id < 1 or value.id in seen:
            raise InvalidGraph(f"{where}value {value.id} ({shown(value.name)}): an id must be at least 1 and unique")
        seen.add(value.id)
        if value.kind == pb.VALUE_KIND_TENSOR:
            declared_tensor(where, value, hints)


def _check_states(graph: pb.Graph) -> None:
    values = {value.id: value for value in graph.values}
    names: set[str] = set()
    ties: dict[int, Declared] = {}
    for state in graph.states:
        check_state_name(state.name)
        at = f"state {shown(state.name)}"
        if state.name in names:
            raise InvalidGraph(f"{at}: another state has the same name")
        names.add(state.name)
        if len(state.sha256) not in (0, 32):
            raise InvalidGraph(f"{at}: a sha256 of {len(state.sha256)} bytes, needs 32, or none")
        value = values.get(state.value)
        if value is None or value.kind != pb.VALUE_KIND_TENSOR:
            raise InvalidGraph(f"{at}: its value {state.value} is not a tensor of the graph")
        declared = declared_state(state, value)
        first = ties.setdefault(state.tie_group, declared) if state.tie_group else declared
        if (first.dtype, first.dims) != (declared.dtype, declared.dims):
            raise InvalidGraph(f"{at}: the states of tie group {state.tie_group} differ in dtype or dims")


def declared_state(state: pb.State, value: pb.Value) -> Declared:
    """A state's dims are constants: no symbol has a value here."""
    return declared_tensor(f"state {shown(state.name)}: ", value, {})
