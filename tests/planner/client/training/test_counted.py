"""What a loss is a mean over is counted in the batch, or left to who knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from planner.client.export import export
from planner.client.tensors import to_raw
from planner.client.training.counted import GraphLoss
from planner.client.training.cutting import loss_output
from planner.graph.ir import Dtype, Graph, OperatorKind
from planner.graph.operators import facts_of, load_vocabulary

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


def graph_of(loss: Loss, labels: torch.Tensor = LABELS) -> tuple[Graph, int]:
    features = torch.randn(len(labels), 5, 3)
    rows = {0: Dim("rows", min=2)}
    graph = export(
        Model(loss).train(), (features, labels), dynamic_shapes={"features": rows, "labels": rows}, compare=False
    ).graph
    return graph, loss_output(graph, "loss")[1]


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


def each(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")


def over_a_mask(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    mask = (labels != IGNORED).float().view(-1)
    return (each(logits, labels) * mask).sum() / mask.sum().clamp(min=1)


def over_a_cut_mask(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    mask = labels[:, 1:] > 0
    return (each(logits, labels).view_as(labels)[:, 1:] * mask).sum() / (mask.sum() + 1e-8)


def summed_and_divided(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return summed(logits, labels) / (labels != IGNORED).sum()


def weighed_by_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = labels[:, :2].double()
    return (logits[:, :2].mean(-1) * weights).sum() / weights.sum()


def selected(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return each(logits, labels).view_as(labels)[labels >= 2].mean()


def selected_by_a_mask(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.masked_select(logits.mean(-1), labels.bool()).mean()


@pytest.mark.parametrize(
    ("loss", "counts"),
    [
        (plain, [3, 1]),
        (moved, [2, 1]),
        (cut_off, [2, 1]),
        (chosen, [0, 1]),
        (over_a_mask, [3, 1]),
        (over_a_cut_mask, [2, 1]),
        (summed_and_divided, [3, 1]),
        (weighed_by_labels, [3, -200]),
        (selected, [2, 1]),
        (selected_by_a_mask, [5, 5]),
    ],
)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_what_is_not_left_out_is_counted(loss: Loss, counts: list[int], kind: str) -> None:
    counted = GraphLoss(*graph_of(loss)).counted()

    assert counted is not None
    for row, count in zip(LABELS.split(1), counts, strict=True):
        assert counted.count((torch.randn(1, 5, 3), row if kind == "torch" else row.numpy())) == count


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.view(-1), reduction="sum")


def with_more(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.square().mean() + 0.5 * plain(logits, labels)


def doubled_often(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """In as many ways as no search could go through one by one."""
    loss = plain(logits, labels)
    for _ in range(64):
        loss = (loss + loss) * 0.5
    return loss


def masked(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return plain(logits, torch.where(labels > 3, IGNORED, labels))


def arranged_before(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Which elements are cut off depends on where they were."""
    return functional.cross_entropy(logits.flatten(0, 1)[1:], labels.t().reshape(-1)[1:])


def of_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.double().view(-1, 6).softmax(-1).float())


def mean_by_a_number(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.mean() / (labels > 0).sum()


def by_two_sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.sum() / ((labels > 0).sum() + logits.sum())


def squares(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.mean(-1) - labels).square().mean()


def in_the_batch(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, 0] @ logits[:, 1].t(), torch.arange(logits.shape[0]))


@pytest.mark.parametrize(
    ("loss", "is_told"),
    [
        (masked, True),
        (arranged_before, True),
        (with_more, True),
        (doubled_often, True),
        *((loss, False) for loss in (summed, mean_by_a_number, by_two_sums, squares, in_the_batch)),
    ],
)
def test_other_losses_are_left_to_who_knows(loss: Loss, is_told: bool) -> None:
    graph, loss_id = graph_of(loss)
    assert GraphLoss(graph, loss_id).counted() is None
    assert GraphLoss(graph, loss_id).is_over_some_elements() == is_told


