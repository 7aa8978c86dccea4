"""A small GPT over bytes, and text that every Python ships: the manual's pages that help() shows.

`planner-cli train examples.tiny_gpt:build --data examples.tiny_gpt:batches --steps 20 --optimizer adamw:lr=3e-3`
"""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
WIDTH = 64
HEADS = 4
LAYERS = 4
LENGTH = 64
ROWS = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.before_layers = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length = hidden.shape[:2]
        projected = self.projections(self.before_attention(hidden)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joined(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return hidden + self.layers(self.before_layers(hidden))


class TinyGpt(nn.Module):
    """Returns its loss. The table of tokens is also the matrix of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.positions(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.last(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], dict[str, object], object]:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=256)
    example = torch.zeros(ROWS // 4, LENGTH, dtype=torch.int64)
    # Two tensors: torch.export takes one that is passed twice to be one input.
    return TinyGpt().train(), (example, example.clone()), {}, ({0: rows}, {0: rows})


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(bytes, the bytes that follow each), from places that a seed draws."""
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(text) - LENGTH - 1, (ROWS,), generator=draw).tolist()
        windows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
