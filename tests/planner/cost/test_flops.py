"""FLOP formulas against torch's own counter, on modules that are really exported."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from planner.client.export import export
from planner.cost.flops import node_flops
from planner.cost.shapes import shapes_of
from planner.graph.ir import Graph
from tests.builders.registry import FAMILIES


class Calls(nn.Module):
    """A module out of a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self._function(*args)


def our_flops(graph: Graph) -> int:
    shapes = shapes_of(graph, graph.hints())
    return sum(node_flops(node, shapes) for node in graph.nodes)


def torch_flops(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> int:
    # Only the mathematical kernel is made of operators that the counter knows on a CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*args, **kwargs)
    return counter.get_total_flops()


def tensor(*dims: int) -> torch.Tensor:
    return torch.ones(dims)


OPERATORS = {
    "mm": (torch.mm, (tensor(3, 4), tensor(4, 5))),
    "bmm": (torch.bmm, (tensor(2, 3, 4), tensor(2, 4, 5))),
    "addmm": (torch.addmm, (tensor(5), tensor(3, 4), tensor(4, 5))),
    "baddbmm": (torch.baddbmm, (tensor(2, 3, 5), tensor(2, 3, 4), tensor(2, 4, 5))),
    "matmul_batched": (torch.matmul, (tensor(2, 6, 3, 4), tensor(2, 6, 4, 5))),
    "matmul_broadcast_right": (torch.matmul, (tensor(2, 6, 3, 4), tensor(4, 5))),
    "matmul_broadcast_left": (torch.matmul, (tensor(3, 4), tensor(2, 6, 4, 5))),
    "matmul_broadcast_both": (torch.matmul, (tensor(2, 1, 3, 4), tensor(1, 6, 4, 5))),
    "linear": (functional.linear, (tensor(2, 7, 4), tensor(5, 4), tensor(5))),
    "conv1d": (functional.conv1d, (tensor(2, 3, 16), tensor(8, 3, 5))),
    "conv2d": (lambda x, w: functional.conv2d(x, w, stride=2, padding=1), (tensor(2, 4, 9, 9), tensor(8, 4, 3, 3))),
    "conv2d_groups": (lambda x, w: functional.conv2d(x, w, groups=4), (tensor(2, 4, 9, 9), tensor(8, 1, 3, 3))),
    "conv3d": (functional.conv3d, (tensor(2, 3, 5, 6, 7), tensor(4, 3, 2, 2, 2))),
    "conv_transpose2d": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2),
        (tensor(2, 4, 5, 5), tensor(4, 6, 3, 3)),
    ),
    "attention": (
        functional.scaled_dot_product_attention,
        (tensor(2, 3, 5, 8), tensor(2, 3, 7, 8), tensor(2, 3, 7, 4)),
    ),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (tensor(2, 3, 4), tensor(2, 4, 5))),
    "einsum_ellipsis": (lambda a, b: torch.einsum("...ij,jk->...ik", a, b), (tensor(2, 3, 4), tensor(4, 5))),
    "add_counts_nothing": (torch.add, (tensor(4, 4), tensor(4, 4))),
}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator_counts_as_torch_counts(name: str) -> None:
    function, args = OPERATORS[name]
    module = Calls(function)
    graph = export(module, args).graph
    assert our_flops(graph) == torch_flops(module, args, {})


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "vit", "unet", "dlrm", "mixture"])
def test_model_counts_as_torch_counts(family: str) -> None:
    case = FAMILIES[family]()
    graph = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes).graph
    expected = torch_flops(case.module, case.args, dict(case.kwargs))
    # torch's counter leaves out products with a dimension that it folds away (a matrix by a vector), we do not.
    assert math.isclose(our_flops(graph), expected, rel_tol=0.01)


def test_lstm_counts_its_matrices_once_per_step() -> None:
    module = nn.LSTM(input_size=4, hidden_size=6, batch_first=True)
    graph = export(module, (tensor(3, 5, 4),)).graph
    assert our_flops(graph) == 2 * 3 * 5 * (24 * 4 + 24 * 6)
