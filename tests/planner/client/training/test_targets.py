"""What the mean of a cross entropy is taken over is counted in the batch, or left to who knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from planner.client.export import export
from planner.client.training.cutting import loss_output
from planner.client.training.targets import Targets, counted_targets

IGNORED = -100
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LABELS = torch.tensor([[1, 2, IGNORED, 4, IGNORED], [IGNORED, IGNORED, 3, IGNORED, IGNORED]])


class Model(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.head = nn.Linear(3, 6)
        self.weights = nn.Buffer(torch.ones(6))
        self.loss = loss

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(features)
        return {"loss": self.loss(logits, labels), "logits": logits}


def targets_of(loss: Loss, labels: torch.Tensor = LABELS, columns: int | None = None) -> Targets | None:
    features = torch.randn(len(labels), columns or labels.shape[1], 3)
    rows = {0: Dim("rows", min=2)}
    graph = export(
        Model(loss).train(), (features, labels), dynamic_shapes={"features": rows, "labels": rows}, compare=False
    ).graph
    return counted_targets(graph, loss_output(graph, "loss")[1])


def plain(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.view(-1))


def moved(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As causal models of transformers move their labels."""
    labels = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return functional.cross_entropy(logits.view(-1, 6).float(), labels.view(-1).to(logits.device)).float()


def cut_off(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], label_smoothing=0.1)


def chosen(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(logits[:, 3].log_softmax(-1), labels[:, 3], ignore_index=4)


@pytest.mark.parametrize(("loss", "counts"), [(plain, [3, 1]), (moved, [2, 1]), (cut_off, [2, 1]), (chosen, [0, 1])])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_targets_that_are_not_ignored_are_counted(loss: Loss, counts: list[int], kind: str) -> None:
    targets = targets_of(loss)

    assert targets is not None
    for row, count in zip(LABELS.split(1), counts, strict=True):
        assert targets.count((torch.randn(1, 5, 3), row if kind == "torch" else row.numpy())) == count


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.view(-1), reduction="sum")


def with_more(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return plain(logits, labels) + logits.square().mean()


def masked(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return plain(logits, torch.where(labels > 3, IGNORED, labels))


def arranged_before(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Which elements are cut off depends on where they were."""
    return functional.cross_entropy(logits.flatten(0, 1)[1:], labels.t().reshape(-1)[1:])


def of_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.double().view(-1, 6).softmax(-1).float())


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        *((loss, LABELS) for loss in (summed, with_more, masked, arranged_before)),
        (of_probabilities, LABELS.repeat(1, 6)),
        (lambda logits, labels: (logits.mean(-1) - labels).square().mean(), LABELS),
    ],
)
def test_other_losses_are_left_to_who_knows(loss: Any, labels: torch.Tensor) -> None:
    assert targets_of(loss, labels, 5) is None


class Weighed(Model):
    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(features).flatten(0, 1)
        return {"loss": functional.cross_entropy(logits, labels.view(-1), self.weights)}


def test_so_are_classes_that_count_differently() -> None:
    graph = export(Weighed(plain).train(), (torch.randn(2, 5, 3), LABELS), compare=False).graph
    assert counted_targets(graph, loss_output(graph, "loss")[1]) is None
