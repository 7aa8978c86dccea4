"""A program that was captured in training evaluates as its module does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.loader.stage_module import StageModule


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrent(x)[0]


MODULES = {
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.AlphaDropout(0.5)),
    "dropout of features": lambda: nn.Dropout1d(0.5),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(8, 8), nn.BatchNorm1d(4)),
    "batch norm of each batch": lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Dropout(0.5)),
    "instance norm": lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    "instance norm of each batch": lambda: nn.InstanceNorm1d(4),
    "attention": Attention,
    "lstm": Recurrent,
}


def rebuilt(module: nn.Module, x: torch.Tensor) -> StageModule:
    graph = export(module, (x,)).graph
    rebuilt = rebuild_module(parse_graph(graph_to_bytes(graph)), torch.device("cpu"))
    states = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    rebuilt.set_states({name: states[name].detach().clone() for name in rebuilt.state_names})
    return rebuilt


@pytest.mark.parametrize("name", MODULES)
def test_it_gives_what_the_module_does_in_eval(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name]().train(), torch.randn(3, 4, 8)
    program = rebuilt(copy.deepcopy(module), x)
    with torch.no_grad():
        program(x)  # changes running statistics, as it does below
        module(x)
        before = {name: state.clone() for name, state in program.states().items()}
        output = program.evaluating()(x)[0]
        assert torch.equal(output, module.eval()(x))
    assert all(torch.equal(before[name], state) for name, state in program.states().items())


class Centred(nn.Module):
    """Keeps a mean by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean[0].mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x - self.mean[0]


def test_what_the_module_itself_writes_in_training_an_evaluation_leaves_as_it_is() -> None:
    x = torch.ones(3, 4, 8)
    program = rebuilt(Centred().train(), x)
    evaluating = program.evaluating()
    with torch.no_grad():
        trained = program(x)[0].clone()
        mean = program.states()["mean"].clone()
        assert mean.any()
        outputs = [evaluating(x)[0] for _ in range(2)]

    assert torch.equal(program.states()["mean"], mean)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], trained)


def test_it_reads_the_states_that_training_writes() -> None:
    program = rebuilt(nn.Linear(8, 8).train(), torch.ones(3, 4, 8))
    evaluating = program.evaluating()
    with torch.no_grad():
        for state in program.states().values():
            state.zero_()
        assert not evaluating(torch.ones(3, 4, 8))[0].any()
