"""Which graphs draw random numbers when they evaluate, though they were captured in training; and which are trained as
they were captured in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.graph.evaluation import draws_in_evaluation, trains_as_in_evaluation


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


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1, inplace=True)), "1"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "1"),
        # Which do the same in both.
        (
            nn.Sequential(
                nn.Linear(4, 4), nn.Dropout(0.0), nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False)
            ),
            None,
        ),
    ],
)
def test_what_is_trained_as_it_evaluates_is_found(module: nn.Module, where: str | None) -> None:
    batch = torch.ones(3, 4)
    node = trains_as_in_evaluation(export(module.eval(), (batch,), compare=False).graph)
    assert (node.module_path if node else None) == where
    assert trains_as_in_evaluation(export(module.train(), (batch,), compare=False).graph) is None
    # Parts that are frozen so are meant to be.
    module[1].eval()
    assert trains_as_in_evaluation(export(module, (batch,), compare=False).graph) is None
