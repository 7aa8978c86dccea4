"""Both halves of a backward pass give what the whole one gives, to the bit, and none does the other's work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from stage_daemon.runtime.training import split_backward
from stage_daemon.runtime.training.split_backward import WeightPass, input_pass
from tests.random_examples import random_seeds

WIDTH = 8
Made = Sequence[torch.Tensor]
Stage = Callable[[nn.ModuleList, torch.Tensor, torch.Tensor], Made]


def chain(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    for layer in layers:
        x = torch.tanh(layer(x))
    return [x]


def one_layer_twice(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [layers[1](torch.tanh(layers[0](torch.tanh(layers[0](x)))))]


def a_branch_without_what_was_given(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    own = layers[2](torch.tanh(layers[1](other)))
    return [layers[0](x) * own]


def one_weight_on_and_off_the_way(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [layers[0](x) + layers[0](other), layers[1](x)]


def a_root_of_weights_alone(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [layers[0](x), layers[1](other), layers[2](x)]


def several_results_of_one_node(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    scaled = torch.cat([layers[0](x), layers[1](x)], dim=1) * torch.cat([layers[2].weight[0], layers[2].weight[1]])
    first, second, _ = scaled.split((WIDTH, WIDTH // 2, WIDTH // 2), dim=1)
    return [first * 2, functional.layer_norm(second, (WIDTH // 2,), layers[2].weight[2, : WIDTH // 2])]


def a_weight_transposed_once_for_two(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    transposed = layers[0].weight.t()
    return [torch.tanh(x @ transposed) @ transposed]


def passed_on_as_it_came(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [x, layers[0](x)]


def written_in_place(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    hidden = layers[0](x)
    hidden[:, :2] = layers[1](x)[:, 2:4]
    return [layers[2](hidden).relu_()]


def layers_beside_each_other(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [torch.tanh(layers[0](x)) * layers[1](x) + layers[2](x)]


def scaled_by_vectors(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [layers[0](x * layers[1].bias) * layers[2].bias]


def nothing_on_the_way(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
    return [layers[0](other)]


def drawn(seed: int) -> Stage:
    """Any layers on any sums of what is there; some never read what was given, or are read by nothing."""

    def stage(layers: nn.ModuleList, x: torch.Tensor, other: torch.Tensor) -> Made:
        chosen, tensors = random.Random(seed), [x, other]
        for _ in range(chosen.randint(1, 8)):
            one, two = chosen.choices(tensors, k=2)
            tensors.append(torch.tanh(chosen.choice(layers)(one)) + chosen.choice((0.0, two)))
        return [tensors[-1], *(one for one in tensors[2:-1] if chosen.random() < 0.3)]

    return stage


STAGES: tuple[Stage, ...] = (
    chain,
    one_layer_twice,
    a_branch_without_what_was_given,
    one_weight_on_and_off_the_way,
    a_root_of_weights_alone,
    several_results_of_one_node,
    a_weight_transposed_once_for_two,
    passed_on_as_it_came,
    written_in_place,
    layers_beside_each_other,
    scaled_by_vectors,
    nothing_on_the_way,
)


def ran(stage: Stage, seed: int = 0) -> tuple[nn.ModuleList, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(seed)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    x, other = torch.randn(5, WIDTH, requires_grad=True), torch.randn(5, WIDTH)
    roots = [root for root in stage(layers, x, other) if root.requires_grad]
    return layers, x, roots, [torch.randn(root.shape) for root in roots]


def whole(stage: Stage, seed: int = 0) -> list[torch.Tensor | None]:
    layers, x, roots, gradients = ran(stage, seed)
    torch.autograd.backward(roots, gradients)
    return [x.grad, *(weight.grad for weight in layers.parameters())]


def edges_of(roots: Sequence[torch.Tensor]) -> list[GradientEdge]:
    return list(map(get_gradient_edge, roots))


def in_two(stage: Stage, seed: int = 0) -> list[torch.Tensor | None]:
    layers, x, roots, gradients = ran(stage, seed)
    input_gradients, weight_pass = input_pass(edges_of(roots), gradients, [x], list(layers.parameters()))
    assert all(weight.grad is None for weight in layers.parameters())
    weight_pass.run()
    assert x.grad is None
    return [*input_gradients, *(weight.grad for weight in layers.parameters())]


def assert_same(gradients: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None]) -> None:
    assert [one is None for one in gradients] == [one is None for one in expected]
    for one, other in zip(gradients, expected, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("stage", STAGES)
def test_two_halves_are_the_whole(stage: Stage) -> None:
    assert_same(in_two(stage), whole(stage))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(30))
def test_two_halves_of_any_graph_are_the_whole(seed: int) -> None:
    assert_same(in_two(drawn(seed), seed), whole(drawn(seed), seed))


class Counted(TorchDispatchMode):
    """How often each operator runs, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_each_half_does_half_of_the_products() -> None:
    layers, x, roots, gradients = ran(chain)
    with Counted() as inputs:
        _, weight_pass = input_pass(edges_of(roots), gradients, [x], list(layers.parameters()))
    with Counted() as weights:
        weight_pass.run()
    assert (inputs.calls["mm"], weights.calls["mm"]) == (3, 3)
    assert (inputs.calls["tanh_backward"], weights.calls["tanh_backward"]) == (3, 0)