def test_probabilities_are_no_targets_that_one_could_leave_out() -> None:
    graph, loss_id = graph_of(of_probabilities, LABELS.repeat(1, 6))
    assert GraphLoss(graph, loss_id).counted() is None
    assert not GraphLoss(graph, loss_id).is_over_some_elements()


def test_a_mask_may_be_an_input() -> None:
    counted = GraphLoss(*graph_of(lambda logits, mask: logits.mean(-1)[mask].mean(), LABELS > 0)).counted()
    assert counted is not None
    assert counted.count((None, LABELS > 0)) == 4


class Weighed(Model):
    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(features).flatten(0, 1)
        return {"loss": functional.cross_entropy(logits, labels.view(-1), self.weights.to(logits.dtype))}


def test_classes_count_what_they_weigh() -> None:
    module = Weighed(plain).train()
    graph = export(module, (torch.randn(2, 5, 3), LABELS), compare=False).graph
    counted = GraphLoss(graph, loss_output(graph, "loss")[1]).counted()
    assert counted is not None
    assert counted.weights == "weights"
    weights = to_raw(torch.tensor([0.0, 0.5, 2.0, 4.0, 8.0, 16.0]), Dtype.FLOAT32)
    assert [counted.count((None, row), weights) for row in LABELS.split(1)] == [0.5 + 2 + 8, 4]


class WeighedByWhatItWrites(Weighed):
    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.weights.mul_(0.9)
        return super().forward(features, labels)


def test_weights_that_change_are_left_to_who_knows() -> None:
    graph = export(WeighedByWhatItWrites(plain).train(), (torch.randn(2, 5, 3), LABELS), compare=False).graph
    loss_id = loss_output(graph, "loss")[1]
    assert GraphLoss(graph, loss_id).counted() is None
    assert GraphLoss(graph, loss_id).is_over_some_elements()


class OfAll(Model):
    """What it divides by is no microbatch's own."""

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.head(features).sum() / labels.sum()}


def test_so_is_what_each_microbatch_has_whole() -> None:
    graph = export(OfAll(plain).train(), (torch.randn(3, 5, 3), LABELS), compare=False).graph
    assert GraphLoss(graph, loss_output(graph, "loss")[1]).counted() is None


def squares_summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(logits.mean(-1), labels.float(), reduction="sum")


def triplets_summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.triplet_margin_loss(logits[:, 0], logits[:, 1], logits[:, 2], reduction="sum")


def means_added(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([plain(logits, labels), squares(logits, labels)]).sum()


def summed_and_scaled(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 0.5 * summed(logits, labels).double() / 7


def summed_by_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return summed(logits, labels) / labels.shape[0]


@pytest.mark.parametrize(
    ("loss", "sums"),
    [
        *((loss, True) for loss in (summed, squares_summed, triplets_summed, summed_and_scaled)),
        *((loss, False) for loss in (plain, squares, means_added, summed_and_divided, summed_by_rows)),
    ],
)
def test_a_loss_that_is_a_sum_is_seen_to_be_one(loss: Loss, sums: bool) -> None:
    assert GraphLoss(*graph_of(loss)).is_sum() == sums


class ByANumber(Model):
    """As models of transformers divide by the number of targets in several batches, if they are told."""

    def forward(self, features: torch.Tensor, labels: torch.Tensor, total: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": summed(self.head(features), labels) / total}


def test_a_sum_by_a_number_that_each_microbatch_is_given_stays_one() -> None:
    graph = export(ByANumber(plain).train(), (torch.randn(2, 5, 3), LABELS, torch.tensor(4)), compare=False).graph
    assert GraphLoss(graph, loss_output(graph, "loss")[1]).is_sum()


def test_a_reduction_is_where_the_schema_has_it() -> None:
    for kind, name, overload in load_vocabulary():
        if kind is OperatorKind.ATEN:
            schema = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), overload)._schema
            names = [argument.name for argument in schema.arguments]
            assert facts_of(name).reduction == (str(names.index("reduction")) if "reduction" in names else ""), name
