"""Export tells of a loss that is another one in microbatches than over the whole batch; and of no other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from planner.client.export import export
from planner.errors import PlannerWarning

WIDTH = 8
ROWS, LENGTH = Dim("rows", min=2, max=64), Dim("length", min=2, max=64)
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Trained(nn.Module):
    def __init__(self, body: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.body, self.criterion = body, criterion

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.criterion(self.body(x), y)


def encoder(*, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def numbers(*dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*dims, generator=generator), torch.randn(*dims, generator=generator)


def with_padding() -> tuple[torch.Tensor, torch.Tensor]:
    x, _ = numbers(7, WIDTH)
    return x, torch.tensor([1, -100, 2, -100, -100, 3, 0])


def exported_with(module: nn.Module, example: tuple[torch.Tensor, ...], dims: Any, **options: Any) -> list[str]:
    """What is warned of."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        export(module, example, dynamic_shapes=(dims, dims), **options)
    return [str(one.message) for one in told if issubclass(one.category, PlannerWarning)]


def in_batch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As contrastive losses are."""
    return functional.cross_entropy(x @ y.T, torch.arange(x.shape[0]))


def root(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(x, y).sqrt()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "criterion", "example", "dims"),
    [
        (encoder(batch_first=False), functional.mse_loss, numbers(6, 4, WIDTH), {0: LENGTH, 1: ROWS}),
        (nn.Linear(WIDTH, WIDTH), in_batch, numbers(7, WIDTH), {0: ROWS}),
        (nn.Embedding(9, WIDTH, sparse=True), in_batch, (torch.arange(7), numbers(7, WIDTH)[1]), {0: ROWS}),
        (nn.Linear(WIDTH, WIDTH), root, numbers(7, WIDTH), {0: ROWS}),
    ],
    ids=["time first", "in batch", "of embeddings", "root"],
)
def test_a_loss_that_rows_share_is_told_of(
    body: nn.Module, criterion: Criterion, example: tuple[torch.Tensor, torch.Tensor], dims: Any
) -> None:
    module = Trained(body, criterion)
    [told] = exported_with(module.train(), example, dims)
    assert "cuts batches along their first dimension" in told
    assert all(part.training for part in module.modules())
    assert not exported_with(module, example, dims, compare=False)
    assert not exported_with(module.eval(), example, dims)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(x, y, reduction="sum")


def over_mask(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = y != -100
    return (x.square().mean(-1) * mask).sum() / mask.sum()


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(x.mul_(2.0), y.add_(1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "criterion", "example", "dims"),
    [
        (encoder(batch_first=True), functional.mse_loss, numbers(7, 4, WIDTH), {0: ROWS, 1: LENGTH}),
        (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)),
            functional.l1_loss,
            numbers(7, WIDTH),
            {0: ROWS},
        ),
        (nn.Linear(WIDTH, WIDTH), summed, numbers(7, WIDTH), {0: ROWS}),
        (nn.Linear(WIDTH, WIDTH), functional.cross_entropy, with_padding(), {0: ROWS}),
        (nn.Linear(WIDTH, WIDTH), over_mask, with_padding(), {0: ROWS}),
        (nn.Linear(WIDTH, WIDTH), in_place, numbers(7, WIDTH), {0: ROWS}),
        # Of fixed sizes, a microbatch is the example.
        (nn.Linear(WIDTH, WIDTH), in_batch, numbers(7, WIDTH), None),
    ],
    ids=["batch first", "norm and dropout", "sum", "padding", "mask", "in place", "fixed"],
)
def test_nothing_is_told_of_rows_that_are_each_by_itself(
    body: nn.Module, criterion: Criterion, example: tuple[torch.Tensor, torch.Tensor], dims: Any
) -> None:
    before = [one.clone() for one in example]
    module = Trained(body, criterion).train()
    states = {name: one.clone() for name, one in module.state_dict().items()}
    assert not exported_with(module, example, dims)
    assert all(torch.equal(one, other) for one, other in zip(example, before, strict=True))
    assert all(torch.equal(one, states[name]) for name, one in module.state_dict().items())
