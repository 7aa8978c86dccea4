"""Graphs go to messages and come back equal, whatever they hold; what is no graph is refused by name."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import GraphError
from planner.graph.expression import Expression, ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Autocast,
    Context,
    DeviceClass,
    Dtype,
    Graph,
    Input,
    Layout,
    MemoryFormat,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    SubgraphReference,
    Symbol,
    TreeDict,
    TreeLeaf,
    TreeList,
    TreeNone,
    TreeObject,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)
from planner.wire.graph import graph_from_bytes, graph_from_proto, graph_to_bytes, graph_to_proto
from planner.wire.graph.arguments import argument_from_proto, argument_to_proto
from planner.wire.graph.expressions import expression_to_proto
from protos.v1 import graph_pb2
from tests.contract.graphs import linear_chain
from tests.random_examples import random_examples

INTEGERS = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(1, 2**32 - 1)
NAMES = st.text(max_size=8)


def _operations(operands: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    binary = [operator for operator in ExpressionOperator if operator.is_binary]
    wide = [operator for operator in ExpressionOperator if not operator.is_binary]
    return st.one_of(
        st.builds(Operation, st.sampled_from(binary), st.tuples(operands, operands)),
        st.builds(Operation, st.sampled_from(wide), st.lists(operands, min_size=1, max_size=3).map(tuple)),
    )


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(INTEGERS, st.builds(SymbolReference, IDS)), _operations, max_leaves=6
)
ARGUMENTS: st.SearchStrategy[Argument] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        INTEGERS,
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        NAMES,
        st.builds(ValueReference, IDS),
        st.builds(SubgraphReference, st.integers(0, 5)),
        st.sampled_from(Dtype),
        st.builds(DeviceClass, st.sampled_from(["cpu", "cuda", "meta"])),
        st.sampled_from(Layout),
        st.sampled_from(MemoryFormat),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.lists(inner, max_size=3).map(tuple).map(ArgumentList)
    ),
    max_leaves=6,
)
TREES = st.recursive(
    st.sampled_from([TreeLeaf(), TreeNone()]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple).map(TreeList),
        st.lists(inner, max_size=3).map(tuple).map(TreeTuple),
        st.dictionaries(NAMES, inner, max_size=3).map(lambda d: TreeDict(tuple(d), tuple(d.values()))),
        st.dictionaries(NAMES, inner, max_size=3).map(lambda d: TreeObject("a.B", tuple(d), tuple(d.values()))),
    ),
    max_leaves=6,
)
CONTEXTS = st.builds(
    Context,
    grad_enabled=st.booleans(),
    autocasts=st.lists(
        st.builds(
            Autocast,
            device_class=st.sampled_from(["cpu", "cuda"]),
            enabled=st.booleans(),
            dtype=st.sampled_from(Dtype),
            cache_enabled=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
)
POSITIONS = st.lists(st.integers(0, 9), max_size=3).map(tuple)
OPERATORS = st.builds(
    Operator,
    kind=st.sampled_from(OperatorKind),
    name=NAMES,
    overload=NAMES,
    mutated_arguments=POSITIONS,
    aliased_arguments=POSITIONS,
    random=st.booleans(),
)


def several(records: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(records, max_size=3).map(tuple)


def graphs(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Graph]:
    return st.builds(
        Graph,
        torch_version=NAMES,
        name=NAMES,
        symbols=several(
            st.builds(
                Symbol,
                id=IDS,
                name=NAMES,
                lower=INTEGERS,
                upper=st.none() | INTEGERS,
                hint=INTEGERS,
                unbacked=st.booleans(),
            )
        ),
        values=several(
            st.builds(
                Value,
                id=IDS,
                kind=st.sampled_from(ValueKind),
                dtype=st.none() | st.sampled_from(Dtype),
                dims=several(EXPRESSIONS),
                strides=several(EXPRESSIONS),
                device_class=NAMES,
                expression=st.none() | EXPRESSIONS,
                opaque_bytes=st.integers(0, 2**63),
                name=NAMES,
                requires_grad=st.booleans(),
            )
        ),
        nodes=several(
            st.builds(
                Node,
                operator=OPERATORS,
                arguments=several(ARGUMENTS),
                keyword_arguments=several(st.tuples(NAMES, ARGUMENTS)),
                outputs=several(st.integers(0, 99)),
                returns_tuple=st.booleans(),
                module_path=NAMES,
                context=CONTEXTS,
                name=NAMES,
                opaque_seconds=st.dictionaries(NAMES, st.floats(0, 9), max_size=2).map(
                    lambda seconds: tuple(sorted(seconds.items()))
                ),
            )
        ),
        states=several(
            st.builds(
                State,
                name=NAMES,
                value_id=IDS,
                kind=st.sampled_from(StateKind),
                sha256=st.binary(max_size=32),
                tie_group=st.integers(0, 9),
                requires_grad=st.booleans(),
                persistent=st.booleans(),
                mutated=st.booleans(),
            )
        ),
        inputs=several(st.builds(Input, name=NAMES, content=ARGUMENTS)),
        outputs=several(st.builds(Output, name=NAMES, content=ARGUMENTS)),
        input_tree=TREES,
        output_tree=TREES,
        training=st.booleans(),
        custom_backwards=several(NAMES),
        **parts,
    )


@pytest.mark.slow
@random_examples(15)
@given(graphs(subgraphs=several(graphs())))
def test_comes_back_equal(graph: Graph) -> None:
    message = graph_to_proto(graph)

    assert graph_from_proto(graph_pb2.Graph.FromString(message.SerializeToString())) == graph
    assert graph_to_bytes(graph) == graph_to_bytes(graph_from_proto(message))


@random_examples(100)
@given(ARGUMENTS)
def test_arguments_keep_their_exact_type(argument: Argument) -> None:
    back = argument_from_proto(argument_to_proto(argument))

    assert back == argument
    assert type(back) is type(argument)


def test_not_a_number_survives() -> None:
    back = argument_from_proto(argument_to_proto(math.nan))

    assert isinstance(back, float)
    assert math.isnan(back)


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(GraphError, match="64 bits"):
        argument_to_proto(2**63)


@random_examples(100)
@given(st.binary(max_size=300))
def test_bytes_are_a_graph_or_refused(data: bytes) -> None:
    with contextlib.suppress(GraphError):
        assert isinstance(graph_from_bytes(data), Graph)


def nested(depth: int) -> Expression:
    expression: Expression = 1
    for _ in range(depth):
        expression = Operation(ExpressionOperator.ADD, (expression, 1))
    return expression


def test_depth_is_bounded_and_what_is_within_comes_through_the_bytes() -> None:
    with pytest.raises(GraphError, match="nested more than 45"):
        expression_to_proto(nested(46))

    value = Value(id=1, kind=ValueKind.TENSOR, dims=(nested(45),))
    graph = Graph(torch_version="", name="", values=(value,), subgraphs=())
    assert graph_from_proto(graph_pb2.Graph.FromString(graph_to_bytes(graph))) == graph


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": 2}, "schema version 2, this planner reads 1; export it again"),
        ({"nodes": [graph_pb2.Node(operator=3, name="mul")]}, r"node 0 \('mul'\): operator 3 is not in the table of 0"),
        ({"values": [graph_pb2.Value(id=1, kind=99, name="v")]}, r"value 0 \('v'\): value kind 99 is not known"),  # type: ignore[arg-type]
        ({"states": [graph_pb2.State(name="w")]}, r"state 0 \('w'\): state kind 0 is not known"),
        ({"inputs": [graph_pb2.Input(name="x")]}, r"input 0 \('x'\): content is empty"),
        ({"input_tree": graph_pb2.PyTree()}, "structure is empty"),
    ],
)
def test_errors_name_the_element(change: dict[str, Any], why: str) -> None:
    tree = graph_pb2.PyTree(none=graph_pb2.NoneArgument())
    parts: dict[str, Any] = {"schema_version": 1, "input_tree": tree, "output_tree": tree, **change}
    with pytest.raises(GraphError, match=why):
        graph_from_proto(graph_pb2.Graph(**parts))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"values": [graph_pb2.Value(id=1, kind=1, dims=[graph_pb2.Expression(constant=1)] * 65)]},
            "65 dims, at most 64",
        ),  # type: ignore[arg-type]
        (
            {"values": [graph_pb2.Value(id=1, kind=1, strides=[graph_pb2.Expression(constant=1)] * 65)]},  # type: ignore[arg-type]
            "65 strides, at most 64",
        ),
        ({"values": [graph_pb2.Value(id=1, kind=1, dims=[graph_pb2.Expression()])]}, "value 0: expression is empty"),  # type: ignore[arg-type]
        ({"inputs": [graph_pb2.Input()] * 100_001}, "100001 inputs, at most 100000"),
        ({"outputs": [graph_pb2.Output()] * 100_001}, "100001 outputs, at most 100000"),
        ({"symbols": [graph_pb2.Symbol()] * 100_001}, "100001 symbols, at most 100000"),
        ({"subgraphs": [graph_pb2.Graph()] * 10_001}, "10001 subgraphs, at most 10000"),
        ({"operators": [graph_pb2.Operator()] * 250_001}, "250001 operators, at most 250000"),
        ({"contexts": [graph_pb2.Context()] * 250_001}, "250001 contexts, at most 250000"),
        ({"module_paths": [""] * 250_001}, "250001 module_paths, at most 250000"),
        ({"subgraphs": [graph_pb2.Graph(schema_version=3)]}, "subgraph 0: graph: schema version 3"),
        (
            {"outputs": [graph_pb2.Output(name="y", constant=graph_pb2.Argument())]},
            r"output 0 \('y'\): argument is empty",
        ),
        (
            {"operators": [graph_pb2.Operator(kind=1)], "nodes": [graph_pb2.Node(module_path=1)]},  # type: ignore[arg-type]
            "node 0: module path 1 is not in the table of 1",
        ),
        (
            {"operators": [graph_pb2.Operator(kind=1)], "nodes": [graph_pb2.Node(context=2)]},  # type: ignore[arg-type]
            "node 0: context 2 is not in the table of 1",
        ),
        (
            {"input_tree": graph_pb2.PyTree(dict=graph_pb2.TreeMapping(keys=["a"]))},
            "container 'dict': 1 keys for 0 items",
        ),
    ],
)
def test_graph_beyond_its_bounds_is_refused(change: dict[str, Any], why: str) -> None:
    tree = graph_pb2.PyTree(none=graph_pb2.NoneArgument())
    parts: dict[str, Any] = {"schema_version": 1, "input_tree": tree, "output_tree": tree, **change}
    with pytest.raises(GraphError, match=why):
        graph_from_proto(graph_pb2.Graph(**parts))


def test_graphs_within_graphs_are_read_to_a_depth() -> None:
    tree = graph_pb2.PyTree(none=graph_pb2.NoneArgument())
    message = graph_pb2.Graph(schema_version=1, input_tree=tree, output_tree=tree)
    for _ in range(16):
        inner = message
        message = graph_pb2.Graph(schema_version=1, input_tree=tree, output_tree=tree, subgraphs=[inner])
    graph_from_proto(message)
    deeper = graph_pb2.Graph(schema_version=1, input_tree=tree, output_tree=tree, subgraphs=[message])
    with pytest.raises(GraphError, match="nested more than 16 deep"):
        graph_from_proto(deeper)


def test_bytes_that_are_no_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphError, match="these 3 bytes are not a serialized graph"):
        graph_from_bytes(b"\xff\xff\xff")
    monkeypatch.setattr("planner.wire.graph.serialize.MAX_GRAPH_BYTES", 2)
    with pytest.raises(GraphError, match="3 bytes, at most 2 are read"):
        graph_from_bytes(b"\xff\xff\xff")


def test_bytes_are_read_as_a_graph_only_once_it_is_sound() -> None:
    unsound = Graph(torch_version="", name="", outputs=(Output(name="y", content=ValueReference(7)),))
    assert graph_from_proto(graph_to_proto(unsound)) == unsound
    with pytest.raises(GraphError):
        graph_from_bytes(graph_to_bytes(unsound))


def test_records_that_repeat_stand_in_a_table_once() -> None:
    operator = Operator(kind=OperatorKind.ATEN, name="aten::relu", overload="default")
    paths = ("layers.1", "layers.0", "layers.1")
    nodes = tuple(Node(operator=operator, arguments=(), outputs=(), module_path=path) for path in paths)
    message = graph_to_proto(Graph(torch_version="", name="", nodes=nodes))
    assert [one.name for one in message.operators] == ["aten::relu"]
    assert (list(message.module_paths), [node.module_path for node in message.nodes]) == (
        ["layers.1", "layers.0"],
        [0, 1, 0],
    )
    assert len(message.contexts) == 1


def test_smallest_graph_of_each_kind_of_content_comes_back() -> None:
    graph = Graph(
        torch_version="",
        name="",
        inputs=(Input(name="x", content=ValueReference(3)), Input(name="k", content=2**53 + 1)),
        outputs=(Output(name="y", content=ValueReference(4)), Output(name="n", content=None)),
        values=(Value(id=2**32 - 1, kind=ValueKind.OPAQUE, opaque_bytes=2**53 + 1, dims=(2**53 + 1,)),),
    )
    message = graph_to_proto(graph)
    assert [entry.WhichOneof("content") for entry in message.inputs] == ["value", "constant"]
    assert [entry.WhichOneof("content") for entry in message.outputs] == ["value", "constant"]
    assert graph_from_proto(message) == graph


def test_sound_graph_comes_back_from_its_bytes() -> None:
    graph = linear_chain(3)
    assert graph_from_bytes(graph_to_bytes(graph)) == graph
