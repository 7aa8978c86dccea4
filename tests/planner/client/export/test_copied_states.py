"""Where gradients go through a state that is written over, a program in training reads a copy, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.client.export import export
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_program

FEATURES = torch.ones(3, 4)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(features)
        # Twice before it is written, and twice after.
        before = hidden * self.scale + hidden / self.scale
        with torch.no_grad():
            self.scale.view(2, 2).mul_(0.9).add_((hidden.abs().mean(0) * self.scale).view(2, 2))
        return before * self.scale + self.scale[1:2]


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        shifted = features * self.shift
        self.shift.mul_(0.9)
        rows: torch.Tensor = self.linear(shifted)
        return rows


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.linear(features))
        return normed + self.offset


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.linear.weight.clamp_(-1, 1)
        rows: torch.Tensor = self.linear(features)
        return rows + self.linear.weight[0]


class Row(nn.Module):
    """What is written to is reached where gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        row = self.linear.weight[0]
        with torch.no_grad():
            row.clamp_(-0.01, 0.01)
        rows: torch.Tensor = self.linear(features)
        return rows


def copies(module: nn.Module) -> int:
    graph = export(module, (FEATURES,)).graph
    return [node.operator.name for node in graph.nodes].count("aten::clone")


@pytest.mark.parametrize(
    ("module", "expected"), [(Scaled(), 3), (Shifted(), 0), (Normed(), 0), (Bounded(), 2), (Row(), 1)]
)
def test_copies_are_made_where_gradients_need_them(module: nn.Module, expected: int) -> None:
    assert copies(module.train()) == expected
    assert copies(module.eval()) == 0


@pytest.mark.parametrize("make", [Scaled, Shifted, Bounded, Row])
def test_what_is_read_is_what_the_module_reads(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    module = make().train()
    exported = export(module, (FEATURES,))
    program = reload(exported, tmp_path)
    for call in range(3):
        batch = Batch(args=(FEATURES + call,))
        assert_bitwise_equal(run_program(exported, program, batch), module(*batch.args))
