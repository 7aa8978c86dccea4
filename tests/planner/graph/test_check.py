"""What is no graph is named; what is one passes. Hostile bytes have tests of their own in tests/security."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import GraphError
from planner.graph.bounds import MAX_NODES, MAX_SUBGRAPH_DEPTH, MAX_TOTAL_SUBGRAPHS
from planner.graph.check import check_graph, why_not_deployable
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import (
    ArgumentList,
    Autocast,
    Context,
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
    SubgraphReference,
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
BATCH_SYMBOL = Symbol(id=1, name="batch", lower=1, upper=None, hint=2)


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
        symbols=(BATCH_SYMBOL,),
        values=(_value(1), _value(2, 4), _value(3), _value(4)),
        nodes=(_node(3, 1, 2), _node(4, 3, 1)),
        states=(State(name="w", value_id=2, kind=StateKind.PARAMETER),),
        inputs=(Input(name="x", content=ValueReference(1)),),
        outputs=(Output(name="y", content=ValueReference(4)),),
        input_tree=TreeTuple((TreeTuple((TreeLeaf(),)), TreeDict((), ()))),
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


def _autocast(device_class: str) -> Autocast:
    return Autocast(device_class=device_class, enabled=True, dtype=Dtype.BFLOAT16, cache_enabled=True)


def test_a_sound_graph_passes() -> None:
    check_graph(_graph())


@pytest.mark.parametrize(
    "changes",
    [
        {"values": (_value(1, 2**24, 2**24), *_graph().values[1:])},
        {"values": (_value(1, 0, 2**40), *_graph().values[1:])},
        {"values": (_value(1, *[1] * 64), *_graph().values[1:])},
        {"values": (_value(1, 4, strides=(0,)), *_graph().values[1:])},
        {"values": (replace(_value(1), opaque_bytes=2**50), *_graph().values[1:])},
        {"values": (replace(_value(1), device_class="meta"), *_graph().values[1:])},
        {"symbols": (Symbol(id=1, name="batch", lower=2, upper=2, hint=2),)},
        {"symbols": (Symbol(id=1, name="batch", lower=3, upper=None, hint=2, unbacked=True),)},
        {"states": (State(name="w", value_id=2, kind=StateKind.BUFFER, sha256=b"1" * 32),)},
        {"inputs": (Input(name="x", content=ValueReference(1)), Input(name="y", content=None))}
        | {"input_tree": TreeTuple((TreeLeaf(), TreeLeaf()))},
        {"outputs": (Output(name="y", content=3),)},
        {
            "nodes": (
                replace(_node(3, 1, 2), context=Context(autocasts=(_autocast("cpu"), _autocast("cuda")))),
                _node(4, 3, 1),
            )
        },
        {"nodes": (replace(_node(3, 1, 2), keyword_arguments=(("a" * 256, 1),)), _node(4, 3, 1))},
        {"nodes": (replace(_node(3, 1, 2), opaque_seconds=(("cpu", 0.0),)), _node(4, 3, 1))},
        {"nodes": (replace(_node(3, 1, 2), outputs=(3, 0), returns_tuple=True), _node(4, 3, 1))},
        {"nodes": (_node(3, 1, 2, operator=replace(ADD, mutated_arguments=(255,))), _node(4, 3, 1))},
    ],
)
def test_what_reaches_a_bound_passes(changes: dict[str, object]) -> None:
    check_graph(_graph(**changes))


def _branch(**changes: object) -> Graph:
    """z = a + a"""
    whole = Graph(
        torch_version="2.13.0",
        name="branch",
        values=(_value(1), _value(2)),
        nodes=(_node(2, 1, 1),),
        inputs=(Input(name="a", content=ValueReference(1)),),
        outputs=(Output(name="z", content=ValueReference(2)),),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_a_subgraph_may_speak_of_its_parents_symbols_and_is_checked_like_them() -> None:
    check_graph(_graph(subgraphs=(_branch(),)))
    with pytest.raises(GraphError, match=r"^subgraph 0, symbol 1 \('batch'\): an id must be at least 1 and unique"):
        check_graph(_graph(subgraphs=(_branch(symbols=_graph().symbols),)))
    with pytest.raises(GraphError, match=r"^subgraph 1: has states of its own"):
        check_graph(_graph(subgraphs=(_branch(), _branch(states=_graph().states))))
    inner = _branch(subgraphs=(_branch(nodes=(_node(2, 9),)),))
    with pytest.raises(GraphError, match=r"^subgraph 0, subgraph 0, node 0 \('n'\): reads value 9"):
        check_graph(_graph(subgraphs=(inner,)))
    with pytest.raises(GraphError, match=r"^subgraph 0, value 3 \(''\): given by no input"):
        check_graph(_graph(subgraphs=(_branch(values=(_value(1), _value(2), _value(3))),)))


def test_subgraphs_may_be_sixteen_deep() -> None:
    nested = _branch()
    for _ in range(MAX_SUBGRAPH_DEPTH - 1):
        nested = _branch(subgraphs=(nested,))
    check_graph(_graph(subgraphs=(nested,)))
    with pytest.raises(GraphError, match="subgraphs are nested more than 16 deep"):
        check_graph(_graph(subgraphs=(_branch(subgraphs=(nested,)),)))


def test_counts_are_of_the_graph_with_its_subgraphs() -> None:
    with pytest.raises(GraphError, match=r"10001 subgraphs, at most 10000"):
        check_graph(_graph(subgraphs=(_branch(),) * (MAX_TOTAL_SUBGRAPHS + 1)))
    many = _branch(nodes=_branch().nodes * (MAX_NODES - 1))
    with pytest.raises(GraphError, match=r"graph: 250001 nodes, at most 250000"):
        check_graph(_graph(subgraphs=(many,)))


def test_a_tie_of_equals_passes_and_another_digest_does_not() -> None:
    tied = (
        State(name="w", value_id=2, kind=StateKind.PARAMETER, tie_group=1, sha256=b"1" * 32),
        State(name="v", value_id=1, kind=StateKind.PARAMETER, tie_group=1, sha256=b"1" * 32),
    )
    rest: dict[str, object] = {
        "values": (_value(1, 4), *_graph().values[1:]),
        "inputs": (),
        "input_tree": TreeTuple(()),
    }
    check_graph(_graph(states=tied, **rest))
    with pytest.raises(GraphError, match="another sha256"):
        check_graph(_graph(states=(tied[0], replace(tied[1], sha256=b"2" * 32)), **rest))
    check_graph(_graph(states=(tied[0], replace(tied[1], sha256=b"2" * 32, tie_group=2)), **rest))


def test_an_opaque_value_cannot_be_deployed() -> None:
    opaque = Value(id=3, kind=ValueKind.OPAQUE, opaque_bytes=7, name="blob")
    graph = _graph(values=(_value(1), _value(2, 4), opaque, _value(4)))
    check_graph(graph)
    assert "value 3 ('blob') is opaque: it has a size" in str(why_not_deployable(graph, has_weights=True))
    inside = _graph(subgraphs=(_branch(nodes=(_node(2, 1, operator=OPAQUE),)),))
    assert "node 'n' is opaque" in str(why_not_deployable(inside, has_weights=True))
    assert why_not_deployable(_graph(states=(), nodes=()), has_weights=False) is None


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
        ({"name": "a\nb"}, r"graph: the name .* cannot be printed"),
        ({"symbols": (replace(BATCH_SYMBOL, id=0),)}, r"symbol 0 .*: an id must be at least 1 and unique"),
        ({"symbols": (BATCH_SYMBOL, BATCH_SYMBOL)}, r"symbol 1 .*: an id must be at least 1 and unique"),
        ({"symbols": (replace(BATCH_SYMBOL, upper=0),)}, r"upper bound 0 is below lower bound 1"),
        ({"symbols": (replace(BATCH_SYMBOL, upper=1),)}, r"symbol 1 .*: hint 2 is outside of 1 to 1"),
        ({"symbols": (replace(BATCH_SYMBOL, name="a=b"),)}, r"symbol 1 .* has the character '='"),
        ({"values": (replace(_value(1), id=0), *_graph().values[1:])}, r"value 0 .*: an id must be at least 1"),
        ({"values": (replace(_value(1), name="\x00"), *_graph().values[1:])}, r"value 1 .* cannot be printed"),
        ({"values": (replace(_value(1), dtype=None), *_graph().values[1:])}, r"value 1 .*: a tensor needs a dtype"),
        (
            {"values": (replace(_value(1), kind=ValueKind.SYM_INT), *_graph().values[1:])},
            r"value 1 .*: only a tensor has a dtype, dims and strides",
        ),
        (
            {"values": (Value(id=1, kind=ValueKind.SYM_INT, expression=SymbolReference(7)), *_graph().values[1:])},
            r"value 1 .*: speaks of symbol 7",
        ),
        ({"values": (replace(_value(1), opaque_bytes=-1), *_graph().values[1:])}, r"-1 bytes, needs 0 to 2\^50"),
        (
            {"values": (replace(_value(1), opaque_bytes=2**50 + 1), *_graph().values[1:])},
            r"1125899906842625 bytes, needs 0 to 2\^50",
        ),
        ({"values": (_value(1, *[1] * 65), *_graph().values[1:])}, r"65 dimensions, at most 64 are allowed"),
        ({"values": (_value(1, 4, strides=(-1,)), *_graph().values[1:])}, r"stride 0 is -1, needs 0 to 2\^40"),
        ({"states": _graph().states * 2}, r"state 'w': another state has the same name"),
        ({"states": (replace(_graph().states[0], tie_group=-1),)}, r"state 'w': tie group -1, needs 0 or more"),
        ({"states": (replace(_graph().states[0], value_id=1),)}, r"state 'w': its dims and strides must be constants"),
        ({"states": ()}, r"node 0 .*: reads value 2, which nothing before it gives$"),
        ({"inputs": (Input(name="", content=ValueReference(1)),)}, r"input '': the name is empty"),
        (
            {"inputs": (Input(name="x", content=ArgumentList((ValueReference(1),))),)},
            r"input 'x': a constant cannot hold a value or a subgraph",
        ),
        ({"outputs": (Output(name="y", content=SubgraphReference(0)),)}, r"output 'y': a constant cannot hold"),
        ({"outputs": (Output(name="y;", content=None),)}, r"output 'y;': .* has the character ';'"),
        ({"nodes": (replace(_node(3, 1, 2), name="\x07"), _node(4, 3, 1))}, r"node 0 .*: .* cannot be printed"),
        ({"nodes": (replace(_node(3, 1, 2), module_path="\x07"), _node(4, 3, 1))}, r"node 0 .*: .* cannot be printed"),
        (
            {"nodes": (replace(_node(3, 1, 2), keyword_arguments=(("a.b", 1),)), _node(4, 3, 1))},
            r"keyword argument 'a.b' is not the name of an argument",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), keyword_arguments=(("a" * 257, 1),)), _node(4, 3, 1))},
            r"is not the name of an argument",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), keyword_arguments=(("a", 1), ("a", 2))), _node(4, 3, 1))},
            r"a keyword argument stands twice",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), keyword_arguments=(("a", ValueReference(4)),)), _node(4, 3, 1))},
            r"the nodes form a cycle: ",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), opaque_seconds=(("cpu", -1e-9),)), _node(4, 3, 1))},
            r"opaque_seconds for 'cpu' is -1e-09, needs a finite number from 0",
        ),
        ({"nodes": (replace(_node(3, 1, 2), outputs=(3, 0)), _node(4, 3, 1))}, r"2 outputs, but it does not return"),
        (
            {"nodes": (replace(_node(3, 1, 2), arguments=(SubgraphReference(0),)), _node(4, 3, 1))},
            r"speaks of subgraph 0; the graph has 0",
        ),
        (
            {"nodes": (_node(3, 1, 2, operator=replace(ADD, mutated_arguments=(256,))), _node(4, 3, 1))},
            r"operator 'aten::add.Tensor': argument position 256",
        ),
        (
            {"nodes": (_node(3, 1, 2, operator=replace(ADD, aliased_arguments=(-1,))), _node(4, 3, 1))},
            r"argument position -1",
        ),
        (
            {"nodes": (_node(3, 1, 2, operator=replace(ADD, overload="Scalars")), _node(4, 3, 1))},
            r"operator 'aten::add.Scalars' is not one that graphs may use",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), context=Context(autocasts=(_autocast("meta"),))), _node(4, 3, 1))},
            r"autocast for \['meta'\], needs each of \['cpu', 'cuda'\] at most once",
        ),
        (
            {"nodes": (replace(_node(3, 1, 2), context=Context(autocasts=(_autocast("cpu"),) * 2)), _node(4, 3, 1))},
            r"autocast for \['cpu', 'cpu'\]",
        ),
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


@pytest.mark.parametrize("name", ["gelu", "my::", "my::gelu;import os", "my::" + "g" * 101, "my.ops::gelu"])
def test_a_custom_operator_has_a_name_as_torch_has_them(name: str) -> None:
    """Whether it is run is the daemon's matter."""
    custom = Operator(kind=OperatorKind.CUSTOM, name="my::gelu", overload="default")
    check_graph(_graph(nodes=(_node(3, 1, 2, operator=custom), _node(4, 3, 1))))
    with pytest.raises(GraphError, match="is custom and needs NAMESPACE::NAME"):
        check_graph(_graph(nodes=(_node(3, 1, 2, operator=replace(custom, name=name)), _node(4, 3, 1))))


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
