"""FLOP formulas against torch's own counter, on modules that are really exported."""

from collections.abc import Callable, Mapping

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
from tests.builders.exported import exported
from tests.builders.registry import FAMILIES


class Calls(nn.Module):
    """A module out of a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self._function(*args)


class Each(nn.Module):
    """Many functions side by side, for one export of them all."""

    def __init__(self, functions: Mapping[str, Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.calls = nn.ModuleDict({name: Calls(function) for name, function in functions.items()})

    def forward(self, arguments: dict[str, tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        return {name: call(*arguments[name]) for name, call in self.calls.items()}


def our_flops(graph: Graph, module_path: str = "") -> int:
    """Of the nodes of a module; of all without one."""
    shapes = shapes_of(graph, graph.hints())
    nodes = [node for node in graph.nodes if module_path in ("", node.module_path)]
    assert nodes, module_path
    return sum(node_flops(node, shapes) for node in nodes)


def torch_flops(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> int:
    # Only the mathematical kernel is made of operators that the counter knows on a CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*args, **kwargs)
    return counter.get_total_flops()


def tensor(*dims: int) -> torch.Tensor:
    return torch.ones(dims)


def indices(*dims: int) -> torch.Tensor:
    return torch.zeros(dims, dtype=torch.int64)


def whole(*dims: int) -> torch.Tensor:
    return torch.ones(dims, dtype=torch.int8)


def half(*dims: int) -> torch.Tensor:
    return torch.ones(dims, dtype=torch.bfloat16)


# Where each of three groups ends.
ENDS = torch.tensor([2, 2, 6], dtype=torch.int32)

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
    "conv1d_groups_stride": (
        lambda x, w: functional.conv1d(x, w, groups=2, stride=2),
        (tensor(2, 4, 16), tensor(8, 2, 3)),
    ),
    "conv2d_dilated": (lambda x, w: functional.conv2d(x, w, dilation=2), (tensor(2, 4, 9, 9), tensor(8, 4, 3, 3))),
    "conv2d_same": (lambda x, w: functional.conv2d(x, w, padding="same"), (tensor(2, 4, 9, 9), tensor(8, 4, 3, 3))),
    "conv2d_unbatched": (functional.conv2d, (tensor(4, 9, 9), tensor(8, 4, 3, 3))),
    "conv3d_padded": (lambda x, w: functional.conv3d(x, w, padding=1), (tensor(2, 3, 5, 6, 7), tensor(4, 3, 2, 2, 2))),
    "conv_transpose1d": (
        lambda x, w: functional.conv_transpose1d(x, w, stride=3),
        (tensor(2, 4, 5), tensor(4, 6, 3)),
    ),
    "conv_transpose2d_groups": (
        lambda x, w: functional.conv_transpose2d(x, w, groups=2),
        (tensor(2, 4, 5, 5), tensor(4, 3, 3, 3)),
    ),
    "conv_transpose3d": (functional.conv_transpose3d, (tensor(2, 4, 3, 3, 3), tensor(4, 6, 2, 2, 2))),
    "convolution": (
        lambda x, w: torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        (tensor(2, 4, 9, 9), tensor(8, 4, 3, 3)),
    ),
    "convolution_transposed": (
        lambda x, w: torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1),
        (tensor(2, 4, 9, 9), tensor(4, 8, 3, 3)),
    ),
    "attention_causal": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (tensor(2, 3, 7, 8), tensor(2, 3, 7, 8), tensor(2, 3, 7, 8)),
    ),
    "attention_masked": (
        functional.scaled_dot_product_attention,
        (tensor(2, 3, 7, 8), tensor(2, 3, 7, 8), tensor(2, 3, 7, 8), tensor(2, 1, 7, 7)),
    ),
    "attention_grouped": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (tensor(2, 6, 7, 8), tensor(2, 2, 7, 8), tensor(2, 2, 7, 8)),
    ),
    "attention_broadcast": (
        functional.scaled_dot_product_attention,
        (tensor(2, 6, 7, 8), tensor(1, 6, 7, 8), tensor(1, 6, 7, 8)),
    ),
    "attention_one_head": (
        functional.scaled_dot_product_attention,
        (tensor(6, 7, 8), tensor(6, 9, 8), tensor(6, 9, 4)),
    ),
    "matmul_vector_left": (torch.matmul, (tensor(4), tensor(4, 5))),
    "linear_vector": (functional.linear, (tensor(4), tensor(5, 4))),
    "baddbmm_broadcast": (torch.baddbmm, (tensor(5), tensor(2, 3, 4), tensor(2, 4, 5))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), (tensor(2, 3, 4), tensor(3, 4, 5))),
    "einsum_three": (
        lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c),
        (tensor(3, 4), tensor(4, 5), tensor(5, 6)),
    ),
    "einsum_attention": (
        lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        (tensor(2, 3, 4, 5), tensor(2, 3, 6, 5)),
    ),
    "einsum_without_an_arrow": (lambda a, b: torch.einsum("ij,jk", a, b), (tensor(3, 4), tensor(4, 5))),
    "einsum_outer": (lambda a, b: torch.einsum("i,j->ij", a, b), (tensor(3), tensor(4))),
    "einsum_diagonal": (lambda a: torch.einsum("ii->i", a), (tensor(4, 4),)),
    "embedding": (functional.embedding, (indices(6), tensor(5, 4))),
    "embedding_bag": (functional.embedding_bag, (indices(6), tensor(5, 4), torch.tensor([0, 2]))),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (tensor(5, 4), indices(2, 4), tensor(2, 4))),
    "gather": (lambda x, i: x.gather(0, i), (tensor(5, 4), indices(2, 4))),
    "index_put": (lambda x, i, v: x.index_put((i,), v), (tensor(5, 4), indices(2), tensor(2, 4))),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,)), (tensor(5, 4),)),
    "softmax": (lambda x: x.softmax(-1), (tensor(5, 4),)),
}
PACKED = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole(32, 64).int(), 1)
# torch's counter leaves these out: it knows no product with a vector, nor the sum of a batch of products.
OPERATORS_TORCH_LEAVES_OUT = {
    "matmul_vector_right": (torch.matmul, (tensor(3, 4), tensor(4)), 2 * 3 * 4),
    "mv": (torch.mv, (tensor(3, 4), tensor(4)), 2 * 3 * 4),
    "dot": (torch.dot, (tensor(4), tensor(4)), 2 * 4),
    "addmv": (torch.addmv, (tensor(3), tensor(3, 4), tensor(4)), 2 * 3 * 4),
    "addbmm": (torch.addbmm, (tensor(3, 5), tensor(2, 3, 4), tensor(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    "grouped_rows": (
        lambda rows, experts, ends: torch._grouped_mm(rows, experts, offs=ends),
        (half(6, 8), half(3, 8, 16), ENDS),
        2 * 6 * 8 * 16,
    ),
    "grouped_columns": (
        lambda rows, columns, ends: torch._grouped_mm(rows, columns, offs=ends),
        (half(4, 16), half(16, 8), ENDS),
        2 * 4 * 16 * 8,
    ),
    "eight_bits": (torch.ops.aten._weight_int8pack_mm, (half(4, 64), whole(32, 64), half(32)), 2 * 4 * 64 * 32),
    "four_bits": (
        lambda rows, weights, scales: torch.ops.aten._weight_int4pack_mm_for_cpu(rows, weights, 32, scales),
        (half(4, 64), PACKED, half(2, 32, 2)),
        2 * 4 * 64 * 32,
    ),
    "whole_numbers": (torch._int_mm, (whole(4, 8), whole(8, 16)), 2 * 4 * 8 * 16),
    "eight_floating_bits": (
        lambda rows, columns, scale: torch._scaled_mm(rows, columns.t(), scale, scale, out_dtype=torch.bfloat16),
        (tensor(16, 32).to(torch.float8_e4m3fn), tensor(48, 32).to(torch.float8_e4m3fn), torch.ones(())),
        2 * 16 * 32 * 48,
    ),
    "grouped_batch": (torch._grouped_mm, (half(3, 4, 8), half(3, 8, 16)), 2 * 3 * 4 * 8 * 16),
}


@pytest.fixture(scope="module")
def operators() -> Graph:
    cases = {name: case[:2] for name, case in (*OPERATORS.items(), *OPERATORS_TORCH_LEAVES_OUT.items())}
    module = Each({name: function for name, (function, _) in cases.items()})
    return export(module, ({name: args for name, (_, args) in cases.items()},)).graph


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator_counts_as_torch_counts(operators: Graph, name: str) -> None:
    function, args = OPERATORS[name]
    assert our_flops(operators, f"calls.{name}") == torch_flops(Calls(function), args, {})


@pytest.mark.parametrize("name", sorted(OPERATORS_TORCH_LEAVES_OUT))
def test_operator_counts_its_multiplications_and_additions(operators: Graph, name: str) -> None:
    assert our_flops(operators, f"calls.{name}") == OPERATORS_TORCH_LEAVES_OUT[name][2]


# The other families are made of operators that stand above.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["dlrm", "mixture", "vit"])
def test_model_counts_as_torch_counts(family: str) -> None:
    case = FAMILIES[family]()
    expected = torch_flops(case.module, case.args, dict(case.kwargs))
    assert our_flops(exported(family).graph) == expected


@pytest.mark.parametrize("recurrent", [nn.GRU(4, 6), nn.RNN(4, 6), nn.LSTM(4, 6, proj_size=3)], ids=repr)
def test_recurrent_module_counts_as_torch_counts(recurrent: nn.Module) -> None:
    args = (tensor(5, 3, 4),)
    assert our_flops(export(recurrent.eval(), args).graph) == torch_flops(recurrent, args, {})


def test_lstm_counts_its_matrices_once_per_step() -> None:
    module = nn.LSTM(input_size=4, hidden_size=6, batch_first=True)
    graph = export(module, (tensor(3, 5, 4),)).graph
    assert our_flops(graph) == 2 * 3 * 5 * (24 * 4 + 24 * 6)


def test_deep_lstm_counts_both_directions() -> None:
    """torch's counter does not see into the fused kernel that runs a plain LSTM on a CPU."""
    module = nn.LSTM(input_size=4, hidden_size=6, num_layers=2, bidirectional=True, batch_first=True)
    graph = export(module, (tensor(3, 5, 4),)).graph
    assert our_flops(graph) == 2 * 3 * 5 * 2 * (24 * 4 + 24 * 6 + 24 * 12 + 24 * 6)
