"""Seconds per node on hand-made graphs."""

import numpy as np
import pytest

from planner.cost.device_kinds import device_kind
from planner.cost.inventory import Device
from planner.cost.roofline import node_costs
from planner.errors import GraphError
from planner.graph.expression import SymbolReference
from planner.graph.ir import (
    Dtype,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Symbol,
    Value,
    ValueKind,
    ValueReference,
)

GIB = 1 << 30


def device(kind: str = "cpu", **rates: float) -> Device:
    return Device(id="d", kind=kind, host="h", memory_bytes=GIB, **rates)


def tensor(value_id: int, *dims: object) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=tuple(dims))


def call(name: str, arguments: tuple[int, ...], output: int, **more: object) -> Node:
    operator = Operator(kind=OperatorKind.ATEN, name=f"aten::{name}", overload="default", **more)
    return Node(operator=operator, arguments=tuple(ValueReference(one) for one in arguments), outputs=(output,))


def graph(*nodes: Node, values: tuple[Value, ...], symbols: tuple[Symbol, ...] = ()) -> Graph:
    outputs = {output for node in nodes for output in node.outputs}
    inputs = tuple(Input(name=f"x{one.id}", content=ValueReference(one.id)) for one in values if one.id not in outputs)
    return Graph(torch_version="2.13", name="g", values=values, nodes=nodes, inputs=inputs, symbols=symbols)


def opaque(**seconds: float) -> Graph:
    operator = Operator(kind=OperatorKind.OPAQUE, name="layer")
    node = Node(operator=operator, arguments=(), outputs=(1,), name="first", opaque_seconds=tuple(seconds.items()))
    return graph(node, values=(Value(id=1, kind=ValueKind.OPAQUE, opaque_bytes=77),))


def test_large_product_is_bound_by_arithmetic() -> None:
    one = graph(call("mm", (1, 2), 3), values=(tensor(1, 512, 512), tensor(2, 512, 512), tensor(3, 512, 512)))
    costs = node_costs(one, [device(flops_per_second=1e9, memory_bytes_per_second=1e12)], {})
    assert costs.flops.tolist() == [2 * 512**3]
    assert costs.seconds[0, 0] == pytest.approx(2 * 512**3 / 1e9 + device_kind("cpu").node_seconds)


def test_elementwise_call_is_bound_by_memory() -> None:
    one = graph(call("add", (1, 2), 3), values=(tensor(1, 1000), tensor(2, 1000), tensor(3, 1000)))
    costs = node_costs(one, [device(flops_per_second=1e15, memory_bytes_per_second=1e6)], {})
    assert costs.bytes_moved.tolist() == [12_000]
    assert costs.seconds[0, 0] == pytest.approx(0.012 + device_kind("cpu").node_seconds)


def test_view_is_free() -> None:
    one = graph(call("view", (1,), 2, aliased_arguments=(0,)), values=(tensor(1, 8), tensor(2, 2, 4)))
    assert node_costs(one, [device()], {}).seconds.tolist() == [[0.0]]


def test_in_place_write_is_not_free() -> None:
    write = call("add_", (1, 2), 3, aliased_arguments=(0,), mutated_arguments=(0,))
    one = graph(write, values=(tensor(1, 8), tensor(2, 8), tensor(3, 8)))
    assert node_costs(one, [device()], {}).seconds[0, 0] > 0


def test_lookup_reads_its_rows_only() -> None:
    indices = Value(id=2, kind=ValueKind.TENSOR, dtype=Dtype.INT64, dims=(3,))
    one = graph(call("embedding", (1, 2), 3), values=(tensor(1, 1_000_000, 4), indices, tensor(3, 3, 4)))
    assert node_costs(one, [device()], {}).bytes_moved.tolist() == [2 * 3 * 4 * 4 + 3 * 8]


def test_dynamic_dimension_takes_the_value_asked_for() -> None:
    batch = Symbol(id=1, name="batch", lower=1, upper=None, hint=2)
    dims = (SymbolReference(1), 4)
    one = graph(call("relu", (1,), 2), values=(tensor(1, *dims), tensor(2, *dims)), symbols=(batch,))
    assert node_costs(one, [device()], {1: 10}).bytes_moved.tolist() == [2 * 10 * 4 * 4]


def test_equal_devices_share_figures_and_unequal_do_not() -> None:
    one = graph(call("relu", (1,), 2), values=(tensor(1, 10**6), tensor(2, 10**6)))
    seconds = node_costs(one, [device("h200"), device("h200"), device("cpu")], {}).seconds[:, 0]
    assert seconds[0] == seconds[1] < seconds[2]


def test_opaque_node_takes_its_kinds_time() -> None:
    costs = node_costs(opaque(h200=0.5, l4=2.0), [device("H200"), device("l4")], {})
    assert costs.seconds[:, 0].tolist() == [0.5, 2.0]
    assert costs.shapes[1].size_bytes == 77


def test_a_kind_without_a_time_cannot_run_an_opaque_node_unless_there_is_one_for_all_others() -> None:
    assert node_costs(opaque(h200=0.5), [device("a100")], {}).seconds.tolist() == [[np.inf]]
    assert node_costs(opaque(**{"h200": 0.5, "*": 3.0}), [device("a100")], {}).seconds.tolist() == [[3.0]]
    assert node_costs(opaque(), [device("a100")], {}).seconds.tolist() == [[0.0]]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_opaque_time_is_refused(seconds: float) -> None:
    with pytest.raises(GraphError, match=r"'first'.*needs a finite number"):
        node_costs(opaque(cpu=seconds), [device()], {})


def test_overflowing_dimension_stays_finite() -> None:
    one = graph(call("mm", (1, 2), 3), values=(tensor(1, 2**40, 4), tensor(2, 4, 2**40), tensor(3, 2**40, 2**40)))
    assert np.isfinite(node_costs(one, [device()], {}).seconds).all()
