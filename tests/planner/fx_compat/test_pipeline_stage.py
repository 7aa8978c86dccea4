"""Stages run one after the other do what the top module does, gradients and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree

from planner.fx_compat import pipeline_stages, split_module
from planner.fx_compat.splitting.errors import PipelineError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        hidden = self.layers[0](x)
        # Needs a gradient, and is used at the end only.
        bypass = hidden * mask
        pair = (hidden + 1, hidden.chunk(2)[1])
        for layer in list(self.layers)[1:]:
            hidden = layer(hidden) * self.scale
        return {"last": hidden + bypass + self.shift, "pair": pair, "mask": [mask], "scale": self.scale}


def split_by_layer(module: Model) -> fx.GraphModule:
    traced = fx.symbolic_trace(module)
    stage, ids = 0, {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            stage = int(str(node.target).split(".")[1])
        ids[node] = stage
    return split_module(traced, None, ids.__getitem__)


def loss(result: Any) -> torch.Tensor:
    return sum(leaf.square().sum() for leaf in _pytree.tree_leaves(result))


def test_results_and_gradients_are_those_of_the_module() -> None:
    module = Model()
    stages = pipeline_stages(split_by_layer(module))
    assert [stage.name for stage in stages] == [f"submod_{index}" for index in range(12)]
    x, mask = torch.rand(2, 4), torch.rand(2, 4)
    live: Any = (x, mask)
    for stage in stages:
        live = stage(*live)
    expected = module(x, mask)
    assert list(live) == list(expected)
    assert all(
        torch.equal(one, other)
        for one, other in zip(_pytree.tree_leaves(live), _pytree.tree_leaves(expected), strict=True)
    )
    gradients = []
    for result in (live, expected):
        module.zero_grad()
        loss(result).backward()
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_stage_owns_the_states_it_is_called_with_under_their_names() -> None:
    module = Model()
    stages = pipeline_stages(split_by_layer(module))
    assert "scale" not in dict(stages[0].named_parameters())
    assert dict(stages[1].named_parameters())["scale"] is module.scale
    assert dict(stages[-1].named_buffers())["shift"] is module.shift


def test_the_wrong_number_of_values_is_refused_with_the_names_that_are_due() -> None:
    stages = pipeline_stages(split_by_layer(Model()))
    with pytest.raises(PipelineError, match="submod_0 was given 1 values and takes 2: x, mask"):
        stages[0](torch.rand(2, 4))
