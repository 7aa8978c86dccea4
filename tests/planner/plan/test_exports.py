"""A plan's cuts in other systems' words; torch.distributed.pipelining is asked to cut by them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable

import pytest
import torch
from torch.distributed.pipelining import SplitPoint, pipeline

from planner.client.export import export
from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.megatron import megatron_layout
from planner.plan.exports.torch_pipelining import split_spec, torchtitan_parts
from planner.plan.exports.vllm import vllm_layer_partition
from planner.plan.imports.modules import split_of_parts, split_of_split_spec
from tests.builders.plans import plan_of
from tests.planner.plan.test_exports_by_hand import program


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


class Recurrent(torch.nn.Module):
    """Its block is called twice in a row, and its activation before the head and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.norm = torch.nn.LayerNorm(8)
        self.activation = torch.nn.ReLU()
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.block(self.block(x)))
        return self.activation(self.head(self.activation(x)))


@pytest.mark.slow
def test_torch_cuts_as_often_as_the_plan_where_modules_are_called_again() -> None:
    """Its splitter cuts at each call of a module; what it makes of every spec has as many stages as the plan."""
    module, inputs = Recurrent().eval(), (torch.ones(2, 8),)
    graph = export(module, inputs).graph
    refused = 0
    for start in range(1, len(graph.nodes)):
        stages = [int(index >= start) for index in range(len(graph.nodes))]
        try:
            spec = split_spec(graph, plan_of(graph, stages))
        except OptionsError:
            refused += 1
            continue
        assert list(split_of_split_spec(graph, spec).partition_of_node) == stages
        points = {path: SplitPoint.BEGINNING if at == "beginning" else SplitPoint.END for path, at in spec.items()}
        pipe = pipeline(Recurrent(), inputs, split_spec=points)
        assert pipe.num_stages == 2
    assert 0 < refused < len(graph.nodes) - 1
    with pytest.raises(OptionsError, match="'block' is called several times in a row"):
        split_of_split_spec(graph, {"block": "end"})
    twice = split_of_split_spec(graph, {"activation": "beginning"})
    points = {"activation": SplitPoint.BEGINNING}
    assert twice.num_ranks == pipeline(Recurrent(), inputs, split_spec=points).num_stages == 3


class Shared(torch.nn.Module):
    """As ALBERT: four layers, of which two share their weights with the layer before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(layer(x))
        return x


def test_layers_that_are_called_again_are_not_counted_once() -> None:
    graph = export(Shared(), (torch.ones(2, 8),)).graph
    plan = plan_of(graph, stages_at(graph, "layers.1"))
    for export_ in (vllm_layer_partition, megatron_layout):
        with pytest.raises(OptionsError, match=r"layer layers\.0 is called more than once.*device-map"):
            export_(graph, plan)


def torchtitans_part(model: torch.nn.Module, names: Collection[str]) -> torch.nn.Module:
    """What torchtitan's pipeline_module_split (2025) leaves of a model for one stage: by the model's children alone."""
    part = copy.deepcopy(model)
    for name, child in list(part.named_children()):
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            items = {one.split(".", 1)[1] for one in names if one.startswith(f"{name}.")}
            numbers = [number for number in range(len(child)) if str(number) in items]
            part.register_module(name, torch.nn.ModuleDict({str(number): child[number] for number in numbers}))
        elif name not in names:
            part.register_module(name, None)
    return part


def states_kept(model: torch.nn.Module, parts: Iterable[Collection[str]]) -> list[set[str]]:
    return [set(torchtitans_part(model, names).state_dict()) for names in parts]


@pytest.mark.parametrize(
    "starts", [(), ("layers.2", "norm"), ("layers.0",), ("norm",), ("layers.1", "layers.4", "head")]
)
def test_each_stage_of_torchtitan_keeps_the_states_of_the_plans(graph: Graph, starts: tuple[str, ...]) -> None:
    plan = plan_of(graph, stages_at(graph, *starts))
    parts = torchtitan_parts(graph, plan)
    assert states_kept(Decoder(), parts) == [set(stage.states) for stage in plan.stages]


class Wrapped(torch.nn.Module):
    """As models of transformers are, with layers a module deeper. `before` is no list, but its parts are numbered."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.model = Decoder(3)
        self.after = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.model(self.before(x)))


def test_what_torchtitan_cannot_keep_apart_is_refused() -> None:
    graph = export(Wrapped(), (torch.ones(2, 4),)).graph
    for starts in (("model",), ("after",), ("model", "after")):
        plan = plan_of(graph, stages_at(graph, *starts))
        assert states_kept(Wrapped(), torchtitan_parts(graph, plan)) == [set(stage.states) for stage in plan.stages]
    inside = plan_of(graph, stages_at(graph, "model.layers.1"))
    with pytest.raises(OptionsError, match=r"'model' is cut.* none that lies deeper.*torch-pipelining"):
        torchtitan_parts(graph, inside)
    with pytest.raises(OptionsError, match=r"'model\.layers\.0' lies deeper.*drops 'model'"):
        split_of_parts(graph, [["before", "model.embed", "model.layers.0"], ["model.layers.1"]])


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
    one_each = program("encoder.0.a", "encoder.0.b", "decoder.0.a", "decoder.0.b")
    with pytest.raises(OptionsError, match="several lists of layers"):
        vllm_layer_partition(one_each, plan_of(one_each, (0, 0, 1, 1)))


def test_stages_in_pieces_are_told_what_to_ask_for(graph: Graph) -> None:
    pieces = [0, 0, 0, 1, 1, 1, 0, 0, *[1] * (len(graph.nodes) - 8)]
    with pytest.raises(OptionsError, match=r"is made of \d pieces of the program; .*: plan with --mode balanced"):
        split_spec(graph, plan_of(graph, pieces))
