"""What the tables of undeclared effects say is what torch does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from planner.graph.effects import copies, shares, writes
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Dtype,
    Node,
    Operator,
    OperatorKind,
    SubgraphReference,
    ValueReference,
)
from tests.builders.random_graphs import GraphWriter

EYE = torch.eye(3)

# Calls whose schema promises a new tensor: operator, arguments.
CALLS: list[tuple[str, str, Sequence[object]]] = [
    ("_unsafe_view", "default", (EYE, [9])),
    ("alpha_dropout", "default", (EYE, 0.5, False)),
    ("atleast_1d", "default", (EYE,)),
    ("atleast_2d", "default", (EYE,)),
    ("broadcast_tensors", "default", ([EYE, EYE[0]],)),
    ("conj_physical", "default", (EYE,)),
    ("dropout", "default", (EYE, 0.5, False)),
    ("dropout", "default", (EYE, 0.5, True)),
    ("dropout", "default", (EYE, 0.0, True)),
    ("einsum", "default", ("ij->ji", [EYE])),
    ("einsum", "default", ("ij,jk->ik", [EYE, EYE])),
    ("feature_alpha_dropout", "default", (EYE, 0.5, False)),
    ("feature_dropout", "default", (EYE, 0.5, False)),
    ("meshgrid", "default", ([EYE[0], EYE[1]],)),
    ("mul", "Tensor", (EYE, EYE)),
    ("type_as", "default", (EYE, EYE)),
    ("unsafe_chunk", "default", (EYE, 2)),
    ("unsafe_split", "Tensor", (EYE, 2)),
    ("unsafe_split_with_sizes", "default", (EYE, [1, 2])),
]


def node_of(writer: GraphWriter, name: str, arguments: Sequence[object], num_outputs: int) -> Node:
    def argument(value: object) -> Argument:
        if isinstance(value, torch.Tensor):
            value_id = writer.input()
            return ValueReference(value_id)
        if isinstance(value, list):
            return ArgumentList(tuple(argument(item) for item in value))
        return value  # type: ignore[return-value]

    operator = Operator(kind=OperatorKind.ATEN, name=f"aten::{name}")
    content = tuple(argument(value) for value in arguments)
    outputs = tuple(writer.tensor() for _ in range(num_outputs))
    return Node(operator=operator, arguments=content, outputs=outputs)


@pytest.mark.parametrize(("name", "overload", "arguments"), CALLS)
def test_an_output_that_shares_storage_is_found(name: str, overload: str, arguments: Sequence[object]) -> None:
    returned = getattr(getattr(torch.ops.aten, name), overload)(*arguments)
    outputs = list(returned) if isinstance(returned, list | tuple) else [returned]
    truly = any(output.untyped_storage().data_ptr() == EYE.untyped_storage().data_ptr() for output in outputs)
    writer = GraphWriter()
    node = node_of(writer, name, arguments, len(outputs))
    graph = writer.graph()
    sharing = {output for output, _ in shares(graph, node, graph.values_by_id())}
    assert sharing == (set(node.outputs) if truly else set())


def test_an_operand_that_is_given_twice_does_not_stand_alone() -> None:
    writer = GraphWriter()
    operand = ValueReference(writer.input())
    einsum = Operator(kind=OperatorKind.ATEN, name="aten::einsum")
    product = Node(
        operator=einsum, arguments=("ij,kj->ik", ArgumentList((operand, operand))), outputs=(writer.tensor(),)
    )
    graph = writer.graph()
    assert not list(shares(graph, product, graph.values_by_id()))


def found_in(writer: GraphWriter) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Of the writer's last node: (output, argument) that may share storage, and what it writes."""
    graph = writer.graph()
    node = graph.nodes[-1]
    return list(shares(graph, node, graph.values_by_id())), writes(graph, node)


def test_each_output_prefers_the_argument_at_its_place_where_they_match_one_to_one() -> None:
    writer = GraphWriter()
    first, second, one, two = writer.input(), writer.input(), writer.tensor(), writer.tensor()
    operator = Operator(kind=OperatorKind.ATEN, name="aten::broadcast_tensors")
    writer.call(operator, ArgumentList((ValueReference(first), ValueReference(second))), outputs=[one, two])
    assert found_in(writer) == ([(one, first), (one, second), (two, second), (two, first)], ())
    writer.call(operator, ArgumentList((ValueReference(first), ValueReference(second))), outputs=[writer.tensor(), 0])
    assert found_in(writer)[0] == [(5, first), (5, second)]


def test_only_what_has_storage_shares_it() -> None:
    writer = GraphWriter()
    size, result = writer.scalar(), writer.tensor()
    operator = Operator(kind=OperatorKind.ATEN, name="aten::view", aliased_arguments=(0, 1))
    writer.call(operator, ValueReference(writer.input()), ValueReference(size), outputs=[result, writer.scalar()])
    assert found_in(writer) == ([(result, 3)], ())


@pytest.mark.parametrize(
    ("probability", "train", "shares_input"), [(0.5, True, False), (0.0, True, True), (0.5, False, True)]
)
def test_a_dropout_shares_only_where_it_drops_nothing_whatever_its_graph_says(
    probability: float, train: bool, shares_input: bool
) -> None:
    writer = GraphWriter()
    batch, result = writer.input(), writer.tensor()
    operator = Operator(kind=OperatorKind.ATEN, name="aten::dropout", overload="default", aliased_arguments=(0,))
    writer.call(operator, ValueReference(batch), probability, train, outputs=[result])
    assert found_in(writer)[0] == ([(result, batch)] if shares_input else [])


