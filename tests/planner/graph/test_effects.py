"""What the tables of undeclared effects say is what torch does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from planner.graph.effects import shares, writes
from planner.graph.ir import Argument, ArgumentList, Node, Operator, OperatorKind, ValueReference
from tests.builders.random_graphs import GraphWriter

EYE = torch.eye(3)

# Calls whose schema promises a new tensor: operator, arguments.
CALLS: list[tuple[str, str, Sequence[object]]] = [
    ("_unsafe_view", "default", (EYE, [9])),
    ("alpha_dropout", "default", (EYE, 0.5, False)),
    ("atleast_1d", "default", (EYE,)),
    ("atleast_2d", "default", (EYE,)),
    ("atleast_3d", "default", (EYE,)),
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
    ("sum_to_size", "default", (EYE, [3, 3])),
    ("type_as", "default", (EYE, EYE)),
    ("unsafe_chunk", "default", (EYE, 2)),
    ("unsafe_split", "Tensor", (EYE, 2)),
    ("unsafe_split_with_sizes", "default", (EYE, [1, 2])),
]


def node_of(writer: GraphWriter, name: str, arguments: Sequence[object], num_outputs: int) -> Node:
    def argument(given: object) -> Argument:
        if isinstance(given, torch.Tensor):
            value_id = writer.input()
            return ValueReference(value_id)
        if isinstance(given, list):
            return ArgumentList(tuple(argument(item) for item in given))
        return given  # type: ignore[return-value]

    operator = Operator(kind=OperatorKind.ATEN, name=f"aten::{name}")
    content = tuple(argument(given) for given in arguments)
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
    found = {output for output, _ in shares(graph, node, graph.values_by_id())}
    assert found == (set(node.outputs) if truly else set())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "native_batch_norm"])
def test_a_norm_that_writes_its_statistics_is_found(name: str, training: bool) -> None:
    batch, mean, variance = torch.rand(2, 3, 4), torch.zeros(3), torch.ones(3)
    tail = (0.1, 1e-5) if name == "native_batch_norm" else (0.1, 1e-5, False)
    arguments = (batch, None, None, mean, variance, training, *tail)
    getattr(torch.ops.aten, name).default(*arguments)
    truly = bool(mean.any())
    writer = GraphWriter()
    node = node_of(writer, name, arguments, 1)
    written = writes(writer.graph(), node)
    assert truly is training
    assert len(written) == (2 if truly else 0)
