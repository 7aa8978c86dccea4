"""What is no graph is named; what is one passes. Hostile bytes have tests of their own in tests/security."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import GraphError
from planner.graph.bounds import MAX_NODES
from planner.graph.check import check_graph, why_not_deployable
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import (
    DeviceClass,
    Dtype,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    Symbol,
    TreeDict,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)

ADD = Operator(kind=OperatorKind.ATEN, name="aten::add", overload="Tensor")
OPAQUE = Operator(kind=OperatorKind.OPAQUE, name="anything at all")
BATCH = SymbolReference(1)


def _value(value_id: int, *dims: object, **fields: object) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=dims or (BATCH, 4), **fields)  # type: ignore[arg-type]


def _node(output: int, *reads: int, operator: Operator = ADD) -> Node:
    return Node(
        operator=operator, arguments=tuple(ValueReference(value_id) for value_id in reads), outputs=(output,), name="n"
    )


def _graph(**changes: object) -> Graph:
    """y = (x + w) + x"""
    sound = Graph(
        torch_version="2.13.0",
        name="sound",
        symbols=(Symbol(id=1, name="batch", lower=1, upper=None, hint=2),),
        values=(_value(1), _value(2, 4), _value(3), _value(4)),
        nodes=(_node(3, 1, 2), _node(4, 3, 1)),
        states=(State(name="w", value_id=2, kind=StateKind.PARAMETER),),
        inputs=(Input(name="x", content=ValueReference(1)),),
        outputs=(Output(name="y", content=ValueReference(4)),),
        input_tree=TreeTuple((TreeTuple((TreeLeaf(),)), TreeDict((), ()))),
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


def test_a_sound_graph_passes() -> None:
    check_graph(_graph())


def _power(exponent: object) -> Operation:
    return Operation(ExpressionOperator.POWER, (BATCH, exponent))  # type: ignore[arg-type]


def _nested(depth: int) -> object:
    expression: object = BATCH
    for _ in range(depth):
        expression = Operation(ExpressionOperator.ADD, (expression, 1))  # type: ignore[arg-type]
    return expression


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": (_node(4, 3, 1), _node(3, 1, 2))}, r"node 0 \('n'\): reads value 3, which nothing before it gives"),
        (
            {"nodes": (_node(3, 4, 1), _node(4, 3, 1))},
            r"node 0 .*: the nodes form a cycle: (0|1) .* → (0|1) .* → (0|1) ",
        ),
        (
            {"nodes": (_node(3, 3), _node(4, 1))},
            r"the nodes form a cycle: 0 \('n'\) → 0 \('n'\), each read by the next",
        ),
        ({"nodes": (_node(4, 3), _node(3, 1))}, r"nothing before it gives, but node 1 \('n'\) after it; put"),
        (
            {"nodes": (replace(_node(3, 1), opaque_seconds=(("cpu", float("nan")),)),)},
            r"for 'cpu' is nan, needs a finite",
        ),
        ({"nodes": (_node(3, 1, 2), _node(3, 3, 1))}, r"node 1 .*: gives value 3, which something before it gives"),
        ({"nodes": (_node(3, 1, 2), _node(9, 3, 1))}, r"node 1 .*: gives value 9, which the graph does not have"),
        ({"values": (*_graph().values, _value(3))}, r"value 3 .* unique"),
        ({"values": (*_graph().values, _value(5))}, r"value 5 .*: given by no input, state or node"),
        ({"values": (_value(1, 2**50), *_graph().values[1:])}, r"value 1 .*: dimension 0 is 1125899906842624"),
        ({"values": (_value(1, -1), *_graph().values[1:])}, r"value 1 .*: dimension 0 is -1"),
        ({"values": (_value(1, 2**30, 2**30), *_graph().values[1:])}, r"value 1 .*: 4611686018427387904 bytes"),
        ({"values": (_value(1, SymbolReference(7)), *_graph().values[1:])}, r"value 1 .*: speaks of symbol 7"),
        ({"values": (_value(1, _power(65)), *_graph().values[1:])}, r"exponent must be a constant from 0 to 64"),
        ({"values": (_value(1, _power(BATCH)), *_graph().values[1:])}, r"exponent must be a constant"),
        ({"values": (_value(1, _nested(65)), *_graph().values[1:])}, r"nested more than 64 deep"),
        ({"values": (_value(1, 4, strides=(1, 1)), *_graph().values[1:])}, r"2 strides for 1 dimensions"),
        ({"values": (_value(1, 4, device_class="tpu"), *_graph().values[1:])}, r"device class 'tpu'"),
        ({"states": (State(name="a b()", value_id=2, kind=StateKind.BUFFER),)}, r"has the character '\('"),
        ({"states": (State(name="w", value_id=2, kind=StateKind.BUFFER, sha256=b"1"),)}, r"sha256 of 1 bytes"),
        ({"states": (State(name="w", value_id=8, kind=StateKind.BUFFER),)}, r"its value 8 is not a tensor"),
        ({"outputs": (Output(name="y", content=ValueReference(9)),)}, r"output 'y': value 9 is given by nothing"),
        ({"outputs": _graph().outputs * 2, "output_tree": TreeTuple((TreeLeaf(),) * 2)}, r"another output"),
        ({"outputs": ()}, r"output tree: 1 leaves for 0 outputs"),
        ({"input_tree": TreeDict(("a", "a"), (TreeLeaf(), TreeLeaf()))}, r"1 different keys for 2 items"),
        ({"symbols": (Symbol(id=1, name="batch", lower=3, upper=None, hint=2),)}, r"symbol 1 .*: hint 2 is outside"),
        ({"nodes": _graph().nodes * (MAX_NODES // 2 + 1)}, r"nodes, at most 250000"),
    ],
)
def test_what_is_not_sound_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_graph(_graph(**changes))


def test_a_tie_must_be_of_equals() -> None:
    tied = (
        State(name="w", value_id=2, kind=StateKind.PARAMETER, tie_group=1),
        State(name="v", value_id=1, kind=StateKind.PARAMETER, tie_group=1),
    )
    values = (_value(1, 3), *_graph().values[1:])
    with pytest.raises(GraphError, match="state 'v': tied to 'w', which has another dtype, other dims"):
        check_graph(_graph(states=tied, values=values, inputs=(), input_tree=TreeTuple(())))


def test_an_operator_must_be_in_the_vocabulary() -> None:
    operator = Operator(kind=OperatorKind.ATEN, name="aten::from_file")
    with pytest.raises(GraphError, match="'aten::from_file' is not one that graphs may use"):
        check_graph(_graph(nodes=(_node(3, 1, 2, operator=operator), _node(4, 3, 1))))


def test_an_argument_device_must_be_a_class() -> None:
    node = replace(_node(3, 1, 2), keyword_arguments=(("device", DeviceClass("cuda:0; rm")),))
    with pytest.raises(GraphError, match="device class"):
        check_graph(_graph(nodes=(node, _node(4, 3, 1))))


def test_powers_are_bounded_for_every_value_of_their_symbols() -> None:
    """At the hint it is 1; at another value it would fill the memory."""
    expression: object = BATCH
    for _ in range(5):
        expression = Operation(ExpressionOperator.POWER, (expression, 64))  # type: ignore[arg-type]
    symbols = (Symbol(id=1, name="batch", lower=1, upper=None, hint=1),)
    with pytest.raises(GraphError, match="bits, at most 4096"):
        check_graph(_graph(symbols=symbols, values=(_value(1, expression), *_graph().values[1:])))


def test_opaque_nodes_pass_and_cannot_be_deployed() -> None:
    graph = _graph(nodes=(_node(3, 1, 2, operator=OPAQUE), _node(4, 3, 1)))
    check_graph(graph)
    assert "node 'n' is opaque" in str(why_not_deployable(graph, has_weights=True))


def test_a_graph_with_states_needs_weights() -> None:
    assert why_not_deployable(_graph(), has_weights=True) is None
    assert "no weights are attached" in str(why_not_deployable(_graph(), has_weights=False))
