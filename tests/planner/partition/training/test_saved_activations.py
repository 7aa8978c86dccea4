"""What a plan says that a stage keeps for its backward pass, beside what torch keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.client.export import export
from tests.builders.saved_activations import kept_bytes, plan_of_one_stage

ROWS, LENGTH, WIDTH = 2, 16, 32


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.sum()


class Between(nn.Module):
    """Some layer between two linear ones, which keep what the layer is given and what it returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.LazyLinear(WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layers(hidden).sum()


def planned_bytes(module: nn.Module, hidden: torch.Tensor) -> int:
    """Of one stage with all nodes, for one microbatch, without the input."""
    [stage] = plan_of_one_stage(export(module, (hidden,)).graph, {}).stages
    return stage.memory.saved_bytes - hidden.nbytes


def test_a_plan_counts_what_backward_reads_and_not_all_that_a_stage_makes() -> None:
    module, hidden = Encoder().train(), torch.randn(ROWS, LENGTH, WIDTH)
    planned, kept = planned_bytes(module, hidden), kept_bytes(module, hidden) - hidden.nbytes
    # Statistics of norms, and a copy that a linear layer makes of what is not contiguous, are not counted.
    assert 0.9 * kept <= planned <= 1.1 * kept, (planned, kept)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.Dropout(0.5, inplace=True),
        nn.Dropout(0.0),
        nn.AlphaDropout(0.5),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
        nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(0.5)),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.MaxPool2d(2),
    ],
    ids=str,
)
def test_what_a_layer_makes_within_is_counted_besides(layer: nn.Module) -> None:
    module, hidden = Between(layer).train(), torch.randn(ROWS, LENGTH, WIDTH)
    module(hidden.clone())
    assert planned_bytes(module, hidden) == kept_bytes(module, hidden) - hidden.nbytes
