"""Custom torch.autograd.Functions: trained in stages as the module trains itself, or refused with what to change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

from planner.client.export import export
from planner.errors import UnsupportedModule
from planner.graph.ir import Graph
from planner.partition.objective import PipelineSchedule
from tests.builders.cuts import even_cuts
from tests.models.trains import trains_as
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.eager import Eager

FEATURES = torch.linspace(-1.5, 1.5, 24).reshape(6, 4)
Body = Callable[["Calls", torch.Tensor], torch.Tensor]


class Calls(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.body = body

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.body(self, self.first(features)))
        return out


class Straight(Function):
    """Gives back its input, and a gradient that is not its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Reversed(Straight):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradient


class Rounded(Function):
    @staticmethod
    def forward(x: torch.Tensor, steps: float) -> torch.Tensor:
        return torch.round(x * steps) / steps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < 1, gradient, 0.0), None


class Projected(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        product = x @ weight
        return product if bias is None else product + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight.t() if ctx.needs_input_grad[0] else None
        of_weight = x.t() @ gradient if ctx.needs_input_grad[1] else None
        return of_x, of_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None


class Largest(Function):
    """Two results, of which one is an index, and None; what its backward reads is made within, and so is a size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        largest, index = x.max(-1, keepdim=True)
        ctx.mark_non_differentiable(index)
        ctx.exponential, ctx.index, ctx.shape = largest.exp(), index, x.shape
        return ctx.exponential * 2, index, None

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> torch.Tensor:
        zeros = torch.zeros(ctx.shape, dtype=gradient.dtype)
        return zeros.scatter(-1, ctx.index, gradient * ctx.exponential)


class Picked(Function):
    """Its gradient is for its second operand."""

    @staticmethod
    def forward(ctx: Any, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.index = index
        return x.index_select(1, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.zeros_like(gradient).index_add(1, ctx.index, gradient)


class Beside(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled, tripled = x * 2, x * 3
        ctx.mark_non_differentiable(tripled)
        return doubled, tripled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return gradient * 5


class AsksAutograd(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            result = torch.tanh(x)
        return torch.autograd.grad(result, x, gradient)[0]


def under_autocast(module: Calls, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product: torch.Tensor = Projected.apply(x, module.weight, module.bias)
    return product


def both_results(module: Calls, x: torch.Tensor) -> torch.Tensor:
    largest, index, nothing = Largest.apply(x)
    assert nothing is None
    return x * largest + index


def without_gradients(module: Calls, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        fixed = Reversed.apply(x)
    return x + fixed


def in_inference_mode(module: Calls, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        fixed = module.first(x.detach())
        with torch.inference_mode(False):
            assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    return x + fixed.clone()


TRAINED: dict[str, Body] = {
    "its input": lambda module, x: Straight.apply(x).tanh(),
    "reversed": lambda module, x: Reversed.apply(Reversed.apply(x)) + Reversed.apply(x),
    "a context of its own": lambda module, x: Rounded.apply(x, 8.0),
    "several operands": lambda module, x: Projected.apply(x, module.weight, module.bias),
    "an operand that is None": lambda module, x: Projected.apply(x, module.weight, None),
    "an operand without a gradient": lambda module, x: Projected.apply(x, module.weight.detach(), module.bias),
    "an index": lambda module, x: Picked.apply(torch.tensor([3, 0, 0, 1]), x),
    "several results": both_results,
    "a result without a gradient": lambda module, x: sum(Beside.apply(x)),
    "autograd within": lambda module, x: AsksAutograd.apply(x),
    "autocast": under_autocast,
    "no_grad": without_gradients,
    "inference_mode": in_inference_mode,
    "checkpoint": lambda module, x: checkpoint(module.first, x.tanh(), use_reentrant=True),
    "checkpoint of two": lambda module, x: checkpoint(torch.mul, x, x.tanh(), use_reentrant=False),
    "checkpoint without a gradient": lambda module, x: x + checkpoint(module.first, x.detach(), use_reentrant=True),
}


@pytest.mark.slow
# Of torch, where nothing of a checkpoint has a gradient.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_as_the_module_does(name: str) -> None:
    assert trains_as(Calls(TRAINED[name]), {"features": FEATURES}) == "eager"


@pytest.mark.slow
def test_sizes_that_its_backward_reads_are_those_of_each_batch() -> None:
    module = WithLoss(Calls(TRAINED["several results"])).train()
    exported = export(copy.deepcopy(module), (FEATURES,), dynamic_shapes={"features": {0: Dim("rows", min=2)}})
    cluster = train_on_threads(
        copy.deepcopy(module),
        (),
        exported=exported,
        stage_of_node=lambda graph: even_cuts(graph, max_stages=3),
        devices=range(3),
        microbatches=2,
    )
    batches = [(FEATURES[:4],), (FEATURES[2:5],)]
    eager = Eager(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))

    assert cluster.step(batches, rate=0.1).gradient_norm == pytest.approx(eager.step(batches, rate=0.1)[1], rel=1e-6)
    for name, state in cluster.states().items():
        torch.testing.assert_close(state, module.get_parameter(name).detach())


@pytest.mark.slow
def test_its_gradients_come_in_either_half_of_a_backward_pass_that_is_split() -> None:
    def states_after_a_step(schedule: PipelineSchedule) -> dict[str, torch.Tensor]:
        cluster = train_on_threads(
            Calls(TRAINED["several operands"]).train(),
            (FEATURES,),
            stage_of_node=lambda graph: even_cuts(graph, max_stages=3),
            devices=range(3),
            schedule=schedule,
            exported=export(WithLoss(Calls(TRAINED["several operands"])).train(), (FEATURES,)),
        )
        assert cluster.step([(FEATURES,)] * 4, (0.25,) * 4, rate=0.1, clip_norm=1.0).applied
        return dict(cluster.states())

    split, whole = map(states_after_a_step, (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ONE_F_ONE_B))
    assert whole.keys() == split.keys() != set()
    assert all(torch.equal(state, split[name]) for name, state in whole.items())


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(features).square().mean()
        return loss


def captured(body: Body, *, training: bool = True) -> Graph:
    return export(Calls(body).train(training), (FEATURES,), compare=False).graph


def test_in_training_the_graph_has_both_of_its_passes() -> None:
    graph = captured(TRAINED["a context of its own"])

    (call,) = [node for node in graph.nodes if node.operator.name == "custom_function"]
    forward, backward = graph.subgraphs
    assert [node.operator.name for node in forward.nodes] == ["aten::mul", "aten::round", "aten::div"]
    assert "aten::where" in [node.operator.name for node in backward.nodes]
    assert [len(part.inputs) for part in (forward, backward)] == [1, 2]
    assert graph.values_by_id()[call.outputs[0]].requires_grad
    assert graph.custom_backwards == ()


def test_a_strict_capture_has_them_too() -> None:
    graph = export(Calls(TRAINED["reversed"]).train(), (FEATURES,), compare=False, strict=True).graph

    assert [node.operator.name for node in graph.nodes].count("custom_function") == 3
    assert "aten::mul" in [node.operator.name for part in graph.subgraphs for node in part.nodes]


def test_in_evaluation_its_forward_is_part_of_the_graph() -> None:
    graph = captured(TRAINED["a context of its own"], training=False)

    assert "aten::round" in [node.operator.name for node in graph.nodes]
    assert graph.subgraphs == ()
    assert graph.custom_backwards == (f"{__name__}.Rounded",)


def test_results_that_no_gradient_comes_back_for_require_none() -> None:
    graph = captured(TRAINED["a result without a gradient"])

    (call,) = [node for node in graph.nodes if node.operator.name == "custom_function"]
    values = graph.values_by_id()
    assert [values[value].requires_grad for value in call.outputs] == [True, False]


class InPlace(Straight):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)


class WritesItsGradient(Straight):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient.view(-1).mul_(2)
        return gradient


class ReadsAModule(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: Calls) -> torch.Tensor:
        return x * module.bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class BranchesOnData(Straight):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if gradient.sum() > 0 else -gradient


class DrawsGoingBack(Straight):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.rand_like(gradient)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda module, x: InPlace.apply(x * 1), "InPlace, a custom torch.autograd.Function, which writes its input"),
        (lambda module, x: WritesItsGradient.apply(x), "which writes what it is given in place; have it write a copy"),
        (lambda module, x: ReadsAModule.apply(x, module), "which reads a tensor other than its arguments"),
        (lambda module, x: BranchesOnData.apply(x), r"cannot be written down as a program \(Could not guard.*eval\(\)"),
        (lambda module, x: DrawsGoingBack.apply(x), "whose backward draws random numbers; have its forward draw them"),
    ],
)
def test_what_no_program_can_do_is_refused(body: Body, why: str) -> None:
    with pytest.raises(UnsupportedModule, match=why):
        captured(body)


def test_functions_work_again_after_an_export_and_after_one_that_fails() -> None:
    captured(TRAINED["reversed"])
    with pytest.raises(UnsupportedModule):
        captured(lambda module, x: DrawsGoingBack.apply(x))

    x = torch.ones(2, requires_grad=True)
    Reversed.apply(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), -0.5))
