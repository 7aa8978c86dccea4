"""States of every kind of storage come back with the bits, the strides and the sharing that they had."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.errors import UnsupportedModule
from planner.graph.ir import StateKind
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program


class Assorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transposed = nn.Parameter(torch.randn(8, 4).t())
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.again = self.frozen
        halves = torch.randn(8)
        self.register_buffer("low", halves[:4])
        self.register_buffer("high", halves[4:], persistent=False)
        self.register_buffer("eighth", torch.randn(4).to(torch.float8_e4m3fn))
        self.register_buffer("rotation", torch.randn(4, dtype=torch.complex64))
        self.register_buffer("wide", torch.randn(1, 4).expand(3, 4))
        self.unregistered = torch.arange(4.0)

    def forward(self, features: torch.Tensor) -> Any:
        product = features @ self.transposed @ self.transposed.t() * self.scalar
        return (
            product + self.frozen + self.again,
            self.empty,
            self.low + self.high,
            self.wide + self.unregistered,
            (
                self.eighth.float(),
                self.rotation * 2,
            ),
        )


def test_every_storage_comes_back(tmp_path: Path) -> None:
    module, batch = Assorted(), Batch(args=(torch.randn(3, 4),))

    exported = export(module, batch.args)
    program = reload(exported, tmp_path, max_file_bytes=32)

    assert len(list(tmp_path.iterdir())) > 3
    assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


def test_what_is_said_of_each_state() -> None:
    module = Assorted()
    states = {state.name: state for state in export(module, (torch.randn(3, 4),)).graph.states}

    assert states["transposed"].requires_grad
    assert not states["frozen"].requires_grad
    assert states["low"].persistent
    assert not states["high"].persistent
    assert states["unregistered"].kind is StateKind.CONSTANT
    assert {name for name, state in states.items() if state.tie_group} == {"frozen", "again"}
    contiguous = module.transposed.detach().contiguous()
    assert states["transposed"].sha256 == hashlib.sha256(contiguous.numpy().tobytes()).digest()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_channels_last_weights_and_inputs_keep_their_layout(train: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    module = module.to(memory_format=torch.channels_last).train(train)
    batch = Batch(args=(torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),))

    exported = export(module, batch.args)
    program = reload(exported, tmp_path)

    assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


class Overlapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Parameter(torch.arange(12.0).view(4, 3))
        self.rows = nn.Parameter(self.whole.detach()[1:3])
        self.flat = nn.Parameter(self.whole.detach().view(-1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.whole @ self.rows.t() + self.flat[:2]


def test_states_that_overlap_in_memory_are_saved(tmp_path: Path) -> None:
    module, batch = Overlapping().eval(), Batch(args=(torch.ones(2, 4),))
    exported = export(module, batch.args)
    assert_bitwise_equal(run_program(exported, reload(exported, tmp_path), batch), run_module(module, batch))


def test_states_that_overlap_are_not_trained() -> None:
    with pytest.raises(UnsupportedModule, match=r"'whole': training writes it, and 'rows' is a different view"):
        export(Overlapping().train(), (torch.ones(2, 4),))
    export(Overlapping().train().requires_grad_(False), (torch.ones(2, 4),))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_two_parameters_over_the_same_elements_are_not_trained_as_one(requires_grad: bool) -> None:
    """An optimizer has a state for each, and steps the elements twice; of one that is frozen it sees nothing."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).train()
    module[1].weight = nn.Parameter(module[0].weight.detach(), requires_grad)
    batch = (torch.ones(2, 4),)

    if requires_grad:
        with pytest.raises(
            UnsupportedModule, match=r"'0.weight' and '1.weight': two parameters over the same elements"
        ):
            export(module, batch)
    module[1].weight = module[0].weight if requires_grad else module[1].weight
    assert [state.tie_group for state in export(module, batch).graph.states] == [1, 0, 1, 0]


class Beside(nn.Module):
    """As recurrent layers lay out their weights for cuDNN."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.arange(12.0)
        self.first, self.second = nn.Parameter(flat[:8].view(4, 2)), nn.Parameter(flat[8:].view(2, 2))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.first @ self.second


def test_states_beside_each_other_in_one_storage_are_trained(tmp_path: Path) -> None:
    module, batch = Beside().train(), Batch(args=(torch.ones(2, 4),))
    exported = export(module, batch.args)
    assert_bitwise_equal(run_program(exported, reload(exported, tmp_path), batch), run_module(module, batch))


class Cache:
    """Not a module: what it holds, a module reaches without a name."""

    def __init__(self) -> None:
        self.keys = torch.zeros(6, 4)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.register_buffer("keys", self.cache.keys, persistent=False)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, features: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.keys.index_copy_(0, position, features * self.weight)
        return self.cache.keys.sum(0)


def test_a_cache_that_holds_a_buffer_is_that_buffer(tmp_path: Path) -> None:
    module, batch = Caching(), Batch(args=(torch.ones(1, 4), torch.tensor([0])))

    exported = export(module, batch.args)

    states = {state.name: state for state in exported.graph.states}
    assert set(states) == {"keys", "weight"}
    assert (states["keys"].kind, states["keys"].mutated, states["keys"].tie_group) == (StateKind.BUFFER, True, 0)
    assert not states["keys"].requires_grad
    assert module.keys.is_leaf
    assert torch.equal(module.keys, torch.zeros(6, 4))
    program = reload(exported, tmp_path)
    for place in (0, 1, 2, 1):
        batch = Batch(args=(torch.full((1, 4), 2.0 + place), torch.tensor([place])))
        assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


class Listed(nn.Module):
    def __init__(self, *, detached: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.weights = [self.weight.detach() if detached else self.weight]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.weights[0] + self.weight


def test_a_parameter_that_is_reached_by_no_name_is_not_trained_in_silence() -> None:
    module, args = Listed(), (torch.ones(1, 4),)

    assert [state.name for state in export(module.train(), args, strict=True).graph.states] == ["weight"]
    states = export(Listed(detached=True).train(), args, strict=True).graph.states
    assert [(state.kind, state.requires_grad) for state in states] == [
        (StateKind.PARAMETER, True),
        (StateKind.CONSTANT, False),
    ]
    with pytest.raises(
        UnsupportedModule,
        match="Listed: the forward reaches parameter 'weight' otherwise than by its name",
    ):
        export(module, args)
    assert {state.tie_group for state in export(module.eval(), args).graph.states} == {1}
    module.weight.requires_grad_(False)
    assert export(module.train(), args).graph.states


def test_named_tuples_of_torch_come_back_as_their_own_types(tmp_path: Path) -> None:
    def forward(self: nn.Module, features: torch.Tensor) -> Any:
        return features.cummax(0), features.topk(2), features.kthvalue(2)

    module, batch = type("NamedTuples", (nn.Module,), {"forward": forward})(), Batch(args=(torch.randn(4, 4),))
    exported = export(module, batch.args)
    output = run_program(exported, reload(exported, tmp_path), batch)
    assert [type(item) for item in output] == [
        torch.return_types.cummax,
        torch.return_types.topk,
        torch.return_types.kthvalue,
    ]
