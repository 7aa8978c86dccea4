"""What nodes do before any device is thought of: FLOPs, bytes, kernels started, on hand-made graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.buckets import mean_costs
from planner.cost.flops import node_flops
from planner.cost.movement import bytes_moved, is_free
from planner.cost.roofline import NodeCosts, node_costs
from planner.cost.shapes import Shape, shapes_of
from planner.cost.sources import RateSource
from planner.cost.work import graph_work
from planner.errors import GraphError
from planner.graph.expression import SymbolReference
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Dtype,
    Graph,
    Node,
    Operator,
    OperatorKind,
    SubgraphReference,
    Symbol,
    Value,
    ValueKind,
    ValueReference,
)
from tests.builders.plans import inventory_of

SCALAR = Shape((), None, 8)


def aten(name: str, *arguments: Argument, outputs: tuple[int, ...] = (9,), **more: object) -> Node:
    operator = Operator(kind=OperatorKind.ATEN, name=f"aten::{name}", overload="default", **more)  # type: ignore[arg-type]
    return Node(operator=operator, arguments=arguments, outputs=outputs)


def floats(*dims: int) -> Shape:
    size = 4
    for dim in dims:
        size *= dim
    return Shape(dims, Dtype.FLOAT32, size)


def tensor(value_id: int, *dims: int, dtype: Dtype | None = Dtype.FLOAT32) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=dtype, dims=dims)


def value(value_id: int) -> ValueReference:
    return ValueReference(value_id)


def values(*value_ids: int) -> ArgumentList:
    return ArgumentList(tuple(map(ValueReference, value_ids)))


def test_sizes_are_whole_to_the_byte() -> None:
    """Past 2^53, where a float leaves out every other number."""
    side = 2**27 + 1
    graph = Graph(torch_version="", name="", values=(tensor(1, side, side, dtype=Dtype.UINT8),))
    assert shapes_of(graph, {})[1] == Shape((side, side), Dtype.UINT8, 2**54 + 2**28 + 1)
    (size_bytes,) = {bytes_moved(aten("relu", value(1), outputs=(1,)), shapes_of(graph, {}))}
    assert size_bytes == 2 * (2**54 + 2**28 + 1)


def test_shape_of_each_kind_of_value() -> None:
    batch = Symbol(id=7, name="batch", lower=1, upper=None, hint=2)
    graph = Graph(
        torch_version="",
        name="",
        symbols=(batch,),
        values=(
            Value(id=1, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT16, dims=(SymbolReference(7), 3)),
            Value(id=2, kind=ValueKind.SYM_INT),
            Value(id=3, kind=ValueKind.OPAQUE, opaque_bytes=2**60 + 1),
        ),
    )
    shapes = shapes_of(graph, {7: 5})
    assert shapes == {1: Shape((5, 3), Dtype.FLOAT16, 30), 2: SCALAR, 3: Shape((), None, 2**60 + 1)}
    assert (shapes[1].num_elements, shapes[2].num_elements, floats(2, 0, 3).num_elements) == (15, 1, 0)


@pytest.mark.parametrize(
    ("node", "free"),
    [
        (aten("view", value(1)), True),
        (aten("relu", value(1), outputs=(2,)), False),
        (aten("unbind", value(1), outputs=(9, 0)), True),
        (aten("mixed", value(1), outputs=(9, 2)), False),
        (aten("add_", value(1), mutated_arguments=(0,)), False),
        (aten("relu", value(1), outputs=(0,)), False),
        (Node(operator=Operator(kind=OperatorKind.PYTHON, name="mul"), arguments=(), outputs=(2,)), True),
        (Node(operator=Operator(kind=OperatorKind.HIGHER_ORDER, name="cond"), arguments=(), outputs=(9,)), False),
    ],
)
def test_views_and_arithmetic_on_scalars_are_free(node: Node, free: bool) -> None:
    """Value 9 lies in value 1."""
    assert is_free(node, {1: 1, 2: 2, 9: 1}) is free


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (aten("add", value(1), value(2)), 4 * (10 + 30 + 6)),
        (aten("add", value(1), value(1)), 4 * (10 + 6)),
        (aten("relu", value(1), outputs=(0,)), 4 * 10),
        # A table of 5 rows of 6, of which 3 are looked up: rows read and written, and their indices.
        (aten("index_select", value(2), 0, value(3)), 2 * 4 * 6 + 3 * 8),
        (aten("take", value(2), value(3)), 2 * 4 * 6 + 3 * 8),
        # Each index reads a row of 6.
        (aten("embedding_bag", value(2), value(3), value(4)), 4 * 6 + 3 * 6 * 4 + 3 * 8 + 2 * 8),
        (aten("embedding_bag", value(2)), 4 * (30 + 6)),
        (aten("embedding_bag", value(5), value(3)), 4 * 6 + 3 * 4 + 3 * 8),
        (aten("embedding_bag", value(6), value(3)), 4 * 6 + 3 * 8),
        # Two rows meet two of the four experts at most, five rows all of them; without experts all is read.
        (aten("_grouped_mm", value(7), value(10), value(3)), 4 * (6 + 2 * 3 + 2 * 3 * 7) + 3 * 8),
        (aten("_grouped_mm", value(8), value(10), value(3)), 4 * (6 + 5 * 3 + 4 * 3 * 7) + 3 * 8),
        (aten("_grouped_mm", value(8), value(2), value(3)), 4 * (6 + 5 * 3 + 5 * 6) + 3 * 8),
    ],
)
def test_bytes_are_what_is_read_and_what_is_written(node: Node, expected: int) -> None:
    shapes = {
        1: floats(10),
        2: floats(5, 6),
        3: Shape((3,), Dtype.INT64, 24),
        4: Shape((2,), Dtype.INT64, 16),
        5: floats(),
        6: floats(0, 6),
        7: floats(2, 3),
        8: floats(5, 3),
        9: floats(6),
        10: floats(4, 3, 7),
    }
    assert bytes_moved(node, shapes) == expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (aten("mm", value(1), value(2)), 2 * 3 * 4 * 5),
        (replace(aten("mm", value(1), value(2)), operator=Operator(kind=OperatorKind.OPAQUE, name="aten::mm")), 0),
        (aten("relu", value(1)), 0),
        (aten("mm", value(1)), 0),
        (aten("mm", value(1), 7), 0),
        (aten("mm", value(1), value(77)), 0),
        (aten("mm", value(8), value(2)), 0),
        (aten("tensordot", value(1), value(2), 1, 0), 0),
        (aten("tensordot", value(1), value(2), ArgumentList((1,)), ArgumentList((0,))), 2 * 12 * 20 // 4),
        (aten("matmul", value(5), value(6)), 0),
        (aten("conv2d", value(7), value(7), outputs=(0,)), 0),
        (aten("conv2d", value(7), value(7), outputs=(0, 7)), 2 * 2 * 3 * 3 * 72),
        (aten("lstm", value(3), values(1), values(1, 2, 8), True), 2 * 3 * (12 + 20)),
        # Packed: the sizes of its batches stand between it and the states.
        (aten("lstm", value(3), value(1), values(1), values(1, 2, 8), True), 2 * 3 * (12 + 20)),
        (aten("lstm", value(3), values(1)), 0),
        (aten("einsum", "ij,jk->ik", values(1, 2)), 2 * 3 * 4 * 5),
        (aten("einsum", "ij,jk->ik", values(1)), 0),
        (aten("einsum", "ij->i", values(1, 2)), 0),
        (aten("einsum", 3, values(1, 2)), 0),
    ],
)
def test_a_call_that_fits_its_formula_counts_and_another_counts_nothing(node: Node, expected: int) -> None:
    shapes = {
        1: floats(3, 4),
        2: floats(4, 5),
        3: floats(3, 6),
        4: floats(2, 3, 4),
        5: floats(0, 3, 4),
        6: floats(1, 4, 5),
        7: floats(2, 4, 3, 3),
        8: floats(),
        9: floats(3, 5),
    }
    assert node_flops(node, shapes) == expected


def branch(width: int, *, subgraphs: tuple[Graph, ...] = ()) -> Graph:
    """One product of [2, width] with [width, width]."""
    node = aten("mm", value(1), value(2), outputs=(3,))
    sizes = (tensor(1, 2, width), tensor(2, width, width), tensor(3, 2, width))
    return Graph(torch_version="", name="", values=sizes, nodes=(node,), subgraphs=subgraphs)


def conditional(*arguments: Argument, subgraphs: tuple[Graph, ...]) -> Graph:
    operator = Operator(kind=OperatorKind.HIGHER_ORDER, name="cond")
    node = Node(operator=operator, arguments=(value(1), *arguments), outputs=(2,))
    return Graph(torch_version="", name="", values=(tensor(1, 2), tensor(2, 2)), nodes=(node,), subgraphs=subgraphs)


@pytest.mark.parametrize(
    ("arguments", "flops"),
    [
        ((SubgraphReference(0), SubgraphReference(1)), 2 * 2 * 8 * 8),
        ((SubgraphReference(1), SubgraphReference(0)), 2 * 2 * 8 * 8),
        ((SubgraphReference(0),), 2 * 2 * 3 * 3),
        ((ArgumentList((SubgraphReference(0), (SubgraphReference(1),))),), 2 * 2 * 8 * 8),
        (((ArgumentList((SubgraphReference(0),)),),), 2 * 2 * 3 * 3),
    ],
)
def test_dearest_branch_counts_wherever_it_stands(arguments: tuple[Argument, ...], flops: int) -> None:
    work = graph_work(conditional(*arguments, subgraphs=(branch(3), branch(8))), {})
    assert work.flops.tolist() == [flops]
    assert work.calls.tolist() == [1.0]


def test_of_a_custom_function_its_forward_counts() -> None:
    graph = conditional(SubgraphReference(0), SubgraphReference(1), subgraphs=(branch(3), branch(8)))
    operator = Operator(kind=OperatorKind.HIGHER_ORDER, name="custom_function")
    call = replace(graph.nodes[0], operator=operator)
    assert graph_work(replace(graph, nodes=(call,)), {}).flops.tolist() == [2 * 2 * 3 * 3]


def test_branch_that_is_named_by_keyword_counts() -> None:
    graph = conditional(SubgraphReference(0), subgraphs=(branch(3), branch(8)))
    named = replace(graph.nodes[0], keyword_arguments=(("false_fn", SubgraphReference(1)),))
    assert graph_work(replace(graph, nodes=(named,)), {}).flops.tolist() == [2 * 2 * 8 * 8]


def test_operator_without_branches_is_a_call_of_its_own_bytes() -> None:
    work = graph_work(conditional(subgraphs=(branch(3),)), {})
    assert (work.flops.tolist(), work.bytes_moved.tolist(), work.calls.tolist()) == ([0.0], [16.0], [1.0])


def test_branches_of_branches_count_up_to_a_depth() -> None:
    graph = branch(2)
    for _ in range(64):
        graph = conditional(SubgraphReference(0), subgraphs=(graph,))
    assert graph_work(graph, {}).flops.tolist() == [2 * 2 * 2 * 2]
    with pytest.raises(GraphError, match="nested more than 64 deep"):
        graph_work(conditional(SubgraphReference(0), subgraphs=(graph,)), {})


def test_work_says_the_dtype_of_what_each_node_makes() -> None:
    nodes = (aten("relu", value(1), outputs=(0, 2)), aten("relu", value(1), outputs=(0,)))
    sizes = (tensor(1, 2, dtype=Dtype.FLOAT64), tensor(2, 2, dtype=Dtype.BFLOAT16))
    assert graph_work(Graph(torch_version="", name="", values=sizes, nodes=nodes), {}).dtypes == (Dtype.BFLOAT16, None)


@pytest.mark.parametrize("name", ["_int_mm", "_scaled_mm"])
def test_products_of_bytes_count_at_the_rate_of_what_they_read(name: str) -> None:
    nodes = (aten(name, value(1), value(2), outputs=(3,)),)
    bytes_read, result = Dtype.FLOAT8_E4M3FN, Dtype.BFLOAT16
    sizes = (tensor(1, 2, 3, dtype=bytes_read), tensor(2, 3, 4, dtype=bytes_read), tensor(3, 2, 4, dtype=result))
    assert graph_work(Graph(torch_version="", name="", values=sizes, nodes=nodes), {}).dtypes == (bytes_read,)


def test_given_rates_count_as_given_where_every_device_of_the_kind_has_them() -> None:
    (bare,) = inventory_of(1).devices
    with_rates = replace(bare, id="given", flops_per_second=1e9, memory_bytes_per_second=1e9)
    half = replace(bare, id="half", flops_per_second=1e9)
    other = replace(with_rates, id="other", kind="t4")
    for devices, expected in (
        ((with_rates,), [RateSource.GIVEN]),
        ((half,), [RateSource.ROOFLINE]),
        ((with_rates, bare), [RateSource.ROOFLINE]),
        ((bare, other), [RateSource.ROOFLINE, RateSource.GIVEN]),
        ((other, with_rates), [RateSource.GIVEN, RateSource.GIVEN]),
    ):
        assert [source.rates for source in node_costs(branch(2), devices, {}).sources] == expected


def test_several_settings_give_the_mean_of_seconds_and_the_largest_of_bytes() -> None:
    (device,) = inventory_of(1).devices
    small, large = (node_costs(branch(width), [device], {}) for width in (2, 8))
    mixed: NodeCosts = mean_costs([(small, 0.75), (large, 0.25)])
    assert mixed.seconds[0, 0] == pytest.approx(0.75 * small.seconds[0, 0] + 0.25 * large.seconds[0, 0])
    assert mixed.flops[0] == pytest.approx(0.75 * small.flops[0] + 0.25 * large.flops[0])
    assert mixed.bytes_moved[0] == pytest.approx(0.75 * small.bytes_moved[0] + 0.25 * large.bytes_moved[0])
    assert mixed.shapes == large.shapes == mean_costs([(large, 0.5), (small, 0.5)]).shapes
    measured = replace(large, sources=(replace(large.sources[0], num_measured=1, scaled=True),))
    (source,) = mean_costs([(measured, 0.5), (small, 0.5)]).sources
    assert (source.num_measured, source.scaled) == (0, True)
    assert mean_costs([(small, 1.0)]) is small
