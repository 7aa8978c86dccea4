"""Which graphs draw random numbers when they evaluate, though they were captured in training, and which do
something else in the one than in the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.graph.evaluation import answers_as_in_training, draws_in_evaluation, trains_as_in_evaluation
from planner.graph.ir import Graph, Node


class LeavesOut(nn.Module):
    """A residual block's depth, as libraries of image models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.linear(x)
        if self.training:
            added = added * x.new_empty(x.shape[0], 1).bernoulli_(0.5)
        return x + added


@pytest.mark.parametrize(
    ("module", "draws_at"),
    [
        (nn.Sequential(nn.Linear(4, 4), LeavesOut()), "1"),
        (nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.RReLU(), nn.BatchNorm1d(4)), None),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), None),
    ],
)
def test_what_a_module_draws_by_itself_it_draws_in_evaluation(module: nn.Module, draws_at: str | None) -> None:
    batch = torch.ones(3, 4)
    drawing = draws_in_evaluation(export(module.train(), (batch,), compare=False).graph)

    assert (drawing.module_path if drawing else None) == draws_at
    assert draws_in_evaluation(export(module.eval(), (batch,), compare=False).graph) is None


class Recurrent(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTM(4, 4, 2, dropout=share), nn.GRU(4, 4, 2, dropout=share)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            x, _ = cell(x)
        return x


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = 0.1 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=share)


@pytest.mark.parametrize(
    ("module", "in_evaluation", "in_training"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1, inplace=True)), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.1)), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(4, track_running_stats=True)), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.RReLU()), "1", "1"),
        (nn.Sequential(nn.Linear(4, 4), Recurrent(0.1)), "1.cells.0", "1.cells.0"),
        # Of which a program in evaluation shows nothing.
        (nn.Sequential(nn.Linear(4, 4), Attention()), None, "1"),
        (nn.Sequential(nn.Linear(4, 4), LeavesOut()), None, "1"),
        # Which do the same in both.
        (nn.Sequential(nn.Dropout(0.0), nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False)), None, None),
        (nn.Sequential(nn.Linear(4, 4), Recurrent(0.0)), None, None),
    ],
)
def test_what_is_otherwise_in_training_is_known(
    module: nn.Module, in_evaluation: str | None, in_training: str | None
) -> None:
    batch = torch.ones(3, 4) if not isinstance(module[1], nn.InstanceNorm1d | Attention) else torch.ones(2, 4, 4)

    def where(captured: nn.Module, ask: Callable[[Graph], Node | None]) -> str | None:
        node = ask(export(captured, (batch,), compare=False).graph)
        return node.module_path if node else None

    assert where(module.eval(), trains_as_in_evaluation) == in_evaluation
    assert where(module, answers_as_in_training) is None
    assert where(module.train(), answers_as_in_training) == in_training
    assert where(module, trains_as_in_evaluation) is None
    # A part that is in eval mode by itself is meant to be.
    module[1].eval()
    assert where(module, trains_as_in_evaluation) is None
    assert where(module, answers_as_in_training) is None
