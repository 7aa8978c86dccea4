"""Backward passes in two through whole graphs: what is behind the cut, and which pass is timed when."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2
from stage_daemon.runtime.training.split_backward import WeightPass
from stage_daemon.worker.profile import split_rehearsal
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.gradients import SplitGraph, split_graph, values_with_gradient
from stage_daemon.worker.profile.rehearsal import ClockMarks, Program, program_of
from stage_daemon.worker.profile.split_rehearsal import SplitSeconds, rehearse_split
from stage_daemon.worker.profile.values import ValueTable
from tests.builders.exported import exported_small
from tests.builders.registry import FAMILIES
from tests.stage_daemon.worker.profile.test_rehearsal import message_of

CPU = torch.device("cpu")
TOKENS = torch.zeros(2, 3, dtype=torch.int64)


class Words(nn.Module):
    """Places are looked up in a table of their own, whose gradient is of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5, 4), nn.Embedding(3, 4)
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(3))
        hidden = functional.gelu(self.layer(self.words(tokens)))
        return self.last(hidden + places).square().sum()


def cut(graph: graph_pb2.Graph) -> SplitGraph:
    return split_graph(graph, values_with_gradient(graph, ValueTable(graph, {})))


def test_the_cut_is_before_the_middle_of_the_nodes_that_read_weights() -> None:
    """Of the layer, the sum with places and the last layer, not of what makes the words."""
    graph = message_of(Words(), TOKENS)
    split, names = cut(graph), [_operator(graph, node) for node in graph.nodes]
    assert split.given == {*graph.nodes[names.index("aten::gelu")].outputs}
    # What is of weights alone is walked to from behind.
    behind = sorted(names[index] for index in split.nodes)
    assert behind == sorted(
        ["aten::arange", "aten::embedding", "aten::add", "aten::linear", "aten::square", "aten::sum"]
    )


class TwoResults(nn.Module):
    """What the first layer makes is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.layers[0](x)
        return first.square().sum(), self.layers[2](torch.tanh(self.layers[1](first.relu()))).sum()


def test_what_is_returned_from_before_the_cut_is_given() -> None:
    graph = message_of(TwoResults(), torch.zeros(2, 4))
    split, names = cut(graph), [_operator(graph, node) for node in graph.nodes]
    made = {value_id: names[index] for index, node in enumerate(graph.nodes) for value_id in node.outputs}
    assert sorted(made[value_id] for value_id in split.given) == ["aten::sum", "aten::tanh"]
    assert sorted(names[index] for index in split.nodes) == ["aten::linear", "aten::sum"]


def _operator(graph: graph_pb2.Graph, node: graph_pb2.Node) -> str:
    return graph.operators[node.operator].name


def test_nothing_is_behind_a_cut_where_nothing_is_trained() -> None:
    module = Words().requires_grad_(False)
    assert cut(message_of(module, TOKENS)).given == frozenset()


def test_both_passes_together_add_whole_gradients_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all weights behind the cut, but for the last microbatch's, whose second pass never comes."""
    graph = message_of(Words(), TOKENS)
    values, programs = ValueTable(graph, {}), list[Program]()

    def made(*given: Any, **more: Any) -> Program:
        programs.append(program_of(*given, **more))
        return programs[-1]

    monkeypatch.setattr(split_rehearsal, "program_of", made)
    rounds: list[None] = []
    rehearse_split(graph, values, CPU, Effort(repetitions=1), cut(graph), lambda: rounds.append(None))
    whole = program_of(graph, values, CPU, num_kept=1)
    whole.train()
    expected = gradients(whole)
    assert gradients(programs[0]).keys() == expected.keys() - {"words.weight", "layer.weight", "layer.bias"}
    for name, gradient in gradients(programs[0]).items():
        torch.testing.assert_close(gradient, (len(rounds) - 1) * expected[name])


def gradients(program: Program) -> dict[str, torch.Tensor]:
    return {name: state.grad for name, state in program.module.states().items() if state.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"resnet50"}))
def test_whole_family_runs_so_on_made_up_values(family: str) -> None:
    graph = graph_pb2.Graph.FromString(graph_to_bytes(exported_small(family).graph))
    split = rehearse_split(graph, ValueTable(graph, {}), CPU, Effort(repetitions=1), cut(graph), lambda: None)
    assert split.input_gradients > 0
    assert split.weight_gradients > 0


def test_the_passes_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first microbatch has none before it, the second is to warm up, and of three the slowest is no tenth."""
    graph = message_of(Words(), TOKENS)
    moments, ran = count(), []
    seconds = iter([[9.0, 0.0], [7.0, 8.0], [5.0, 2.0], [5.0, 2.0], [2.0, 5.0]])
    monkeypatch.setattr(WeightPass, "run", lambda one: ran.append(len(one.starts)))

    class Scripted(ClockMarks):
        def seconds(self) -> list[float]:
            assert len(super().seconds()) == 2
            return next(seconds)

    monkeypatch.setattr(split_rehearsal, "marks_on", lambda _: Scripted(lambda: float(next(moments))))
    split = rehearse_split(graph, ValueTable(graph, {}), CPU, Effort(repetitions=3), cut(graph), lambda: None)
    assert split == SplitSeconds(input_gradients=4.0, weight_gradients=3.0)
    # The beginning, what came out of the first pass, the sum with places and the last layer.
    assert ran == [0, *[4] * 4]
