"""An input may lie where another process writes only if nothing but arithmetic reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from stage_daemon.loader.foreign_inputs import foreign_inputs
from stage_daemon.loader.vocabulary import facts_of, rows
from tests.stage_daemon.loader.test_evaluation import rebuilt


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(self.linear(x)).view(3, 4, 2, 4).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, x.view(3, 4, 2, 4).transpose(1, 2))
        return torch.softmax(mixed, -1) + x.mean()


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


ARITHMETIC = {
    "layers": Layers(),
    "multiplied": Of(lambda x: x * 1.5),
    "a view multiplied": Of(lambda x: x[:, 1:].transpose(1, 2).reshape(-1) * 2),
    "converted, then an index": Of(lambda x: torch.arange(99.0)[x.clamp(0, 98).to(torch.int64)]),
    "parts": Of(lambda x: torch.cat([part * 2 for part in x.split(2, dim=1)])),
}
OTHERWISE = {
    "its bits are integers": Of(lambda x: x.view(torch.int32) + 1),
    "the bits of a view are": Of(lambda x: x[:, 1:].view(torch.int32) + 1),
    "how many are not zero": Of(lambda x: x.nonzero()),
    "sorted": Of(lambda x: x.sort().values),
    "a histogram": Of(lambda x: torch.histc(x, 4)),
    "written over": Of(lambda x: x.view(-1).add_(1)),
    "given as it came": Of(lambda x: x.view(-1)),
    "a lone operand": Of(lambda x: torch.broadcast_tensors(x)[0] + 1),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_what_only_computes_reads_from_anywhere(name: str) -> None:
    assert foreign_inputs(rebuilt(ARITHMETIC[name], torch.randn(3, 4, 8)).program) == {0}


@pytest.mark.parametrize("name", OTHERWISE)
def test_whatever_else_reads_memory_of_its_own(name: str) -> None:
    assert foreign_inputs(rebuilt(OTHERWISE[name], torch.randn(3, 4, 8)).program) == frozenset()


def test_one_reader_of_several_is_enough() -> None:
    graph = fx.Graph()
    x, y, unread = (graph.placeholder(name) for name in ("x", "y", "unread"))
    total = graph.call_function(torch.ops.aten.add.Tensor, (x, y))
    ordered = graph.call_function(torch.ops.aten.sort.default, (y,))
    graph.output((total, ordered))
    assert unread.users == {}
    assert foreign_inputs(fx.GraphModule({}, graph)) == {0, 2}


def test_what_computes_may_give_its_argument_as_it_came() -> None:
    """Of real numbers, though its schema promises a tensor of its own."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    conjugate = graph.call_function(torch.ops.aten.conj_physical.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.view.dtype, (conjugate, torch.int32)),))
    program = fx.GraphModule({}, graph)
    given = torch.ones(2)
    assert program(given)[0].data_ptr() == given.data_ptr()
    assert foreign_inputs(program) == frozenset()


def test_operators_of_others_are_not_known() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.sigmoid, (graph.placeholder("x"),)),))
    assert foreign_inputs(fx.GraphModule({}, graph)) == frozenset()


def test_arithmetic_takes_no_floats_for_places() -> None:
    """What sorts, searches, counts or draws is none, whatever else is."""
    words = ("sort", "topk", "nonzero", "unique", "select", "index", "scatter", "gather", "histc", "bucket", "masked_s")
    arithmetic = {name for _, name, _, _ in rows() if facts_of(name).arithmetic}
    assert arithmetic
    assert not [name for name in arithmetic if any(word in name for word in words)]
