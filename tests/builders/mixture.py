"""A small mixture of experts without data-dependent shapes: every expert runs, torch.where picks."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

from tests.builders.case import Batch, Case


class Expert(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))


class MixtureBlock(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.norm(tokens)
        weights, chosen = torch.softmax(self.router(normed), dim=-1).max(dim=-1, keepdim=True)
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            mixed = torch.where(chosen == index, expert(normed) * weights, mixed)
        return tokens + mixed, chosen


class Mixture(nn.Module):
    def __init__(self, width: int, blocks: int, experts: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MixtureBlock(width, experts) for _ in range(blocks))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], None]:
        choices = []
        for block in self.blocks:
            tokens, chosen = block(tokens)
            choices.append(chosen)
        return tokens, choices, None


def mixture(*, train: bool = False, width: int = 16, blocks: int = 2, experts: int = 3) -> Case:
    torch.manual_seed(0)
    return Case(
        module=Mixture(width, blocks, experts).train(train),
        args=(_tokens(2, 5, width),),
        dynamic_shapes=({0: Dim("batch", min=1, max=1024), 1: Dim("sequence", min=1, max=1024)},),
        other_batches=tuple(Batch(args=(_tokens(batch, sequence, width),)) for batch, sequence in ((1, 3), (4, 9))),
    )


def _tokens(batch: int, sequence: int, width: int) -> torch.Tensor:
    return torch.randn(batch, sequence, width, generator=torch.Generator().manual_seed(batch * 1000 + sequence))
