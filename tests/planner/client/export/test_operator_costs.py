"""Cost functions of custom operators: called at export, carried by the graph, counted by plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils.flop_counter import register_flop_formula

from planner.client import OperatorCost, export, operator_cost
from planner.cost.inventory import Device, Inventory
from planner.cost.work import graph_work
from planner.errors import GraphError, UnsupportedModule
from planner.graph.check import check_graph
from planner.graph.expression import Operation, SymbolReference
from planner.graph.ir import Graph, Node, OperatorKind
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.split import stage_graph
from planner.planning import make_plan
from planner.wire.graph import graph_from_bytes, graph_to_bytes

OUTER, TORCHS, BOTH, PLAIN = (f"planner_cost_tests::{name}" for name in ("outer", "torchs", "both", "plain"))


def _register(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """An operator from [rows, columns] to [rows, rows]."""

    def outer(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T

    operator = torch.library.custom_op(name, outer, mutates_args=())
    operator.register_fake(lambda x: x.new_empty(x.shape[0], x.shape[0]))
    return operator


outer, torchs, both, plain = map(_register, (OUTER, TORCHS, BOTH, PLAIN))


@operator_cost(OUTER)
def _(x: torch.Tensor) -> OperatorCost:
    rows, columns = x.shape
    return OperatorCost(flops=2 * rows * rows * columns, bytes_moved=(rows * columns + rows**2) // 2 * x.itemsize)


@register_flop_formula([torch.ops.planner_cost_tests.torchs, torch.ops.planner_cost_tests.both])
def _(x_shape: Any, *args: Any, out_shape: Any, **kwargs: Any) -> int:
    return 3 * x_shape[0] * out_shape[1]


@operator_cost(f"{BOTH}.default")
def _(x: torch.Tensor) -> OperatorCost:
    return OperatorCost(flops=7)


class Calls(nn.Module):
    def __init__(self, *functions: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(x) for function in self.functions)


def exported(*functions: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
    rows = Dim("rows", min=2, max=4096)
    graph = export(Calls(*functions), (torch.zeros(6, 4),), dynamic_shapes=({0: rows},)).graph
    return graph_from_bytes(graph_to_bytes(graph))


def custom_node(graph: Graph, name: str) -> tuple[int, Node]:
    return next((index, node) for index, node in enumerate(graph.nodes) if node.operator.name == name)


def test_costs_are_functions_of_the_sizes_that_may_change() -> None:
    graph = exported(outer, plain, torchs, both)
    [symbol] = graph.symbols
    at = {name: custom_node(graph, name)[0] for name in (OUTER, PLAIN, TORCHS, BOTH)}
    for rows in (2, 7, 100):
        work = graph_work(graph, {symbol.id: rows})
        bytes_moved = (4 * rows + rows * rows) * 4
        assert work.flops[at[OUTER]] == 8 * rows * rows
        assert work.bytes_moved[at[OUTER]] == (4 * rows + rows * rows) // 2 * 4
        assert (work.flops[at[PLAIN]], work.bytes_moved[at[PLAIN]]) == (0, bytes_moved)
        assert (work.flops[at[TORCHS]], work.bytes_moved[at[TORCHS]]) == (3 * rows * rows, bytes_moved)
        assert work.flops[at[BOTH]] == 7


def test_plans_count_them() -> None:
    """A chain that is cut in half by FLOPs: of four calls only the last has any."""

    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return outer(plain(plain(plain(x))))

    graph = export(Chain(), (torch.zeros(8, 8),), dynamic_shapes=({0: Dim("rows", min=2, max=4096)},)).graph
    device = Device(
        id="a", kind="cpu", host="one", memory_bytes=1 << 30, flops_per_second=1e3, memory_bytes_per_second=1e12
    )
    inventory = Inventory(devices=(device, replace(device, id="b", host="two")))
    plan = make_plan(graph, "graph", inventory, PlanOptions(mode=BalancedMode(num_stages=2)))
    assert [stage.node_ranges for stage in plan.stages][1] == ((3, 4),)
    assert plan.bottleneck_seconds >= 2 * 8**3 / 1e3
    for stage in plan.stages:
        check_graph(stage_graph(graph, plan, stage.index))


def _fails(x: torch.Tensor) -> OperatorCost:
    raise ValueError("no such size")


@pytest.mark.parametrize(
    ("cost", "why"),
    [
        (_fails, "planner_cost_tests::refused: its cost function failed: ValueError: no such size"),
        (lambda x: OperatorCost(flops=x.shape[0] / 2), "returned flops .*needs a whole number; divide with //"),
        (lambda x: OperatorCost(bytes_moved=2.5), "returned bytes_moved 2.5, needs a whole number"),
        (lambda x: 12, "returned int, needs an OperatorCost"),
        (lambda x: OperatorCost(flops=-x.shape[0]), "flops is -6, needs 0 or more"),
    ],
    ids=["error", "fraction", "float", "number", "negative"],
)
def test_a_cost_that_is_none_is_refused_with_the_operators_name(cost: Any, why: str) -> None:
    operator_cost("planner_cost_tests::refused")(cost)
    with pytest.raises((UnsupportedModule, GraphError), match=why):
        exported(refused)


refused = _register("planner_cost_tests::refused")


def test_what_a_stranger_says_of_costs_is_checked() -> None:
    graph = exported(outer)
    index, node = custom_node(graph, OUTER)
    assert isinstance(node.flops, Operation)
    changed = {
        "which only a custom operator may have": replace(
            node, operator=replace(node.operator, kind=OperatorKind.OPAQUE, name="outer")
        ),
        "flops: speaks of symbol 9": replace(node, flops=SymbolReference(9)),
        "bytes_moved is -1": replace(node, bytes_moved=-1),
    }
    for why, one in changed.items():
        with pytest.raises(GraphError, match=why):
            check_graph(replace(graph, nodes=(*graph.nodes[:index], one, *graph.nodes[index + 1 :])))
    free = replace(node, flops=0, bytes_moved=0)
    check_graph(replace(graph, nodes=(*graph.nodes[:index], free, *graph.nodes[index + 1 :])))
