"""A stage is tried out without data: what it gives must be what the graph declares, value by value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph, ShapeMismatch
from stage_daemon.loader.meta_check import check_shapes
from stage_daemon.loader.rebuild import rebuild_module

CPU = torch.device("cpu")
SUM = pb.Expression.Operation.OPERATOR_ADD


def check(graph: pb.Graph) -> None:
    check_shapes(rebuild_module(graph, CPU), graph, CPU)


def tensor(graph: pb.Graph, value_id: int, *dims: int | str, dtype: int = pb.DTYPE_FLOAT32) -> pb.Value:
    """A str is the symbol, at its hint."""
    value = graph.values.add(id=value_id, name=f"t{value_id}", kind=pb.VALUE_KIND_TENSOR, dtype=dtype)
    value.device_class = "cpu"
    for dim in dims:
        value.dims.add(symbol=1) if isinstance(dim, str) else value.dims.add(constant=dim)
    return value


def scalar(graph: pb.Graph, value_id: int, kind: int = pb.VALUE_KIND_SYM_INT) -> pb.Value:
    return graph.values.add(id=value_id, name=f"s{value_id}", kind=kind)


def node(graph: pb.Graph, operator: tuple[int, str, str], *reads: int, gives: int, name: str = "n") -> pb.Node:
    kind, operator_name, overload = operator
    graph.operators.add(kind=kind, name=operator_name, overload=overload)
    node = graph.nodes.add(operator=len(graph.operators) - 1, outputs=[gives], name=name)
    for value_id in reads:
        node.arguments.add(value=value_id)
    return node


def aten(name: str, overload: str = "default") -> tuple[int, str, str]:
    return pb.OPERATOR_KIND_ATEN, f"aten::{name}", overload


def python(name: str) -> tuple[int, str, str]:
    return pb.OPERATOR_KIND_PYTHON, name, ""


def graph_of(*dims: int | str) -> pb.Graph:
    """Value 1 enters, with these dims; symbol "batch" has hint 5."""
    graph = pb.Graph(schema_version=1)
    graph.symbols.add(id=1, name="batch", lower=1, upper=64, hint=5)
    tensor(graph, 1, *dims)
    graph.inputs.add(name="x", value=1)
    return graph


def test_sizes_and_arithmetic_on_them() -> None:
    graph = graph_of("batch", 3)
    size, doubled = scalar(graph, 2), scalar(graph, 3)
    size.expression.symbol = 1
    doubled.expression.operation.operator = SUM
    for _ in range(2):
        doubled.expression.operation.operands.add(symbol=1)
    node(graph, aten("sym_size", "int"), 1, gives=2).arguments.add(integer=0)
    node(graph, python("add"), 2, 2, gives=3)
    check(graph)
    doubled.expression.operation.operands.add(constant=1)
    with pytest.raises(ShapeMismatch, match=r"^value 3 \('s3'\): the rebuilt stage gives 10, the graph declares 11"):
        check(graph)


def test_scalars_without_an_expression_are_of_their_kind() -> None:
    graph = graph_of("batch", 3)
    graph.inputs.add(name="n", value=2)
    scalar(graph, 2)
    value = scalar(graph, 3, pb.VALUE_KIND_SYM_FLOAT)
    node(graph, python("sym_float"), 2, gives=3)
    check(graph)
    value.kind = pb.VALUE_KIND_SYM_INT
    with pytest.raises(
        ShapeMismatch, match=r"^value 3 \('s3'\): the rebuilt stage gives float, the graph declares int"
    ):
        check(graph)


def test_what_is_no_value_to_run_is_named() -> None:
    graph = graph_of(3)
    graph.inputs.add(name="odd", value=2)
    scalar(graph, 2, pb.VALUE_KIND_UNSPECIFIED)
    with pytest.raises(InvalidGraph, match=r"^value 2 \('s2'\): has no type that can be run"):
        check(graph)


def test_what_depends_on_data_is_taken_as_declared() -> None:
    """nonzero(x) has as many rows as x has ones; the sum of two such rows is compared again."""
    graph = graph_of(4)
    tensor(graph, 2, 7, 1, dtype=pb.DTYPE_INT64)
    value = tensor(graph, 3, 7, 1, dtype=pb.DTYPE_INT64)
    node(graph, aten("nonzero"), 1, gives=2)
    node(graph, aten("add", "Tensor"), 2, 2, gives=3)
    check(graph)
    value.dims[0].constant = 8
    words = r"^value 3 \('t3'\): the rebuilt stage gives torch.int64 \[7, 1\], the graph declares torch.int64 \[8, 1\]"
    with pytest.raises(ShapeMismatch, match=words):
        check(graph)


def test_a_number_out_of_data_is_taken_as_declared() -> None:
    graph = graph_of()
    scalar(graph, 2, pb.VALUE_KIND_SYM_FLOAT)
    tensor(graph, 3)
    node(graph, aten("item"), 1, gives=2)
    node(graph, aten("mul", "Scalar"), 1, 2, gives=3)
    check(graph)


def _wrong_dtype(graph: pb.Graph) -> None:
    graph.values[1].dtype = pb.DTYPE_FLOAT64


def _wrong_dim(graph: pb.Graph) -> None:
    graph.values[1].dims[0].constant = 4


def _scalar_for_tensor(graph: pb.Graph) -> None:
    graph.values[1].kind = pb.VALUE_KIND_SYM_INT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_wrong_dtype, r"gives torch.float32 \[5, 3\], the graph declares torch.float64 \[5, 3\]"),
        (_wrong_dim, r"gives torch.float32 \[5, 3\], the graph declares torch.float32 \[4, 3\]"),
        (_scalar_for_tensor, "gives FakeTensor, the graph declares int"),
    ],
)
def test_tensors_are_compared_by_dtype_and_dims(change: Callable[[pb.Graph], None], words: str) -> None:
    graph = graph_of("batch", 3)
    tensor(graph, 2, "batch", 3)
    node(graph, aten("relu"), 1, gives=2)
    check(graph)
    change(graph)
    with pytest.raises(ShapeMismatch, match=rf"^value 2 \('t2'\): the rebuilt stage {words}; export the model again"):
        check(graph)


def test_a_number_where_a_tensor_is_declared() -> None:
    graph = graph_of("batch", 3)
    tensor(graph, 2)
    node(graph, aten("sym_size", "int"), 1, gives=2).arguments.add(integer=0)
    with pytest.raises(ShapeMismatch, match=r"gives 5, the graph declares torch.float32 \[\]"):
        check(graph)


def test_a_call_that_torch_refuses_names_its_node() -> None:
    graph = graph_of(2, 3)
    tensor(graph, 2, 2, 2)
    node(graph, aten("matmul"), 1, 1, gives=2, name="product")
    with pytest.raises(InvalidGraph, match=r"^node 0 \('product'\): torch refuses the call \(RuntimeError: "):
        check(graph)


def _grouped(rows: tuple[int, ...], experts: tuple[int, ...], offsets: int, dtype: int = pb.DTYPE_INT32) -> pb.Graph:
    graph = graph_of(*rows)
    tensor(graph, 2, *experts)
    tensor(graph, 3, offsets, dtype=dtype)
    for value_id in (2, 3):
        graph.inputs.add(name=f"x{value_id}", value=value_id)
    tensor(graph, 4, rows[0], experts[-1])
    node(graph, aten("_grouped_mm"), 1, 2, 3, gives=4)
    return graph


def test_a_grouped_product_of_float32_is_tried_though_torch_tries_bfloat16_only() -> None:
    graph = _grouped((6, 8), (3, 8, 5), 3)
    check(graph)
    graph.values[3].dims[1].constant = 8
    with pytest.raises(ShapeMismatch, match=r"gives torch.float32 \[6, 5\], the graph declares torch.float32 \[6, 8\]"):
        check(graph)


@pytest.mark.parametrize(
    "graph",
    [
        _grouped((6, 7), (3, 8, 5), 3),
        _grouped((6, 8), (3, 8, 5), 4),
        _grouped((6, 8), (3, 8, 5), 3, pb.DTYPE_INT64),
        _grouped((2, 6, 8), (3, 8, 5), 3),
    ],
    ids=["widths", "experts", "offsets", "batched"],
)
def test_a_grouped_product_that_does_not_fit_is_refused(graph: pb.Graph) -> None:
    with pytest.raises(InvalidGraph, match=r"torch refuses the call .*needs \[rows, in\], \[experts, in, out\]"):
        check(graph)


def _cut_where_the_data_says(graph: pb.Graph, *, unbacked: bool) -> pb.Graph:
    """Six rows are cut in two by a number that a run tells, and joined again."""
    graph.symbols.add(id=2, name="u0", lower=0, upper=6, hint=1, unbacked=unbacked)
    graph.inputs.add(name="n", value=2)
    scalar(graph, 2).expression.symbol = 2
    split = node(graph, aten("split_with_sizes"), 1, gives=3)
    sizes = split.arguments.add().list
    for _ in range(2):
        sizes.items.add(value=2)
    split.returns_tuple = True
    split.outputs.append(4)
    for value_id in (3, 4):
        part = tensor(graph, value_id, 0, 3)
        part.dims[0].symbol = 2
    items = node(graph, aten("cat"), gives=5).arguments.add().list
    for value_id in (3, 4):
        items.items.add(value=value_id)
    tensor(graph, 5, 6, 3)
    return graph


def test_sizes_that_a_run_tells_are_taken_to_be_as_declared() -> None:
    check(_cut_where_the_data_says(graph_of(6, 3), unbacked=True))
    with pytest.raises(InvalidGraph, match="torch refuses the call"):
        check(_cut_where_the_data_says(graph_of(6, 3), unbacked=False))


def test_what_does_not_depend_on_such_a_size_is_compared() -> None:
    graph = _cut_where_the_data_says(graph_of(6, 3), unbacked=True)
    tensor(graph, 6, 5, 3)
    node(graph, aten("relu"), 5, gives=6)
    with pytest.raises(ShapeMismatch, match=r"gives torch.float32 \[6, 3\], the graph declares torch.float32 \[5, 3\]"):
        check(graph)


def test_inputs_are_tried_in_their_strides() -> None:
    """view() of a transposed tensor is refused, of a contiguous one it is not."""
    graph = graph_of(2, 3)
    tensor(graph, 2, 6)
    node(graph, aten("view"), 1, gives=2).arguments.add().list.items.add(integer=6)
    check(graph)
    for stride in (1, 2):
        graph.values[0].strides.add(constant=stride)
    with pytest.raises(InvalidGraph, match="torch refuses the call"):
        check(graph)


def test_nothing_is_computed_and_modes_stay_as_they_were() -> None:
    """A tebibyte is tried out."""
    graph = graph_of(2**38)
    tensor(graph, 2, 2**38)
    node(graph, aten("relu"), 1, gives=2)
    check(graph)
    assert torch.is_grad_enabled()


def custom_function(of_backward: tuple[int, ...]) -> pb.Graph:
    """Gives back its operand [2, 3] doubled; `of_backward` are the values of [2, 3] and [3] that its backward gives."""
    graph = graph_of(2, 3)
    for takes in (1, 2):
        body = graph.subgraphs.add(schema_version=1)
        for value_id in range(1, takes + 1):
            tensor(body, value_id, 2, 3)
            body.inputs.add(name=f"x{value_id}", value=value_id)
    forward, backward = graph.subgraphs
    tensor(forward, 2, 2, 3)
    node(forward, aten("add", "Tensor"), 1, 1, gives=2)
    forward.outputs.add(name="doubled", value=2)
    for value_id in of_backward:
        backward.outputs.add(name="gradient", value=value_id)
    graph.operators.add(kind=pb.OPERATOR_KIND_HIGHER_ORDER, name="custom_function")
    tensor(graph, 2, 2, 3)
    call = graph.nodes.add(operator=len(graph.operators) - 1, outputs=[2], name="doubling", returns_tuple=True)
    call.arguments.add(subgraph=0)
    call.arguments.add(subgraph=1)
    call.arguments.add().tuple.items.add(value=1)
    call.arguments.add().tuple.items.add(integer=0)
    call.arguments.add().tuple.items.add(integer=0)
    call.arguments.add().tuple.items.add(boolean=True)
    graph.outputs.add(name="output", value=2)
    return graph


def test_both_passes_of_a_custom_function_are_tried_out() -> None:
    check(custom_function((2,)))

    with pytest.raises(InvalidGraph, match="its backward gives 2 gradients, for 1 operands"):
        check(custom_function((1, 2)))

    refused = custom_function((2,))
    node(refused.subgraphs[1], aten("view"), 1, gives=3)
    tensor(refused.subgraphs[1], 3, 5)
    refused.subgraphs[1].nodes[0].arguments.add().list.items.add(integer=5)
    with pytest.raises(InvalidGraph, match=r"subgraph 1, node 0 \('n'\): torch refuses the call"):
        check(refused)
