"""The liveness table of a split module: by hand for small pipelines, by running the stages for larger ones."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from planner.fx_compat import analyze_pipeline_module, pipeline_stages, split_module
from planner.fx_compat.splitting.errors import PipelineError


def split_at(module: nn.Module | Callable[..., object], *ends: str) -> fx.GraphModule:
    """A stage ends with each node named."""
    traced = fx.symbolic_trace(module)
    stage, ids = 0, {}
    for node in traced.graph.nodes:
        ids[node] = stage
        stage += node.name in ends
    return split_module(traced, None, ids.__getitem__, keep_original_order=True)


def bypassing(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    first = x * 2
    side = x + 1
    second = first.cos()
    third = second.sin()
    return third * side - mask


def test_what_a_later_stage_needs_is_live_in_between() -> None:
    names, stages, liveness = analyze_pipeline_module(split_at(bypassing, "add", "cos", "sin"))
    assert stages == {0: "submod_0", 1: "submod_1", 2: "submod_2", 3: "submod_3"}
    assert names == {
        -1: ["x", "mask"],
        0: ["x"],
        1: ["submod_0.0"],
        2: ["submod_1"],
        3: ["submod_2", "submod_0.1", "mask"],
    }
    assert liveness == {
        0: ["x", "mask"],
        1: ["submod_0.0", "submod_0.1", "mask"],
        2: ["submod_1", "submod_0.1", "mask"],
        3: ["submod_2", "submod_0.1", "mask"],
    }


class Chain(nn.Module):
    """Every layer's result is needed again at the end."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activations = []
        for layer in self.layers:
            x = layer(x)
            activations.append(x)
        return torch.stack(activations).sum(0)


def test_a_stage_does_not_make_the_tensors_of_one_whose_name_begins_like_its_own() -> None:
    top = split_at(Chain(13), *(f"layers_{index}" for index in range(12)))
    _, _, liveness = analyze_pipeline_module(top)
    for stage_id in range(1, 13):
        assert sorted(liveness[stage_id]) == sorted(f"submod_{stage_index}" for stage_index in range(stage_id))
    x = torch.rand(2, 3)
    live: tuple[torch.Tensor, ...] = (x,)
    for stage in pipeline_stages(top)[:-1]:
        live = stage(*live)
    assert torch.equal(pipeline_stages(top)[-1](*live), top(x))


def test_what_the_module_returns_stays_live_to_the_end() -> None:
    def several(x: torch.Tensor) -> dict[str, object]:
        first = x + 1
        early = x - 1
        return {"first": (early, [first.cos()]), "given": x}

    _, _, liveness = analyze_pipeline_module(split_at(several, "sub"))
    assert liveness == {0: ["x"], 1: ["submod_0.0", "submod_0.1", "x"]}


def test_states_of_the_top_module_are_no_traffic() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cos() * self.scale

    names, _, liveness = analyze_pipeline_module(split_at(Scaled(), "cos"))
    assert names[1] == ["submod_0", "scale"]
    assert liveness == {0: ["x"], 1: ["submod_0"]}


def test_items_of_items_are_named_from_the_outside_in() -> None:
    root = nn.Module()
    root.submod_0 = nn.Identity()
    root.submod_1 = nn.Identity()
    graph = fx.Graph()
    whole = graph.call_module("submod_0", (graph.placeholder("x"),))
    inner = graph.call_function(operator.getitem, (graph.call_function(operator.getitem, (whole, 0)), 1))
    graph.output(graph.call_module("submod_1", (inner,)))
    names, _, liveness = analyze_pipeline_module(fx.GraphModule(root, graph))
    assert names[1] == liveness[1] == ["submod_0.0.1"]


def test_inputs_that_the_first_stage_does_not_take_in_their_order_are_told(caplog: pytest.LogCaptureFixture) -> None:
    def swapped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (b * 2 + a).cos()

    _, _, liveness = analyze_pipeline_module(split_at(swapped, "add"))
    assert liveness[0] == ["a", "b"]
    assert "['b', 'a']" in caplog.text


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda graph, x: graph.call_function(torch.relu, (x,)), "Expect only getitem"),
        (lambda graph, x: graph.call_method("cos", (x,)), "Expect only getitem"),
        (lambda graph, x: graph.call_module("other", (x,)), "must lie in a stage"),
        (lambda graph, x: graph.call_module("submod_0", (x, 1)), "arg 1 in submod_0 is 1"),
        (lambda graph, x: graph.call_module("submod_0", (), {"value": x}), "takes positions only"),
        (
            lambda graph, x: graph.call_module("submod_0", (graph.call_module("submod_0", (x,)),)),
            "calls submod_0 again",
        ),
        (lambda graph, x: x, "calls no stage"),
    ],
)
def test_a_top_module_that_is_no_pipeline_is_refused(
    build: Callable[[fx.Graph, fx.Node], fx.Node], message: str
) -> None:
    root = nn.Module()
    root.submod_0 = nn.Identity()
    root.other = nn.Identity()
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    with pytest.raises(AssertionError, match=message) as raised:
        analyze_pipeline_module(fx.GraphModule(root, graph))
    assert isinstance(raised.value, PipelineError)
