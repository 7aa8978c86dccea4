"""Writes in place and random draws keep their order, or the split is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module as torch_split_module

from planner.fx_compat import split_module
from planner.fx_compat.splitting.errors import PartitionCycle
from planner.fx_compat.splitting.order import effect_pairs


def built(build: Callable[[fx.Graph, fx.Node], fx.Node], root: nn.Module | None = None) -> fx.GraphModule:
    """A graph of one input, of shape (4, 4)."""
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return fx.GraphModule(root or nn.Module(), graph)


def each_its_own(module: fx.GraphModule) -> dict[fx.Node, int]:
    operations = [node for node in module.graph.nodes if node.op.startswith("call_")]
    return {node: position for position, node in enumerate(operations)}


def result(module: fx.GraphModule) -> torch.Tensor:
    torch.manual_seed(7)
    with torch.no_grad():
        return module(torch.arange(16.0).reshape(4, 4) / 7).clone()


def inplace_calls() -> list[Callable[[fx.Graph, fx.Node], fx.Node]]:
    return [
        lambda graph, value: graph.call_method("add_", (value, 3)),
        lambda graph, value: graph.call_method("__iadd__", (value, 3)),
        lambda graph, value: graph.call_function(operator.iadd, (value, 3)),
        lambda graph, value: graph.call_function(torch.neg_, (value,)),
        lambda graph, value: graph.call_function(torch.ops.aten.add_.Tensor, (value, 3)),
        lambda graph, value: graph.call_function(torch.ops.aten.mul_, (value, 3)),
        lambda graph, value: graph.call_function(F.elu, (value,), {"alpha": 3.0, "inplace": True}),
        lambda graph, value: graph.call_function(F.hardtanh, (value, 0.0, 0.1, True)),
        lambda graph, value: graph.call_function(torch.add, (value, 3), {"out": value}),
        lambda graph, value: graph.call_function(operator.setitem, (value, 0, 5.0)),
        lambda graph, value: graph.call_method("__setitem__", (value, 0, 5.0)),
        lambda graph, value: graph.call_module("clip", (value,)),
        lambda graph, value: graph.call_module("nested", (value,)),
        lambda graph, value: graph.call_method("zero_", (graph.call_method("view", (value, 16)),)),
        lambda graph, value: graph.call_method("zero_", (graph.call_function(operator.getitem, (value, 1)),)),
        lambda graph, value: graph.call_method("zero_", (graph.call_function(getattr, (value, "T")),)),
        lambda graph, value: graph.call_method("zero_", (graph.call_module("same", (value,)),)),
        lambda graph, value: graph.call_method("zero_", (graph.call_function(F.dropout, (value, 0.5, False)),)),
        lambda graph, value: graph.call_method("fill_", (value, 2.0)),
    ]


class Writers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clip = nn.Hardtanh(0.0, 0.1, inplace=True)
        self.same = nn.Identity()
        inner = fx.Graph()
        value = inner.placeholder("value")
        inner.call_method("add_", (inner.call_method("t", (value,)), 1))
        inner.output(None)
        self.nested = fx.GraphModule(nn.Module(), inner)


@pytest.mark.parametrize("keep_original_order", [True, False])
@pytest.mark.parametrize("write", inplace_calls())
def test_a_read_before_and_a_read_after_a_write_stay_there(
    write: Callable[[fx.Graph, fx.Node], fx.Node], keep_original_order: bool
) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_function(operator.mul, (x, 2))
        before = graph.call_function(torch.cos, (value,))
        write(graph, value)
        after = graph.call_function(operator.mul, (value, 5))
        return graph.call_function(operator.sub, (after, before))

    module = built(build, Writers())
    split = split_module(module, None, each_its_own(module).__getitem__, None, keep_original_order)
    assert torch.equal(result(split), result(module))
    assert len(list(split.named_children())) == len(each_its_own(module))


def test_torch_has_these_wrong_so_the_tests_here_can_fail() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_function(operator.mul, (x, 2))
        graph.call_method("add_", (value, 3))
        return graph.call_function(operator.mul, (value, 5))

    module = built(build)
    ids = each_its_own(module)
    theirs = torch_split_module(module, None, ids.__getitem__)
    assert not torch.equal(result(theirs), result(module))
    assert torch.equal(result(split_module(module, None, ids.__getitem__)), result(module))


def test_a_write_between_two_reads_of_one_partition_is_refused_with_the_nodes() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_method("clone", (x,))
        before = graph.call_function(torch.cos, (value,))
        graph.call_method("add_", (value, 3))
        return graph.call_function(operator.sub, (graph.call_function(torch.sin, (value,)), before))

    module = built(build)
    ids = {"clone": 0, "cos": 1, "add_": 2, "sin": 1, "sub": 3}
    with pytest.raises(PartitionCycle, match="sin in partition 1 must come after add_ in partition 2") as raised:
        split_module(module, None, lambda node: ids[node.name])
    assert "writes in place and random draws must keep their order" in raised.value.message
    assert "add_ in partition 2 must come after cos in partition 1" in raised.value.message


def test_taking_a_view_reads_nothing_so_it_may_move_across_a_write() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_method("clone", (x,))
        view = graph.call_method("t", (value,))
        graph.call_method("add_", (value, 3))
        return graph.call_function(torch.cos, (view,))

    module = built(build)
    ids = {"clone": 0, "t": 1, "add_": 0, "cos": 2}
    assert torch.equal(result(split_module(module, None, lambda node: ids[node.name])), result(module))

    def reshaped(graph: fx.Graph, x: fx.Node) -> fx.Node:
        value = graph.call_method("clone", (x,))
        view = graph.call_method("t", (value,))
        graph.call_method("t_", (value,))
        return graph.call_function(torch.cos, (view,))

    module = built(reshaped)
    ids = {"clone": 0, "t": 1, "t_": 0, "cos": 2}
    with pytest.raises(PartitionCycle):
        split_module(module, None, lambda node: ids[node.name])


def draws() -> list[Callable[[fx.Graph, fx.Node], fx.Node]]:
    return [
        lambda graph, x: graph.call_function(torch.rand_like, (x,)),
        lambda graph, x: graph.call_function(torch.randn, (4, 4)),
        lambda graph, x: graph.call_function(torch.ops.aten.rand.default, ([4, 4],)),
        lambda graph, x: graph.call_function(F.dropout, (x,)),
        lambda graph, x: graph.call_function(F.dropout1d, (x, 0.5, True)),
        lambda graph, x: graph.call_function(F.gumbel_softmax, (x,)),
        lambda graph, x: graph.call_function(F.rrelu, (graph.call_function(torch.neg, (x,)),), {"training": True}),
        lambda graph, x: graph.call_method("bernoulli", (graph.call_function(torch.sigmoid, (x,)),)),
        lambda graph, x: graph.call_method("normal_", (graph.call_method("clone", (x,)),)),
        lambda graph, x: graph.call_function(F.scaled_dot_product_attention, (x, x, x), {"dropout_p": 0.5}),
        lambda graph, x: graph.call_module("drop", (x,)),
        lambda graph, x: graph.call_module("block", (x,)),
        lambda graph, x: graph.call_module("nested", (x,)),
    ]


class Drawers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.AlphaDropout(0.5)))
        self.nested = built(lambda graph, x: graph.call_function(torch.rand_like, (x,)))


@pytest.mark.parametrize("draw", draws())
def test_draws_come_in_the_order_of_the_module(draw: Callable[[fx.Graph, fx.Node], fx.Node]) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        first = draw(graph, x)
        second = graph.call_function(torch.rand_like, (x,))
        third = draw(graph, x)
        joined = graph.call_function(operator.sub, (first, second))
        return graph.call_function(operator.sub, (joined, third))

    module = built(build, Drawers())
    ids = each_its_own(module)
    for keep_original_order in (True, False):
        split = split_module(module, None, ids.__getitem__, None, keep_original_order)
        assert torch.equal(result(split), result(module))
    assert not torch.equal(result(torch_split_module(module, None, ids.__getitem__)), result(module))


def test_draws_that_two_partitions_interleave_are_refused() -> None:
    module = fx.symbolic_trace(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.rand_like(x)))
    ids = {"rand_like": 0, "rand_like_1": 1, "rand_like_2": 0}
    with pytest.raises(PartitionCycle, match="rand_like_2 in partition 0 must come after rand_like_1"):
        split_module(module, None, lambda node: ids[node.name])


@pytest.mark.parametrize(
    "idle",
    [
        lambda graph, x: graph.call_function(F.dropout, (x, 0.5, False)),
        lambda graph, x: graph.call_function(F.dropout, (x, 0.0)),
        lambda graph, x: graph.call_function(F.rrelu, (x,)),
        lambda graph, x: graph.call_function(F.scaled_dot_product_attention, (x, x, x)),
        lambda graph, x: graph.call_function(torch.ops.aten.dropout.default, (x, 0.5, False)),
        lambda graph, x: graph.call_module("drop", (x,)),
        lambda graph, x: graph.call_module("norm", (x,)),
    ],
)
def test_what_could_draw_or_write_and_does_not_refuses_no_split(idle: Callable[[fx.Graph, fx.Node], fx.Node]) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        first = idle(graph, x)
        second = idle(graph, x)
        third = idle(graph, x)
        return graph.call_function(torch.cat, ([first, second, third],))

    root = nn.Module()
    root.drop = nn.Dropout(0.5).eval()
    root.norm = nn.BatchNorm1d(4).eval()
    module = built(build, root)
    ids = dict(zip(each_its_own(module), (0, 1, 0, 2), strict=True))
    assert torch.equal(result(split_module(module, None, ids.__getitem__)), result(module))


def test_running_statistics_are_written_in_order() -> None:
    root = nn.Module()
    root.norm = nn.BatchNorm1d(4)
    module = built(
        lambda graph, x: graph.call_function(
            operator.add,
            (
                graph.call_module("norm", (x,)),
                graph.call_module("norm", (graph.call_function(operator.mul, (x, x)),)),
            ),
        ),
        root,
    )
    ids = each_its_own(module)
    statistics = []
    for run in (module, split_module(module, None, ids.__getitem__)):
        root.norm.reset_running_stats()
        module.norm.reset_running_stats()
        result(run)
        statistics.append(module.norm.running_mean.clone())
    assert torch.equal(*statistics)
    assert not torch.equal(statistics[0], torch.zeros(4))


def test_a_buffer_and_the_module_that_owns_it_are_one_storage() -> None:
    root = nn.Module()
    root.norm = nn.BatchNorm1d(4).eval()

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        mean = graph.get_attr("norm.running_mean")
        before = graph.call_module("norm", (x,))
        graph.call_method("add_", (mean, 1.0))
        after = graph.call_module("norm", (x,))
        return graph.call_function(operator.sub, (before, after))

    module = built(build, root)
    split = split_module(module, None, each_its_own(module).__getitem__)
    expected = result(module)
    module.norm.reset_running_stats()
    split_result = result(split)
    assert torch.equal(split_result, expected)
    assert split_result.abs().min() > 0.9


def test_writes_of_a_captured_program_are_read_off_its_schemas() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        value = x * 2
        rows = value[1:]
        rows.add_(1)
        value.mul_(3)
        return rows.cos() + value[1:]

    module = make_fx(program)(torch.rand(4, 4))
    split = split_module(module, None, each_its_own(module).__getitem__)
    assert torch.equal(result(split), result(module))


def test_effect_pairs_are_those_that_data_does_not_show() -> None:
    module = fx.symbolic_trace(lambda x: (x.add_(1), torch.rand_like(x), torch.rand_like(x), x * 2))
    pairs = {(one.name, other.name) for one, other in effect_pairs(module)}
    assert ("rand_like", "rand_like_1") in pairs
    assert ("add_", "mul") in pairs
    assert effect_pairs(fx.symbolic_trace(lambda x: (x + 1, x * 2))) == ()
