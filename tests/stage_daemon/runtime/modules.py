"""Small modules whose values cross cuts in every way: consumed next, bypassing, as ints, as inputs passed on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim

ROWS = 40
WIDTH = 16
STARTS = ("second", "third")
BATCH = Dim("batch", min=1, max=64)
LENGTH = Dim("length", min=2, max=64)
SHAPES = {"first_ids": {0: BATCH, 1: LENGTH}, "second_ids": {0: BATCH, 1: LENGTH}}


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(self.table(ids) + hidden))


class ThreeStages(nn.Module):
    """The first stage's result and the length are read by the third; the second one's table fails on its own ids."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Mixing()
        self.second = Mixing()
        self.third = nn.Linear(WIDTH, 5)

    def forward(self, first_ids: torch.Tensor, second_ids: torch.Tensor) -> dict[str, Any]:
        length = first_ids.shape[1]
        early = self.first(first_ids, torch.ones(()))
        late = self.second(second_ids, early.transpose(0, 1).contiguous().transpose(0, 1))
        logits = self.third(late + early) * length
        return {"logits": logits, "mask": second_ids > 3, "length": length, "nothing": None}


class Dropping(nn.Module):
    """Draws random numbers in both stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dropout(0.5)
        self.second = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + 1)


def ids(batch: int, length: int, start: int = 0) -> torch.Tensor:
    return (torch.arange(batch * length).view(batch, length) * 7 + start) % ROWS


def batch_of(batch: int, length: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return ids(batch, length, start), ids(batch, length, start + 11)


def wanted(module: ThreeStages, batch: tuple[torch.Tensor, torch.Tensor]) -> list[Any]:
    with torch.no_grad():
        output = module(*batch)
    return [output["logits"], output["mask"], output["length"]]
