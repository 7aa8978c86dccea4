"""Nodes of really exported programs, each run alone in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from planner.client.export import export
from planner.graph.ir import Graph
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.worker.profile import bench as bench_module
from stage_daemon.worker.profile.bench import Bench, Unmeasured
from stage_daemon.worker.profile.clock import Effort
from tests.builders.exported import exported_small
from tests.builders.registry import FAMILIES
from tests.stage_daemon.worker.profile.test_rehearsal import message_of

CPU = torch.device("cpu")
ONCE = Effort(repetitions=1, warmup=1)


class Calls(nn.Module):
    """A module out of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def bench_of(graph: Graph, **symbol_values: int) -> Bench:
    return Bench(graph_pb2.Graph.FromString(graph_to_bytes(graph)), symbol_values, CPU, ONCE)


def bench_calling(function: Callable[..., Any], *args: Any) -> Bench:
    return bench_of(export(Calls(function), args).graph)


# All of its operators, at a hundredth of the nodes, are in the others.
LEFT_OUT = {"resnet50"}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - LEFT_OUT))
def test_one_node_of_each_operator_of_a_family_runs_alone(family: str) -> None:
    graph = exported_small(family).graph
    bench = bench_of(graph)
    assert sorted(index for one in bench.distinct for index in one.nodes) == list(range(len(graph.nodes)))
    one_of_each = {one.operator: one for one in bench.distinct}
    assert all(bench.measure(one) > 0 for one in one_of_each.values())


def ones(*dims: int) -> torch.Tensor:
    return torch.ones(dims)


def zeros(*dims: int) -> torch.Tensor:
    return torch.zeros(dims, dtype=torch.int64)


