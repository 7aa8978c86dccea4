"""Autocast and grad regions are opened again in every partition that they span."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.passes.split_module import split_module as torch_split_module

from planner.fx_compat import split_module
from planner.fx_compat.splitting.errors import RegionError


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.second(plain)
            with torch.no_grad():
                frozen = self.first(low)
                with torch.autocast("cpu", enabled=False):
                    frozen = self.first(frozen.float())
            low = self.second(frozen) + low
        return self.second(low.float()) + plain


def captured(module: nn.Module, x: torch.Tensor) -> fx.GraphModule:
    """As dynamo captures it, with its states as inputs: call it with what `states` gives."""
    graphs: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> fx.GraphModule:
        graphs.append((graph, inputs))
        return graph

    torch._dynamo.reset()
    torch.compile(module, backend=backend)(x)
    assert len(graphs) == 1
    graph, inputs = graphs[0]
    graph.meta["given"] = inputs
    return graph


def blocks(size: int) -> Callable[[fx.Node], int]:
    seen: dict[fx.Node, int] = {}
    return lambda node: seen.setdefault(node, len(seen) // size)


@pytest.mark.slow
@pytest.mark.parametrize("affix", [None, "stage"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_numbers_and_gradients_are_those_of_the_module(size: int, affix: str | None) -> None:
    module, x = Regions(), torch.rand(2, 4)
    graph = captured(module, x)
    split = split_module(graph, None, blocks(size), partition_affix=affix)
    gradients = []
    for run in (graph, split):
        module.zero_grad()
        (output,) = run(*graph.meta["given"])
        output.sum().backward()
        gradients.append([output.detach(), *(parameter.grad.clone() for parameter in module.parameters())])
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert torch.equal(gradients[0][0], gradients[1][0])
    # A region that is opened again casts its weights again, so their gradients are added up in another precision.
    torch.testing.assert_close(gradients[0], gradients[1], rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("size", [2, 3])
def test_every_partition_does_what_torch_has_it_do(size: int) -> None:
    graph = captured(Regions(), torch.rand(2, 4))
    ours = split_module(graph, None, blocks(size))
    theirs = torch_split_module(graph, None, blocks(size))
    for name, child in theirs.named_children():
        part = ours.get_submodule(name)
        assert sorted(_lines(part)) == sorted(_lines(child))
        assert [node.op for node in part.graph.nodes][: len(part.graph.find_nodes(op="placeholder"))] == [
            "placeholder" for _ in part.graph.find_nodes(op="placeholder")
        ]


def _lines(module: nn.Module) -> list[str]:
    return [str(node.target) for node in module.graph.nodes]


def test_partitions_that_go_back_across_a_region_are_refused() -> None:
    graph = captured(Regions(), torch.rand(2, 4))
    with pytest.raises(AssertionError, match="monotonically increasing partitions") as raised:
        split_module(graph, None, lambda node: -list(graph.graph.nodes).index(node))
    assert isinstance(raised.value, RegionError)


def test_a_region_that_never_ends_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None))
    graph.output(graph.call_function(torch.relu, (x,)))
    with pytest.raises(AssertionError, match="autocast must exit: the graph enters _enter_autocast"):
        split_module(fx.GraphModule(nn.Module(), graph), None, lambda node: 0)


def test_a_grad_mode_does_not_reach_a_partition_that_comes_before_it() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    plain = graph.call_function(torch.sin, (x,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    frozen = graph.call_function(torch.cos, (x,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((plain, frozen))
    ids = {"sin": 0, "_set_grad_enabled": 1, "cos": 1, "_set_grad_enabled_1": 2}
    split = split_module(fx.GraphModule(nn.Module(), graph), None, lambda node: ids[node.name])
    plain_result, frozen_result = split(torch.rand(3, requires_grad=True))
    assert plain_result.requires_grad
    assert not frozen_result.requires_grad
    assert torch.is_grad_enabled()