def in_counted_halves(stage: Stage) -> tuple[Counter[str], Counter[str], WeightPass]:
    layers, x, roots, gradients = ran(stage)
    with Counted() as inputs:
        _, weight_pass = input_pass(edges_of(roots), gradients, [x], list(layers.parameters()))
    with Counted() as weights:
        weight_pass.run()
    return inputs.calls, weights.calls, weight_pass


def test_a_weight_read_twice_is_done_with_in_the_first_pass() -> None:
    """Three products for what was given, two for the weight, and one for the other layer's later."""
    inputs, weights, _ = in_counted_halves(one_layer_twice)
    assert (inputs["mm"], weights["mm"]) == (5, 1)


def test_a_large_weight_read_twice_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_backward, "_MAX_WAITING_BYTES", WIDTH * WIDTH * 4 - 1)
    inputs, weights, _ = in_counted_halves(one_layer_twice)
    assert (inputs["mm"], weights["mm"]) == (3, 5)
    assert_same(in_two(one_layer_twice), whole(one_layer_twice))


def test_vectors_are_done_with_in_the_first_pass() -> None:
    """Both by a product and a sum over rows; what is left is the layer."""
    inputs, weights, _ = in_counted_halves(scaled_by_vectors)
    assert (inputs["mul"], weights["mul"]) == (4, 0)
    assert (inputs["mm"], weights["mm"]) == (1, 1)


def test_layers_beside_each_other_are_one_call() -> None:
    """Behind the beginning and what came out of the first pass."""
    _, _, weight_pass = in_counted_halves(layers_beside_each_other)
    assert [len(start.weights) for start in weight_pass.starts] == [0, 0, 6]


def test_a_stage_that_was_given_nothing_does_all_with_its_weights() -> None:
    layers, x, _, _ = ran(chain)
    [output] = chain(layers, x.detach(), x)
    with Counted() as inputs:
        input_gradients, weight_pass = input_pass(
            edges_of([output]), [torch.ones_like(output)], [], list(layers.parameters())
        )
    with Counted() as weights:
        weight_pass.run()
    assert (list(input_gradients), inputs.calls["mm"], weights.calls["mm"]) == ([], 0, 5)


def test_what_has_no_gradient_on_its_way_is_not_walked() -> None:
    """The second result of the node is not among what backward begins with."""
    layers, x, _, _ = ran(chain)
    first, _ = (layers[0](x) * layers[1].weight[0]).split(WIDTH // 2, dim=1)
    input_gradients, weight_pass = input_pass(
        edges_of([first]), [torch.ones_like(first)], [x], list(layers.parameters())
    )
    weight_pass.run()
    assert input_gradients[0] is not None
    assert [weight.grad is None for weight in layers.parameters()] == [False, False, False, True, True, True]
