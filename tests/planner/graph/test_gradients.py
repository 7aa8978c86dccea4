"""Which values carry a gradient: behind trained states, through what differentiates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph.gradients import values_with_gradient
from planner.graph.ir import Context, Dtype, Graph, Operator, OperatorKind, Value, ValueKind, ValueReference
from tests.builders.random_graphs import MULTIPLY, GraphWriter


def trained(graph: Graph) -> Graph:
    return replace(graph, states=tuple(replace(state, requires_grad=True) for state in graph.states))


def test_only_what_depends_on_a_trained_state() -> None:
    writer = GraphWriter()
    batch = writer.input()
    mask = writer.multiply(batch)
    weight = writer.state()
    first = writer.multiply(mask, weight)
    last = writer.view(first)
    graph = writer.graph(last)
    assert values_with_gradient(graph) == frozenset()
    assert values_with_gradient(trained(graph)) == {weight, first, last}


def test_no_grad_and_detach_stop_it() -> None:
    writer = GraphWriter()
    weight = writer.state()
    first = writer.multiply(writer.input(), weight)
    cut = writer.tensor()
    detach = Operator(kind=OperatorKind.ATEN, name="aten::detach", overload="default", aliased_arguments=(0,))
    writer.call(detach, ValueReference(first), outputs=[cut])
    last = writer.multiply(cut)
    graph = trained(writer.graph(last))
    assert values_with_gradient(graph) == {weight, first}
    frozen = tuple(replace(node, context=Context(grad_enabled=False)) for node in graph.nodes)
    assert values_with_gradient(replace(graph, nodes=frozen)) == {weight}


def test_numbers_carry_none() -> None:
    writer = GraphWriter()
    weight = writer.state()
    first = writer.multiply(writer.input(), weight)
    size = writer.scalar()
    size_of = Operator(kind=OperatorKind.ATEN, name="aten::sym_size", overload="int")
    writer.call(size_of, ValueReference(first), 0, outputs=[size])
    assert size not in values_with_gradient(trained(writer.graph(first)))


def test_what_is_written_in_place_carries_it_from_then_on() -> None:
    writer = GraphWriter()
    target = writer.multiply(writer.input())
    weight = writer.state()
    written = writer.add_in_place(target, weight)
    assert {target, written} <= values_with_gradient(trained(writer.graph(writer.multiply(target))))


def test_what_is_written_through_a_view_carries_it_as_a_whole() -> None:
    writer = GraphWriter()
    target, other = writer.multiply(writer.input()), writer.multiply(writer.input())
    window = writer.view(target)
    before = writer.multiply(window)
    beside = writer.view(target)
    written = writer.add_in_place(window, writer.state())
    after = writer.multiply(target)

    carried = values_with_gradient(trained(writer.graph(after, before, other)))
    assert {target, window, beside, written, after} <= carried
    assert carried.isdisjoint({before, other})


def test_an_opaque_value_may_vary_and_an_integer_does_not() -> None:
    writer = GraphWriter()
    weight = writer.state()
    opaque, integer = writer.tensor(), writer.tensor()
    writer.values[opaque - 1] = Value(id=opaque, kind=ValueKind.OPAQUE, opaque_bytes=4)
    writer.values[integer - 1] = replace(writer.values[integer - 1], dtype=Dtype.INT64)
    for value in (opaque, integer):
        writer.call(MULTIPLY, ValueReference(weight), outputs=[value])
    assert values_with_gradient(trained(writer.graph())) == {weight, opaque}


@pytest.mark.parametrize("dtype", Dtype)
def test_gradients_are_of_floating_and_complex_numbers(dtype: Dtype) -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.state())
    writer.values[product - 1] = replace(writer.values[product - 1], dtype=dtype)
    varies = dtype.value.startswith(("float", "bfloat", "complex"))
    assert (product in values_with_gradient(trained(writer.graph(product)))) == varies
