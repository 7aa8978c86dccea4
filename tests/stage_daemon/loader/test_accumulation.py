"""Gradients that large linear layers add up within their product: the same bits as autograd's, in fewer passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from stage_daemon.loader import accumulation
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.loader.stage_module import StageModule

NUM_MICROBATCHES = 3


class Layers(nn.Module):
    """`bias` or not, a function between, which may write to what it is given."""

    def __init__(self, *, bias: bool = True, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40, bias=bias), nn.Linear(40, 24, bias=bias)
        self.between = nn.ReLU(inplace=in_place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(x))).square().mean()


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x))).square().mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).square().mean()


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)


class Transposed(nn.Module):
    """Whose inputs are not contiguous, and whose gradients neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 16), nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(self.first(x).transpose(0, 1))).sum() / 7


class OfComplex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 40, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).abs().square().mean()


class Added(nn.Module):
    """Whose bias is of other dimensions than a layer's."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(40, 24)), nn.Parameter(torch.randn(dims))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias).square().mean()


class OfItself(nn.Module):
    """One node that reads the weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ functional.linear(self.weight, self.weight)).square().mean()


CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (Layers(), (16, 24)),
    "one row": (Layers(), (1, 24)),
    "sequences": (Layers(), (4, 8, 24)),
    "without bias": (Layers(bias=False), (4, 8, 24)),
    "written over": (Layers(in_place=True), (4, 8, 24)),
    "read twice": (ReadTwice(), (16, 24)),
    "tied": (Tied(), (16, 24)),
    "autocast": (Cast(), (16, 24)),
    "transposed": (Transposed(), (4, 8, 24)),
    "too many rows to add at once": (Layers(), (3000, 24)),
    "double": (Layers().double(), (16, 24)),
    "half": (Layers().bfloat16(), (16, 24)),
    "complex": (OfComplex(), (16, 24)),
    "one bias for all outputs": (Added(), (16, 24)),
    "a bias for each row": (Added(16, 40), (16, 24)),
    "of itself": (OfItself(), (16, 24)),
}


@pytest.fixture(autouse=True)
def _small_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "LEAST_BYTES", 1)
    monkeypatch.setattr(accumulation, "_trials", {})


def rebuilt(module: nn.Module, x: torch.Tensor) -> StageModule:
    program = rebuild_module(parse_graph(graph_to_bytes(export(module, (x,)).graph)), torch.device("cpu"))
    # One tensor where the module has one, under whatever names.
    copies = {id(one): one.detach().clone() for one in module.parameters()}
    states = dict(module.named_parameters(remove_duplicate=False))
    program.set_states({name: copies[id(states[name])] for name in program.state_names})
    return program


def states_of(program: StageModule) -> dict[str, torch.Tensor]:
    return {name: state for name, state in program.states().items() if state.requires_grad}


def gradients(program: StageModule, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of all microbatches, and of what the first was given."""
    for state in states_of(program).values():
        state.grad = None
    leaves = [batch.clone().requires_grad_() for batch in batches]
    for leaf in leaves:
        program(leaf)[0].backward()
    return {
        **{name: state.grad.clone() for name, state in states_of(program).items() if state.grad is not None},
        **{f"input {index}": leaf.grad for index, leaf in enumerate(leaves) if leaf.grad is not None},
    }


@pytest.mark.parametrize("name", CASES)
def test_its_bits_are_autograds(name: str) -> None:
    torch.manual_seed(0)
    module, dims = CASES[name]
    dtype = next(module.parameters()).dtype
    batches = [torch.randn(dims, dtype=dtype) for _ in range(NUM_MICROBATCHES)]
    program = rebuilt(copy.deepcopy(module).train(), batches[0])
    expected, accumulated = gradients(program, batches), gradients(program.accumulating(), batches)
    assert accumulated.keys() == expected.keys() >= {"input 0"}
    for key, gradient in expected.items():
        assert torch.equal(accumulated[key], gradient), key


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func.name())
        return func(*args, **(kwargs or {}))


def called_by_second(program: StageModule, batch: torch.Tensor) -> list[str]:
    """In the backward pass of the second microbatch."""
    program(batch)[0].backward()
    loss = program(batch)[0]
    with Operators() as operators:
        loss.backward()
    return operators.called


def test_only_the_first_microbatch_has_a_gradient_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_try", lambda *_: True)
    batch = torch.randn(16, 24)
    called = called_by_second(rebuilt(Layers().train(), batch).accumulating(), batch)
    # What is given has no gradient here, and the second layer's input has one.
    assert called.count("aten::addmm_") == 2
    assert called.count("aten::mm") == 1


def test_what_would_have_other_bits_is_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_try", lambda *_: False)
    batch = torch.randn(16, 24)
    assert "aten::addmm_" not in called_by_second(rebuilt(Layers().train(), batch).accumulating(), batch)


def test_a_frozen_weight_gets_no_gradient() -> None:
    module = Layers().train()
    module.first.weight.requires_grad_(False)
    batches = [torch.randn(16, 24) for _ in range(NUM_MICROBATCHES)]
    program = rebuilt(module, batches[0])
    assert "first.weight" not in gradients(program.accumulating(), batches)


def test_a_trial_is_made_once_for_a_shape_and_not_for_ever_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def trial(dtype: torch.dtype, num_rows: int, *_: int) -> bool:
        tried.append(num_rows)
        return True

    monkeypatch.setattr(accumulation, "_try", trial)
    layer = nn.Linear(24, 40)
    for num_rows in (*range(1, 200), *range(1, 200)):
        accumulation.linear(torch.randn(num_rows, 24), layer.weight, layer.bias)
    assert len(tried) == len(set(tried)) < 100


def test_rows_that_take_more_memory_than_the_largest_weight_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(accumulation, "_try", lambda _, num_rows, *__: tried.append(num_rows))
    monkeypatch.setattr(accumulation, "MOST_BYTES", 64 * (24 + 40) * 4)
    layer = nn.Linear(24, 40)
    for num_rows in (64, 65):
        accumulation.linear(torch.randn(num_rows, 24), layer.weight, layer.bias)
    assert tried == [64]


def test_states_that_no_node_reads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layers()
    module.register_parameter("unread", nn.Parameter(torch.ones(3)))
    program = rebuilt(module.train(), torch.randn(16, 24))
    accumulating = program.accumulating()
    assert accumulating.states().keys() == program.states().keys()
    assert all(accumulating.states()[name] is state for name, state in program.states().items())