@pytest.mark.parametrize("name", ["aten::to", "aten::type_as"])
def test_a_conversion_shares_only_where_the_dtype_stays(name: str) -> None:
    writer = GraphWriter()
    batch, same, other = writer.input(), writer.tensor(), writer.tensor()
    writer.values[other - 1] = replace(writer.values[other - 1], dtype=Dtype.FLOAT16)
    operator = Operator(kind=OperatorKind.ATEN, name=name, aliased_arguments=(0,))
    writer.call(operator, ValueReference(batch), outputs=[same])
    assert found_in(writer)[0] == [(same, batch)]
    writer.call(operator, ValueReference(batch), outputs=[other])
    assert found_in(writer)[0] == []


@pytest.mark.parametrize(
    ("name", "kind", "in_place"),
    [
        ("aten::add_", OperatorKind.ATEN, True),
        ("aten::__iand__", OperatorKind.ATEN, False),
        ("aten::add", OperatorKind.ATEN, False),
        ("mine_", OperatorKind.OPAQUE, False),
    ],
)
def test_a_name_that_ends_in_an_underscore_writes_its_first_argument(
    name: str, kind: OperatorKind, in_place: bool
) -> None:
    writer = GraphWriter()
    target, other, result = writer.input(), writer.input(), writer.tensor()
    writer.call(Operator(kind=kind, name=name), ValueReference(target), ValueReference(other), outputs=[result])
    assert found_in(writer) == (([(result, target)], (target,)) if in_place else ([], ()))


@pytest.mark.parametrize(("name", "copied"), [("reshape", True), ("flatten", True), ("view", False)])
def test_a_reshape_copies_what_has_strides(name: str, copied: bool) -> None:
    writer = GraphWriter()
    batch, result = (writer.values[writer.tensor() - 1] for _ in range(2))
    node = Node(operator=Operator(kind=OperatorKind.ATEN, name=f"aten::{name}"), arguments=(), outputs=(result.id,))
    assert not copies(node, result, batch)
    assert copies(node, result, replace(batch, strides=(1, 3))) is copied


def test_contiguous_copies_where_the_strides_change() -> None:
    writer = GraphWriter()
    batch, result = (writer.values[writer.tensor() - 1] for _ in range(2))
    node = Node(operator=Operator(kind=OperatorKind.ATEN, name="aten::contiguous"), arguments=(), outputs=(result.id,))
    assert not copies(node, result, batch)
    assert copies(node, result, replace(batch, strides=(1, 3)))
    assert not copies(node, replace(result, strides=(1, 3)), replace(batch, strides=(1, 3)))


def branching(*, returns_input: bool, writes_copy: bool = False) -> GraphWriter:
    """A branch that returns its input, or something new; or that writes what it has made itself."""
    branch = GraphWriter()
    entered = branch.input()
    product = branch.multiply(entered)
    if writes_copy:
        branch.add_in_place(product, entered)
    writer = GraphWriter()
    writer.subgraphs.append(branch.graph(branch.view(entered) if returns_input else product))
    operands = (SubgraphReference(0), ArgumentList((ValueReference(writer.input()),)))
    writer.call(Operator(kind=OperatorKind.HIGHER_ORDER, name="cond"), *operands, outputs=[writer.tensor()])
    return writer


def test_a_branch_that_returns_its_input_shares_it() -> None:
    assert found_in(branching(returns_input=True)) == ([(2, 1)], ())
    assert found_in(branching(returns_input=False)) == ([], ())


def test_a_branch_may_write_what_it_has_made() -> None:
    assert found_in(branching(returns_input=False, writes_copy=True)) == ([], ())


def test_what_a_custom_functions_backward_returns_says_nothing_of_its_results() -> None:
    forward, backward = GraphWriter(), GraphWriter()
    gradient = backward.input()
    writer = GraphWriter()
    writer.subgraphs += [forward.graph(forward.multiply(forward.input())), backward.graph(backward.view(gradient))]
    operands = (SubgraphReference(0), SubgraphReference(1), (ValueReference(writer.input()),), (), (0,), (True,))
    operator = Operator(kind=OperatorKind.HIGHER_ORDER, name="custom_function")
    writer.call(operator, *operands, outputs=[writer.tensor()])
    assert found_in(writer) == ([], ())
    writer.subgraphs.reverse()
    assert found_in(writer) == ([(2, 1)], ())


@pytest.mark.parametrize(("training", "written"), [(True, (2, 3)), (False, ()), (None, (2, 3))])
def test_a_norm_whose_mode_is_not_known_writes(training: bool | None, written: tuple[int, ...]) -> None:
    writer = GraphWriter()
    references = [ValueReference(writer.input()) for _ in range(3)]
    arguments = (references[0], None, None, *references[1:], *([] if training is None else [training]))
    writer.call(Operator(kind=OperatorKind.ATEN, name="aten::batch_norm"), *arguments, outputs=[writer.tensor()])
    assert found_in(writer)[1] == written


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_a_norm_that_writes_its_statistics_is_found(name: str, training: bool) -> None:
    batch, mean, variance = torch.rand(2, 3, 4), torch.zeros(3), torch.ones(3)
    arguments = (batch, None, None, mean, variance, training, 0.1, 1e-5, False)
    getattr(torch.ops.aten, name).default(*arguments)
    truly = bool(mean.any())
    writer = GraphWriter()
    node = node_of(writer, name, arguments, 1)
    written = writes(writer.graph(), node)
    assert truly is training
    assert len(written) == (2 if truly else 0)
