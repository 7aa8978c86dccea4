"""ctc_loss, whose kernels make sums as long as the longest target is, is captured as one call, and trained by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from planner.client.export import export
from tests.models.trains import trains_as

FRAMES = torch.linspace(-2, 2, 192).reshape(2, 12, 8).sin()
LABELS = torch.tensor([[1, 3, 3, 5], [2, 4, -100, -100]])
NUM_FRAMES, NUM_LABELS = torch.tensor([12, 9]), torch.tensor([4, 2])


class Speech(nn.Module):
    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.score = nn.Linear(8, 8), nn.Linear(8, 6)
        self.arguments = arguments

    def log_probs(self, frames: torch.Tensor) -> torch.Tensor:
        return self.score(self.encode(frames).relu()).log_softmax(-1).transpose(0, 1)

    def forward(self, frames: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor, ends: torch.Tensor) -> Any:
        return F.ctc_loss(self.log_probs(frames), labels, lengths, ends, **self.arguments)


class OfAllLabelsInARow(Speech):
    """As models of transformers do: labels are those that are not below 0."""

    def forward(self, frames: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor, ends: torch.Tensor) -> Any:
        given = labels >= 0
        return F.ctc_loss(self.log_probs(frames), labels.masked_select(given), lengths, given.sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [Speech(), Speech(reduction="none", blank=2, zero_infinity=True), OfAllLabelsInARow()],
    ids=["mean", "each", "in a row"],
)
def test_is_trained_in_stages_as_the_module_trains_itself(module: nn.Module) -> None:
    batch = {"frames": FRAMES, "labels": LABELS, "lengths": NUM_FRAMES, "ends": NUM_LABELS}

    assert trains_as(module, batch) == "eager"


def test_lengths_may_change() -> None:
    batch, length, longest = Dim("batch", min=2), Dim("length", min=2), Dim("longest", min=2)

    exported = export(
        Speech(reduction="none"),
        (FRAMES, LABELS, NUM_FRAMES, NUM_LABELS),
        dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: longest}, {0: batch}, {0: batch}),
    )

    [loss] = [node for node in exported.graph.nodes if node.operator.name == "aten::ctc_loss"]
    assert [symbol.name for symbol in exported.graph.symbols] == ["batch", "length", "longest"]
    assert loss is exported.graph.nodes[-1]
