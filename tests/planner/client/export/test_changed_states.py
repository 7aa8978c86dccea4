"""A buffer in whose place the forward puts another tensor: the next call begins with it, as the module's does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.errors import PlannerWarning, UnsupportedModule
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_program

FEATURES = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Center(nn.Module):
    """Of all that it has been given, the later the more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        before = self.center
        self.center = 0.9 * self.center + 0.1 * features.detach().mean(0)
        self.calls = self.calls + 1
        return (features - before) * self.calls


class Below(nn.Module):
    """`parts` are called one after the other."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.parts = nn.ModuleList(parts)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(features)
        for part in self.parts:
            hidden = part(hidden)
        return hidden


def twice() -> nn.Module:
    part = Center()
    return Below(part, part)


@pytest.mark.parametrize("make", [Center, lambda: Below(Center()), lambda: Below(Center(), Center()), twice])
@pytest.mark.parametrize(("train", "strict"), [(False, False), (True, False), (True, True)])
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_calls_one_after_the_other_are_the_modules(make: Any, train: bool, strict: bool, tmp_path: Path) -> None:
    module = make().train(train)
    untouched = copy.deepcopy(module)
    exported = export(module, (FEATURES,), strict=strict)
    program = reload(exported, tmp_path)
    assert any(state.mutated for state in exported.graph.states)
    assert all(torch.equal(*pair) for pair in zip(module.buffers(), untouched.buffers(), strict=True))
    for call in range(4):
        batch = Batch(args=(FEATURES + call,))
        assert_bitwise_equal(run_program(exported, program, batch), module(*batch.args))


class Table(nn.Module):
    """Becomes larger where it is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(2.0), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if features.shape[1] > self.table.shape[0]:
            self.register_buffer("table", torch.arange(float(features.shape[1])), persistent=False)
        return features + self.table


class Past(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(1, 4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, features])
        return features + self.past.sum()


@pytest.mark.filterwarnings("error::planner.errors.PlannerWarning")
def test_one_of_another_shape_is_for_the_call_alone() -> None:
    graph = export(Below(Table()), (FEATURES,)).graph
    assert not any(state.mutated for state in graph.states)


def test_one_of_another_shape_that_the_next_call_depends_on_is_told() -> None:
    with pytest.warns(PlannerWarning, match=r"from one call to another.* The forward keeps parts\.0\.past in Python"):
        export(Below(Past()), (FEATURES,))


def test_one_of_another_shape_of_the_module_itself_is_refused() -> None:
    with pytest.raises(
        UnsupportedModule,
        match=r"Past: the forward puts a tensor of torch.float32 \[4, 4\] in the place of buffer 'past', a tensor of "
        r"torch.float32 \[1, 4\]; .* make the buffer as large as it may become",
    ):
        export(Past(), (FEATURES,))


class Replaces(nn.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.weight = nn.Parameter(self.weight.detach() * 2)
        return super().forward(features)


def test_a_parameter_that_is_replaced_is_refused() -> None:
    with pytest.raises(UnsupportedModule, match=r"in the place of parameter 'parts\.0\.weight', which no program does"):
        export(Below(Replaces(4, 4)), (FEATURES,))


class Freezes(nn.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.bias.requires_grad_(False)
        return super().forward(features)


def test_a_parameter_that_is_frozen_on_the_way_is_refused() -> None:
    with pytest.raises(UnsupportedModule, match=r"sets requires_grad of parameter 'parts\.0\.bias'.*set it before, or"):
        export(Below(Freezes(4, 4)).train(), (FEATURES,))
    assert export(Below(Freezes(4, 4)).eval(), (FEATURES,)).graph.nodes


class FreezesForOneCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.judge, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.judge.requires_grad_(False)
        judged = self.judge(features)
        self.judge.requires_grad_(True)
        out: torch.Tensor = self.last(judged)
        return out


def test_a_parameter_that_is_frozen_for_one_call_is_refused() -> None:
    with pytest.raises(UnsupportedModule, match=r"sets requires_grad of parameter 'judge\.weight'"):
        export(FreezesForOneCall().train(), (FEATURES,))
    assert export(FreezesForOneCall().eval(), (FEATURES,)).graph.nodes
