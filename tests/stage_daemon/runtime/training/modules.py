"""Small modules that return their loss, and what is hard about each when it is cut."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

WIDTH = 8
ROWS = 12
BATCH = Dim("batch", min=1, max=64)


class Layers(nn.Module):
    def __init__(self, num_layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return functional.mse_loss(x, y)


class Skips(nn.Module):
    """What a layer gives is read by all layers after it, of several stages."""

    def __init__(self, num_layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = [x]
        for layer in self.layers:
            total = outputs[0]
            for one in outputs[1:]:
                total = total + one
            outputs.append(torch.tanh(layer(total)))
        return functional.mse_loss(outputs[-1], y)


class Tied(nn.Module):
    """The first layer's table is the last layer's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(hidden)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class Looked(nn.Module):
    """Rows of two tables, whose gradients torch may keep as those rows alone."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, sparse=sparse, mode="sum")
        self.head = nn.Linear(WIDTH, ROWS)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.table(ids).mean(1)) + self.bag(ids))
        return functional.cross_entropy(logits, targets[:, 0])


class Normed(nn.Module):
    """Batch norms, whose buffers every microbatch changes, and dropout in the last layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return functional.mse_loss(self.drop(x), y)


class Follows(nn.Module):
    """Keeps weights within bounds by writing to them, and divides by what each microbatch writes over first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        for index in range(3):
            self.register_buffer(f"scale{index}", torch.ones(2, WIDTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            scale = self.get_buffer(f"scale{index}")
            with torch.no_grad():
                layer.weight.clamp_(-0.3, 0.3)
                scale[0].mul_(0.9).add_(x.abs().mean(0), alpha=0.1)
            x = torch.tanh(layer(x) / scale[0]) * scale.sum(0)
        return functional.mse_loss(x, y)


class StraightThrough(nn.Module):
    """Rounds what has a gradient, through a view, where there is none: it stays, as if nothing had been written."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            wide = x.new_zeros(x.shape[0], WIDTH + 1)
            wide[:, 1:] = layer(x)
            x = wide[:, 1:] * 2
            with torch.no_grad():
                x.mul_(4).round_()
                x = x.div_(4)
            x = torch.tanh(x)
        return functional.mse_loss(x, y)


class Half(nn.Module):
    """Of what the first layer gives, one half never reaches the loss, and would not bear a gradient of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        roots = torch.sqrt(torch.relu(hidden) * 0)
        return functional.mse_loss(self.second(hidden), y), roots


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=generator), torch.randn(count, WIDTH, generator=generator)


def tokens(count: int, seed: int, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, length)
    return torch.randint(ROWS, shape, generator=generator), torch.randint(ROWS, shape, generator=generator)