INDEXED = {
    # Sizes of one: an index of 1, which others take, would be outside.
    "embedding": (functional.embedding, (zeros(5), ones(1, 4))),
    "embedding_bag": (functional.embedding_bag, (zeros(5), ones(1, 4), torch.tensor([0, 2, 5]))),
    "index_select": (lambda x, i: x.index_select(-1, i), (ones(3, 1), zeros(2))),
    "gather": (lambda x, i: x.gather(0, i), (ones(1, 4), zeros(2, 4))),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (ones(1, 4), zeros(2, 4), ones(2, 4))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (ones(1, 4), zeros(2), ones(2, 4))),
    "index": (lambda x, i, j: x[i, :, j], (ones(1, 3, 1), zeros(2), zeros(2))),
    "index_mask": (lambda x, m, i: x[m, i], (ones(3, 1), torch.tensor([True, False, True]), zeros(1))),
    "index_put": (lambda x, i, v: x.index_put((i,), v), (ones(1, 4), zeros(2), ones(2, 4))),
    "take": (lambda x, i: x.take(i), (ones(1), zeros(4))),
    "one_hot": (lambda i: functional.one_hot(i, 1), (zeros(4),)),
    "cross_entropy": (functional.cross_entropy, (ones(4, 1), zeros(4))),
    "floor_divide": (lambda x, y: x // y, (zeros(4) + 6, zeros(4) + 2)),
    "attention_mask": (
        functional.scaled_dot_product_attention,
        (ones(1, 2, 4, 8), ones(1, 2, 4, 8), ones(1, 2, 4, 8), ones(1, 1, 4, 4) > 0),
    ),
    "bernoulli": (torch.bernoulli, (ones(4) / 2,)),
    "expanded": (lambda x: x.expand(4, 3) + 1, (ones(1, 3),)),
    "float8": (lambda x: x.to(torch.float32) * 2, (ones(4).to(torch.float8_e4m3fn),)),
    "complex": (lambda x: x * 2j, (ones(4).to(torch.complex64),)),
    "channels_last": (lambda x: x + 1, (ones(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
    "in_place": (lambda x: torch.relu(x).add_(1), (ones(4),)),
    "empty": (lambda x: x + 1, (ones(0, 4),)),
}


@pytest.mark.parametrize("name", sorted(INDEXED))
def test_inputs_suit_the_operator(name: str) -> None:
    function, args = INDEXED[name]
    bench = bench_calling(function, *args)
    assert bench.distinct
    assert all(bench.measure(one) > 0 for one in bench.distinct)


def test_same_work_is_measured_once() -> None:
    bench = bench_calling(lambda x, y: (x + y, y + x, x + x, x + y[:1], x * y), ones(2, 3), ones(2, 3))
    adds = [one.nodes for one in bench.distinct if one.operator == "aten::add.Tensor"]
    # x + y and y + x; x + x, which reads one tensor; x + y[:1], of another shape.
    assert len(adds) == 3
    assert len(adds[0]) == 2


def test_reading_a_weight_is_not_reading_an_activation() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight) @ x

    bench = bench_of(export(Twice(), (ones(4, 4),)).graph)
    assert [one.nodes for one in bench.distinct] == [(0,), (1,)]


def test_node_too_large_for_the_device_is_left_out() -> None:
    rows = torch.export.Dim("rows", min=1, max=2**40)
    graph = export(Calls(torch.relu), (ones(2, 1024),), dynamic_shapes={"args": ({0: rows},)}).graph
    bench = bench_of(graph, rows=2**38)
    with pytest.raises(Unmeasured, match="its tensors take"):
        bench.measure(bench.distinct[0])


def test_node_that_torch_refuses_says_why() -> None:
    # The repeats made up do not add up to the size that the graph declares.
    bench = bench_calling(lambda x, n: x.repeat_interleave(n, output_size=7), ones(2), torch.tensor([3, 4]))
    with pytest.raises(Unmeasured, match="Error: "):
        bench.measure(bench.distinct[0])


def test_branch_that_depends_on_data_is_left_out() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    bench = bench_calling(branch, ones(3))
    (cond,) = (one for one in bench.distinct if one.operator == "cond")
    with pytest.raises(Unmeasured, match="of its subgraphs"):
        bench.measure(cond)


@pytest.mark.parametrize(("name", "value", "says"), [("row", 2, "'rows'"), ("rows", 0, "exported for 1 to 9")])
def test_sizes_that_cannot_be_are_refused(name: str, value: int, says: str) -> None:
    rows = torch.export.Dim("rows", min=1, max=9)
    graph = export(Calls(torch.relu), (ones(2, 4),), dynamic_shapes={"args": ({0: rows},)}).graph
    with pytest.raises(InvalidRequest, match=says):
        bench_of(graph, **{name: value})


class Trained(nn.Module):
    """A frozen layer, then one in place, one that is trained, and one behind a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.second = (nn.Linear(8, 8) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(torch.relu(self.frozen(x))))
        with torch.no_grad():
            aside = torch.sigmoid(hidden)
        return self.second(hidden) + aside.sum()


def test_backward_passes_are_measured_where_gradients_go() -> None:
    graph = export(Trained(), (ones(4, 8),)).graph
    bench = Bench(graph_pb2.Graph.FromString(graph_to_bytes(graph)), {}, CPU, ONCE, backward=True)
    measured = {one.nodes: bench.measure_backward(one) for one in bench.distinct}
    by_node = {node: backward for nodes, backward in measured.items() for node in nodes}
    names = [node.operator.name.removeprefix("aten::") for node in graph.nodes]
    goes = [(name, by_node[index] is not None) for index, name in enumerate(names)]
    # The layers are one operator: the frozen one has no gradient to give, the first none to give back.
    assert [flag for name, flag in goes if name == "linear"] == [False, True, True]
    assert ("relu", False) in goes
    assert ("tanh", True) in goes
    assert ("sigmoid", False) in goes
    assert all(backward is None or backward[0].whole > 0 for backward in measured.values())
    assert len(bench.distinct) > len(bench_of(graph).distinct)


class Projected(nn.Module):
    """A product of two activations, and one with a weight that is transposed and shifted first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.shift = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return hidden @ hidden.t() @ hidden @ (self.second.weight.t() + self.shift)


def test_each_half_of_a_backward_pass_is_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of seconds, products of matrices: of a layer's two, one is for its input and one for its weight."""

    def products_of(call: Callable[[], object], device: torch.device, effort: Effort) -> float:
        with FlopCounterMode(display=False) as counter:
            call()
        return float(counter.get_total_flops())

    monkeypatch.setattr(bench_module, "seconds_of", products_of)
    graph = export(Projected(), (ones(4, 8),)).graph
    backward_bench = Bench(graph_pb2.Graph.FromString(graph_to_bytes(graph)), {}, CPU, ONCE, backward=True)
    halves = {}
    for one in backward_bench.distinct:
        measured = backward_bench.measure_backward(one)
        assert measured is not None
        seconds, _ = measured
        assert seconds.whole == seconds.input_gradients + seconds.weight_gradients
        halves |= dict.fromkeys(one.nodes, (seconds.input_gradients, seconds.weight_gradients))
    in_order = [halves[index] for index in range(len(graph.nodes))]
    names = [node.operator.name.removeprefix("aten::") for node in graph.nodes]
    product = 2.0 * 4 * 8 * 8
    # Nothing that the first layer was given has a gradient; the last product is with what weights alone made.
    assert [half for name, half in zip(names, in_order, strict=True) if name == "linear"] == [(0.0, product)]
    assert [half for name, half in zip(names, in_order, strict=True) if name == "matmul"] == [
        (product, 0.0),
        (product, 0.0),
        (product, product),
    ]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def test_a_vector_is_done_with_in_the_pass_for_inputs() -> None:
    """As split backward passes run."""
    bench = Bench(message_of(Scaled(), ones(4, 8)), {}, CPU, ONCE, backward=True)
    [_, scaling] = [bench.measure_backward(one) for one in bench.distinct]
    assert scaling is not None
    seconds, _ = scaling
    assert (seconds.input_gradients, seconds.weight_gradients) == (seconds.whole, 0.0)


def test_no_backward_pass_is_measured_unless_asked_for() -> None:
    bench = bench_of(export(Trained(), (ones(4, 8),)).graph)
    assert all(bench.measure_backward(one) is None for one in bench.distinct)


def test_deliveries_are_timed_whatever_enters_and_leaves() -> None:
    def several(a: torch.Tensor, flags: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        # The first output is larger than any socket's buffer.
        return a.expand(512, 1024, 8).contiguous(), 3, flags

    bench = bench_calling(several, ones(8), torch.tensor([True, False]))
    assert bench.measure_inputs() > 0
    assert bench.measure_outputs() > 0
