"""Small modules whose forwards are drawn at random, of what is easily lost where a program is cut: views, writes in
place, regions without gradients, results that nobody reads, weights that are read here and there, states that each
microbatch writes over.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional

ROWS, WIDTH, MOST_STEPS = 3, 4, 14


class Draw(random.Random):
    """`parts`: which followers come next."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.parts = itertools.count()


Step = Callable[["RandomProgram", torch.Tensor, torch.Tensor, Draw], torch.Tensor]


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradient


class Follower(nn.Module):
    """What each microbatch writes over, and gradients go through."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2, WIDTH))
        self.register_buffer("center", torch.zeros(WIDTH))
        self.bound = nn.Parameter(torch.randn(WIDTH))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale[0].mul_(0.9).add_(x.abs().mean(0), alpha=0.1)
        return x / self.scale[0] + self.scale.sum(0) * x

    def centered(self, x: torch.Tensor) -> torch.Tensor:
        before = self.center
        self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)
        return (x - before) * (1 + self.center)

    def bounded(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.bound.clamp_(-0.5, 0.5)
        return x * self.bound


class RandomProgram(nn.Module):
    """Takes a [ROWS, WIDTH] tensor; returns its loss, a sum of mean squares."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers[2].requires_grad_(False)
        self.table = nn.Embedding(5, WIDTH)
        self.weight, self.bias = nn.Parameter(torch.randn(ROWS, WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("fixed", torch.randn(ROWS, WIDTH))
        self.followers = nn.ModuleList(Follower() for _ in range(MOST_STEPS))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draw = Draw(self.seed)
        values = [x, self.table(torch.tensor([3, 0, 3]))]
        for _ in range(draw.randint(5, MOST_STEPS)):
            first, second = (draw.choice(values[-6:]) for _ in range(2))
            value = draw.choice(STEPS)(self, first, second, draw)
            # So that what is squared again and again does not grow beyond all numbers.
            values.append(torch.tanh(value) if draw.random() < 0.5 else value)
        losses = [value.square().mean() for value in values[2:-1] if draw.random() < 0.3]
        return torch.stack([*losses, (values[-1] * self.weight).square().mean()]).sum()


def layer(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out: torch.Tensor = draw.choice(list(module.layers))(first)
    return out


def part_of_zeros(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out, at = first.new_zeros(ROWS, WIDTH + 2), draw.randint(0, 2)
    out[:, at : at + WIDTH] = first
    return out[:, 1 : WIDTH + 1]


def halves_one_after_the_other(
    module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw
) -> torch.Tensor:
    out = first.new_zeros(ROWS, 2 * WIDTH)
    out[:, :WIDTH] = first
    between = out[:, WIDTH - 1 :].sum()
    out[:, WIDTH:] = second
    return out[:, 2 : WIDTH + 2] + between


def view_of_a_copy(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out = first.clone(memory_format=torch.contiguous_format)
    out.view(-1)[::2] = second.reshape(-1)[::2]
    return out


def read_around_a_write(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out = first * 1.5
    before = out.sum()
    window = out[1:]
    window.add_(before * 0.1)
    return out + window.mean()


def write_without_gradient(
    module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw
) -> torch.Tensor:
    out = first * 1.5
    with torch.no_grad():
        out[:, 0].mul_(2)
    return out


def whole_write_without_gradient(
    module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw
) -> torch.Tensor:
    """Of what has a gradient, which stays as it was: straight through, or by a factor that no derivative has."""
    out = first * 1.5
    with torch.no_grad():
        out = draw.choice([lambda: out.copy_(out.round()), lambda: out.mul_(2), lambda: out.clamp_(-1, 1)])()
    return out + second


def scaled_without_gradient(
    module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw
) -> torch.Tensor:
    with torch.no_grad():
        scale = torch.sigmoid(first)
    return scale * second


def rows_put_by_index(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out = torch.ones_like(first)
    index = torch.tensor([1, 2, 0])
    out[index] = first
    out[index, 1] += second[:, 0]
    return out


def moved_and_scattered(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    index = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]])
    return torch.zeros_like(first).scatter_(1, index, first)


def stacked_in_place(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    out = first.new_empty(2, ROWS, WIDTH)
    out[0], out[1] = first, second
    return out.prod(0)


def kept_of_a_detached_one(
    module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw
) -> torch.Tensor:
    out = first.detach().clone()
    out[:, 1:].add_(second[:, :-1])
    return out


def complex_product(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    numbers = torch.view_as_complex(first.reshape(ROWS, -1, 2).contiguous())
    return torch.view_as_real(numbers * (1 + 0.5j)).reshape(ROWS, WIDTH)


def followed(module: RandomProgram, first: torch.Tensor, second: torch.Tensor, draw: Draw) -> torch.Tensor:
    """By a part that no other step has: what is written over after it was read, no process goes back through."""
    part = module.followers[next(draw.parts)]
    out: torch.Tensor = draw.choice([part.scaled, part.centered, part.bounded])(first)
    return out


STEPS: tuple[Step, ...] = (
    layer,
    layer,
    followed,
    followed,
    part_of_zeros,
    halves_one_after_the_other,
    view_of_a_copy,
    read_around_a_write,
    write_without_gradient,
    whole_write_without_gradient,
    whole_write_without_gradient,
    scaled_without_gradient,
    rows_put_by_index,
    moved_and_scattered,
    stacked_in_place,
    kept_of_a_detached_one,
    complex_product,
    lambda module, first, second, draw: Reversed.apply(first),
    lambda module, first, second, draw: first * module.weight,
    lambda module, first, second, draw: first + module.fixed,
    lambda module, first, second, draw: first.detach() + second,
    lambda module, first, second, draw: first * second,
    lambda module, first, second, draw: torch.where(first > 0, first, second),
    lambda module, first, second, draw: torch.cat([first[:, :1], second[:, 1:]], 1),
    lambda module, first, second, draw: torch.stack(first.unbind(0)[::-1]),
    lambda module, first, second, draw: torch.relu_(first + 0.1),
    lambda module, first, second, draw: first.mean(0, keepdim=True).expand(ROWS, WIDTH) * 1.5,
    lambda module, first, second, draw: first - first.max(1, keepdim=True).values,
    lambda module, first, second, draw: first.t().contiguous().t(),
    lambda module, first, second, draw: (first * 1).masked_fill_(first > 1, 0.5),
    lambda module, first, second, draw: first @ module.table.weight.t() @ module.table.weight,
    lambda module, first, second, draw: functional.layer_norm(first, (WIDTH,), None, module.bias),
)
