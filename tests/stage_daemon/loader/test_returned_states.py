"""A state that a program returns is written by the next run: whoever has the output must keep what it was."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from tests.stage_daemon.loader.test_evaluation import rebuilt


class Counting(nn.Module):
    """Gives what it counts, one way or another."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 3))
        self.register_buffer("fixed", torch.ones(3))
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        count = self.count.add_(x)
        match self.way:
            case "itself":
                return count
            case "a view":
                return count.transpose(0, 1)[1:]
            case "undropped":
                return nn.functional.dropout(count, training=False)
            case "with another":
                return x + 1, count.view(-1)
            case "a parameter":
                return x + 1, self.weight[0]
            case "a sum":
                return count + 0
            case _:
                return self.fixed.expand(2, 3)


@pytest.mark.parametrize("way", ["itself", "a view", "undropped", "with another", "a parameter"])
def test_an_output_stays_what_it_was(way: str) -> None:
    x = torch.rand(2, 3)
    stage = rebuilt(Counting(way), x)
    run = stage.function()
    given = run(x)
    first = [output.clone() for output in given]
    run(x)
    with torch.no_grad():
        for state in stage.states().values():
            state.add_(1.0)
    assert all(map(torch.equal, given, first))


@pytest.mark.parametrize("way", ["a sum", "what is never written"])
def test_what_nobody_writes_is_not_copied(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3)
    stage = rebuilt(Counting(way), x)
    monkeypatch.setattr(torch.Tensor, "clone", Mock(side_effect=AssertionError("copied")))
    [output] = stage.function()(x)
    assert torch.equal(output, Counting(way)(x))
