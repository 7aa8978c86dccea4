"""A plan's cuts in other systems' words; torch.distributed.pipelining is asked to cut by them."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining import SplitPoint, pipeline

from planner.client.export import export
from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.megatron import megatron_layout
from planner.plan.exports.torch_pipelining import split_spec, torchtitan_parts
from planner.plan.exports.vllm import vllm_layer_partition
from tests.builders.plans import plan_of


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Decoder(torch.nn.Module):
    def __init__(self, num_layers: int = 5) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 8)
        self.layers = torch.nn.ModuleList(Block() for _ in range(num_layers))
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return export(Decoder(), (torch.ones(2, 4),)).graph


def stages_at(graph: Graph, *first_modules: str) -> list[int]:
    """Each stage begins with the first node of a module."""
    paths = [node.module_path for node in graph.nodes]
    starts = [next(i for i, path in enumerate(paths) if f"{path}.".startswith(f"{name}.")) for name in first_modules]
    return [sum(index >= start for start in starts) for index in range(len(paths))]


def test_layers_per_stage(graph: Graph) -> None:
    plan = plan_of(graph, stages_at(graph, "layers.2", "layers.3"))
    assert vllm_layer_partition(graph, plan) == "2,1,2"
    assert megatron_layout(graph, plan) == "Et*2|t|t*2L"


def test_stages_without_layers(graph: Graph) -> None:
    plan = plan_of(graph, stages_at(graph, "layers.0", "norm"))
    assert vllm_layer_partition(graph, plan) == "0,5,0"
    assert megatron_layout(graph, plan) == "E|t*5|L"


def test_a_layer_that_is_cut_is_named_or_goes_where_most_of_it_runs(graph: Graph) -> None:
    plan = plan_of(graph, stages_at(graph, "layers.3.down"))
    with pytest.raises(OptionsError, match=r"layer layers\.3 is cut: its nodes run in stages 0, 1.*--nearest"):
        vllm_layer_partition(graph, plan)
    assert vllm_layer_partition(graph, plan, nearest=True) == "4,1"
    with pytest.raises(OptionsError, match=r"layers\.3"):
        megatron_layout(graph, plan)


def test_layers_out_of_order_and_graphs_without_layers_are_refused(graph: Graph) -> None:
    whole = stages_at(graph, "layers.2", "layers.3")
    swapped = plan_of(graph, [{0: 0, 1: 2, 2: 1}[stage] for stage in whole])
    with pytest.raises(OptionsError, match=r"layer layers\.3 runs in stage 1"):
        vllm_layer_partition(graph, swapped)
    flat = export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).graph
    with pytest.raises(OptionsError, match="no numbered layers"):
        vllm_layer_partition(flat, plan_of(flat, [0] * len(flat.nodes)))


def test_torch_cuts_where_the_split_spec_says(graph: Graph) -> None:
    plan = plan_of(graph, stages_at(graph, "layers.1", "layers.4", "head"))
    spec = split_spec(graph, plan)
    assert spec == {"layers.1": "beginning", "layers.4": "beginning", "head": "beginning"}
    points = {path: SplitPoint.BEGINNING if at == "beginning" else SplitPoint.END for path, at in spec.items()}
    pipe = pipeline(Decoder(), (torch.ones(2, 4),), split_spec=points)
    for stage in plan.stages:
        assert set(dict(pipe.get_stage_module(stage.index).named_parameters())) == set(stage.states)


def test_a_cut_after_a_module_is_its_end() -> None:
    class Tail(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Block()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) * self.weight)

    graph = export(Tail(), (torch.ones(2, 8),)).graph
    last = len(graph.nodes) - 1
    assert split_spec(graph, plan_of(graph, [int(index >= last - 1) for index in range(last + 1)])) == {"body": "end"}
    with pytest.raises(OptionsError, match=r"no module begins or ends: plan with --cut"):
        split_spec(graph, plan_of(graph, [int(index >= last) for index in range(last + 1)]))


def test_parts_hold_whole_modules(graph: Graph) -> None:
    plan = plan_of(graph, stages_at(graph, "layers.2", "norm"))
    assert torchtitan_parts(graph, plan) == [
        ["embed", "layers.0", "layers.1"],
        ["layers.2", "layers.3", "layers.4"],
        ["norm", "head"],
    ]


class Experts(torch.nn.Module):
    """More experts than the model has layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((expert(x) for expert in self.experts), x)


class Mixture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(3)))
        self.layers = torch.nn.ModuleList(Experts() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_are_counted_not_the_experts_in_them() -> None:
    graph = export(Mixture(), (torch.ones(2, 4),)).graph
    plan = plan_of(graph, stages_at(graph, "layers.1"))
    assert vllm_layer_partition(graph, plan) == "1,1"
    assert megatron_layout(graph, plan) == "Et|tL"


class EncoderDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleList(Block() for _ in range(2))
        self.decoder = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.encoder, *self.decoder):
            x = layer(x)
        return x


def test_two_lists_of_layers_are_refused() -> None:
    graph = export(EncoderDecoder(), (torch.ones(2, 8),)).graph
    plan = plan_of(graph, stages_at(graph, "decoder.1"))
    for export_ in (vllm_layer_partition, megatron_layout):
        with pytest.raises(OptionsError, match=r"several lists of layers: decoder \(3\), encoder \(2\)\..*device-map"):
            export_(graph, plan)


def test_stages_in_pieces_are_told_what_to_ask_for(graph: Graph) -> None:
    pieces = [0, 0, 0, 1, 1, 1, 0, 0, *[1] * (len(graph.nodes) - 8)]
    with pytest.raises(OptionsError, match=r"is made of \d pieces of the program; .*: plan with --mode balanced"):
        split_spec(graph, plan_of(graph, pieces))
