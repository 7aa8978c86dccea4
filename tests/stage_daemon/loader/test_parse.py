"""Counts, names, ids and sizes of a graph message: each bound holds exactly, and over subgraphs together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.loader import parse
from stage_daemon.loader.bounds import MAX_NAME_LENGTH, MAX_SUBGRAPH_DEPTH, shown
from stage_daemon.loader.parse import check_message, parse_graph
from tests.builders.graph_messages import small_message

Change = Callable[[pb.Graph], None]


def refused(graph: pb.Graph, words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        check_message(graph)


def test_bytes_come_back_as_the_message() -> None:
    assert parse_graph(small_message().SerializeToString()) == small_message()


def test_bytes_that_are_too_many_or_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_message().SerializeToString()
    with pytest.raises(InvalidGraph, match=r"^graph: the bytes are not a serialized Graph"):
        parse_graph(data[:-1])
    monkeypatch.setattr(parse, "MAX_GRAPH_BYTES", len(data))
    parse_graph(data)
    monkeypatch.setattr(parse, "MAX_GRAPH_BYTES", len(data) - 1)
    with pytest.raises(InvalidGraph, match=f"^graph: {len(data)} bytes, at most {len(data) - 1} are allowed"):
        parse_graph(data)


@pytest.mark.parametrize("version", [0, 2])
def test_another_schema_version(version: int) -> None:
    graph = small_message()
    graph.schema_version = version
    refused(graph, f"schema version {version}, this daemon reads version 1")


@pytest.mark.parametrize(
    ("limit", "what", "count"),
    [
        ("MAX_SUBGRAPHS", "subgraphs", 2),
        ("MAX_NODES", "nodes", 7),
        ("MAX_VALUES", "values", 15),
        ("MAX_STATES", "states", 3),
        ("MAX_SYMBOLS", "symbols", 1),
        ("MAX_INPUTS", "inputs", 4),
    ],
)
def test_counts_are_of_the_graph_and_its_subgraphs(
    monkeypatch: pytest.MonkeyPatch, limit: str, what: str, count: int
) -> None:
    monkeypatch.setattr(parse, limit, count)
    check_message(small_message())
    monkeypatch.setattr(parse, limit, count - 1)
    refused(small_message(), f"^graph: {count} {what}, at most {count - 1} are allowed")


def test_outputs_are_bounded_as_inputs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_message()
    graph.outputs.add(name="again", value=7)
    monkeypatch.setattr(parse, "MAX_INPUTS", 4)
    refused(graph, "^graph: 5 outputs, at most 4 are allowed")


def test_depth_of_subgraphs() -> None:
    graph = pb.Graph(schema_version=1)
    inner = graph
    for _ in range(MAX_SUBGRAPH_DEPTH):
        inner = inner.subgraphs.add()
    check_message(graph)
    inner.subgraphs.add()
    refused(graph, "subgraphs are nested more than 16 deep")


def _second_value(**fields: object) -> Change:
    def change(graph: pb.Graph) -> None:
        graph.values[1].MergeFrom(pb.Value(**fields))

    return change


def _state(index: int, **fields: object) -> Change:
    def change(graph: pb.Graph) -> None:
        for name, field in fields.items():
            setattr(graph.states[index], name, field)

    return change


def _state_in_subgraph(graph: pb.Graph) -> None:
    graph.subgraphs[1].states.add(name="own", value=1)


def _value_of_no_id(graph: pb.Graph) -> None:
    graph.values[1].id = 0


def _value_twice_in_a_subgraph(graph: pb.Graph) -> None:
    graph.subgraphs[0].values[1].id = 1


def _scalar_state(graph: pb.Graph) -> None:
    graph.values[2].kind = pb.VALUE_KIND_SYM_INT


def _tied_of_other_dtype(graph: pb.Graph) -> None:
    graph.values[10].dtype = pb.DTYPE_INT32


def _tied_of_other_dims(graph: pb.Graph) -> None:
    graph.values[10].dims[0].constant = 3
    graph.values[10].dims[1].constant = 4


def _dynamic_state(graph: pb.Graph) -> None:
    graph.values[1].dims[0].symbol = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_value_of_no_id, r"^value 0 \('linear.weight'\): an id must be at least 1 and unique"),
        (_second_value(id=1), r"^value 1 \('linear.weight'\): an id must be at least 1 and unique"),
        (_value_twice_in_a_subgraph, r"^subgraph 0, value 1 \('result'\): an id must be at least 1"),
        (_state_in_subgraph, "^subgraph 1: has states of its own; they belong to the outermost graph"),
        (_state(1, name="linear.weight"), "^state 'linear.weight': another state has the same name"),
        (_state(1, sha256=b"short"), "^state 'linear.bias': a sha256 of 5 bytes, needs 32, or none"),
        (_state(1, value=99), "^state 'linear.bias': its value 99 is not a tensor of the graph"),
        (_scalar_state, "^state 'linear.bias': its value 3 is not a tensor of the graph"),
        (_tied_of_other_dtype, "^state 'tied.weight': the states of tie group 1 differ in dtype or dims"),
        (_tied_of_other_dims, "^state 'tied.weight': the states of tie group 1 differ in dtype or dims"),
        (_dynamic_state, "^state 'linear.weight': value 2 .*: dimension 0: speaks of symbol 1"),
        (_state(0, name=""), "^state '': not a name that a weight may have"),
        (_state(0, name="a;b"), "^state 'a;b': not a name"),
        (_state(0, name="a\nb"), "not a name that a weight may have"),
        (_state(0, name="x" * (MAX_NAME_LENGTH + 1)), r"^state 'x+\.\.\.': not a name"),
    ],
)
def test_what_is_wrong_is_named(change: Change, words: str) -> None:
    graph = small_message()
    change(graph)
    refused(graph, words)


def test_states_of_no_tie_group_are_not_tied() -> None:
    """Weight and bias differ in dims."""
    graph = small_message()
    for state in graph.states:
        state.tie_group = 0
    check_message(graph)


def test_names_of_weights() -> None:
    graph = small_message()
    for name in ("x" * MAX_NAME_LENGTH, "layers.0/attention:kernel-1_@v", "größe"):
        graph.states[0].name = name
        check_message(graph)


def test_text_from_outside_is_shown_short() -> None:
    assert shown("a'b") == '"a\'b"'
    assert shown("x" * 80) == repr("x" * 80)
    assert shown("x" * 81) == repr("x" * 77 + "...")
