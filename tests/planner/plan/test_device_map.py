"""Hugging Face's device_map, read by accelerate itself: it takes every map that is exported, and the model runs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client.export import export
from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.device_map import device_map
from planner.plan.plan import Plan
from tests.builders.exported import exported
from tests.builders.plans import plan_of
from tests.builders.registry import FAMILIES
from tests.nightly import nightly

# Each exports whole models. The tests import accelerate when they run: a process that only collects them need not.
pytestmark = pytest.mark.slow


def cut_before(graph: Graph, node: int) -> Plan:
    return plan_of(graph, [int(index >= node) for index in range(len(graph.nodes))])


def first_node_of(graph: Graph, module_path: str) -> int:
    return next(index for index, node in enumerate(graph.nodes) if f"{node.module_path}.".startswith(f"{module_path}."))


@pytest.mark.parametrize("family", ["mixture", "unet"])
def test_accelerate_takes_every_map(family: str) -> None:
    from accelerate.utils import check_device_map

    graph, module = exported(family).graph, FAMILIES[family]().module
    refused = set()
    for node in range(1, len(graph.nodes), 4):
        for nearest in (False, True):
            try:
                check_device_map(module, device_map(graph, cut_before(graph, node), nearest=nearest))
            except OptionsError as error:
                refused.add((nearest, bool(error.metadata["module"])))
    # A block is gathered on one device; where the model itself adds up values of several, there is nothing to gather.
    assert refused == ({(False, False), (True, False)} if family == "unet" else {(False, True)})


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(3))
        self.unused = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_residual_block_stays_together_or_goes_where_most_of_it_runs() -> None:
    from accelerate.utils import check_device_map

    module = Stack()
    graph = export(module, (torch.ones(2, 4),)).graph
    inside = cut_before(graph, first_node_of(graph, "layers.1.down"))
    with pytest.raises(
        OptionsError, match=r"'layers\.1' runs on node0/cpu, node1/cpu, .*--together 'layers\.1', or.*--nearest"
    ):
        device_map(graph, inside)
    places = device_map(graph, inside, nearest=True)
    assert (places["layers.0"], places["layers.2"]) == (0, 1)
    assert places["layers.1"] in (0, 1)
    check_device_map(module, places)


def test_what_runs_nothing_has_a_device_too() -> None:
    from accelerate.utils import check_device_map

    module = Stack()
    graph = export(module, (torch.ones(2, 4),)).graph
    places = device_map(graph, cut_before(graph, first_node_of(graph, "layers.1")))
    check_device_map(module, places)
    assert places == {"layers.0": 0, "layers.1": 1, "layers.2": 1, "unused": 0, "steps": 0}


class Tied(nn.Module):
    """The head is the embedding, and `unused` is another name of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Embedding(10, 4)
        self.unused.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_each_user_of_a_tied_weight_is_where_it_runs() -> None:
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.tensor([[1, 2, 9]])
    graph = export(module, (ids,)).graph
    places = device_map(graph, cut_before(graph, first_node_of(graph, "layers.1")))
    assert places == {"embedding": 0, "layers.0": 0, "layers.1": 1, "head": 1, "unused": 0}


@pytest.mark.parametrize("family", ["t5", *nightly(["bert"])])
def test_a_transformer_gives_the_same_numbers(family: str, tmp_path: Path) -> None:
    """One device's modules stay in memory; the other's are read from disk, since there is one device here."""
    from accelerate import dispatch_model

    graph, case = exported(family).graph, FAMILIES[family]()
    places = device_map(
        graph, cut_before(graph, len(graph.nodes) // 2), {"node0/cpu": "cpu", "node1/cpu": "disk"}, nearest=True
    )
    assert set(places.values()) == {"cpu", "disk"}
    with torch.no_grad():
        expected = case.module(*case.args, **case.kwargs)
        dispatched = dispatch_model(copy.deepcopy(case.module), places, main_device="cpu", offload_dir=tmp_path)
        outputs = dispatched(*case.args, **case.kwargs)
    pairs = zip(pytree.tree_leaves(dict(outputs)), pytree.tree_leaves(dict(expected)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
