"""A small DLRM (Naumov et al. 2019): embedding bags and a dense tower, joined by pairwise products."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim

from tests.builders.case import Batch, Case

_BAG = 3


class Dlrm(nn.Module):
    def __init__(self, dense_features: int, rows: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(dense_features, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU()
        )
        self.embeddings = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum") for count in rows)
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.register_buffer("pairs", torch.tril_indices(len(rows) + 1, len(rows) + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, sparse: list[torch.Tensor]) -> torch.Tensor:
        """`sparse`: for each table, (batch, bag) rows to sum."""
        bottom = self.bottom(dense)
        vectors = [bottom, *(embed(rows) for embed, rows in zip(self.embeddings, sparse, strict=True))]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, crossed], dim=1)))


def dlrm(*, train: bool = False, rows: tuple[int, ...] = (50, 20, 100), width: int = 8) -> Case:
    torch.manual_seed(0)
    batch = Dim("batch", min=1, max=1024)
    return Case(
        module=Dlrm(6, rows, width).train(train),
        args=_inputs(4, rows),
        dynamic_shapes=({0: batch}, [{0: batch} for _ in rows]),
        other_batches=tuple(Batch(args=_inputs(size, rows)) for size in (1, 7)),
    )


def _inputs(batch: int, rows: tuple[int, ...]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(batch)
    dense = torch.randn(batch, 6, generator=generator)
    return dense, [torch.randint(0, count, (batch, _BAG), generator=generator) for count in rows]
