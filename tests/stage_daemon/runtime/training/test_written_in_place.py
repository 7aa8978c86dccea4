"""What is written in place is trained through, also where the write goes through a view and a later stage reads all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.stage_daemon.runtime.training.eager import num_stages_trained_alike

pytestmark = pytest.mark.slow

ROWS, WIDTH = 3, 4
Write = Callable[["Writes", torch.Tensor], torch.Tensor]


def a_part_of_zeros(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(ROWS, 2 * WIDTH)
    out[:, 1 : WIDTH + 1] = module.inner(x)
    return out


def each_column_in_turn(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(ROWS, 2, WIDTH)
    for column in range(2):
        x = torch.tanh(module.inner(x))
        out[:, column] = x
    return out.flatten(1)


def a_view_of_a_view(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = torch.ones(ROWS, 2 * WIDTH)
    out.view(ROWS, 2, WIDTH)[:, 1].t().mul_(module.inner(x).t())
    return out


def one_of_two_pieces(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = torch.cat([x, x], 1)
    out.narrow(1, 0, WIDTH).add_(module.inner(x))
    return out


def rows_by_index(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(ROWS, 2 * WIDTH)
    out[:, ::2].index_add_(0, torch.tensor([2, 0, 1]), module.inner(x))
    return out


def over_what_was_trained(module: Writes, x: torch.Tensor) -> torch.Tensor:
    """The old numbers keep their gradient where they stay, and lose it where they are written over."""
    out = module.inner(x).repeat(1, 2)
    out[:, :WIDTH] = x
    return out


def complex_numbers(module: Writes, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(ROWS, WIDTH + 1, dtype=torch.cfloat)
    out[:, :WIDTH] = torch.complex(module.inner(x), x)
    return torch.fft.irfft(out, n=2 * WIDTH)


class Writes(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.last(torch.tanh(self.write(self, x))).square().mean()
        return loss


@pytest.mark.parametrize(
    "write",
    [
        a_part_of_zeros,
        each_column_in_turn,
        a_view_of_a_view,
        one_of_two_pieces,
        rows_by_index,
        over_what_was_trained,
        complex_numbers,
    ],
)
def test_two_steps_equal_one_process(write: Write) -> None:
    module = Writes(write).train()
    batches = [(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]

    assert num_stages_trained_alike(module, batches, max_stages=8, rate=0.1, tolerance=1e-6) > 1
