"""Whole graphs run in order: which node gets which time, on a clock and on a device that are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from planner.client.export import export
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2
from stage_daemon.errors import InsufficientMemory
from stage_daemon.worker.profile import rehearsal
from stage_daemon.worker.profile.bench import Bench, Unmeasured
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.delivery import Give, Take
from stage_daemon.worker.profile.rehearsal import (
    ClockMarks,
    EventMarks,
    Marks,
    PassSeconds,
    added_seconds,
    rehearse,
    rehearse_training,
    trained_program,
    typical,
)
from stage_daemon.worker.profile.values import ValueTable
from tests.builders.exported import exported_small
from tests.builders.registry import FAMILIES

CPU = torch.device("cpu")
ONCE = Effort(repetitions=1, warmup=1)


class ScriptedMarks:
    """Each run takes the next of these lists."""

    def __init__(self, *seconds: list[float]) -> None:
        self._seconds = list(seconds)
        self.num_marks: list[int] = []
        self._marked = 0

    def mark(self) -> None:
        self._marked += 1

    def seconds(self) -> list[float]:
        self.num_marks.append(self._marked)
        self._marked = 0
        return self._seconds[(len(self.num_marks) - 1) % len(self._seconds)]


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def message_of(module: nn.Module, *args: Any, **more: Any) -> graph_pb2.Graph:
    return graph_pb2.Graph.FromString(graph_to_bytes(export(module, args, **more).graph))


def rehearsed(graph: graph_pb2.Graph, marks: Marks | None = None) -> list[float]:
    return list(rehearse(graph, ValueTable(graph, {}), CPU, ONCE, lambda: None, marks).nodes)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"resnet50"}))
def test_whole_family_runs_on_made_up_values(family: str) -> None:
    graph = graph_pb2.Graph.FromString(graph_to_bytes(exported_small(family).graph))
    seconds = rehearsed(graph)
    assert len(seconds) == len(graph.nodes)
    assert sum(seconds) > 0


def test_times_of_nodes_add_up_to_a_run_without_marks() -> None:
    graph = message_of(Calls(lambda x: torch.tanh(torch.relu(x) @ x)), torch.ones(2, 2))
    # Before the first node, the three nodes, behind the last.
    marks = ScriptedMarks([9.0], [5.0, 1.0, 4.0, 1.0, 7.0])
    assert rehearsed(graph, marks) == [2.0, 5.0, 2.0]
    assert set(marks.num_marks[0::2]) == {2}
    assert set(marks.num_marks[1::2]) == {6}


def test_node_with_several_results_is_one() -> None:
    graph = message_of(Calls(lambda x: torch.relu(x.split(1)[1])), torch.ones(2, 2))
    marks = ScriptedMarks([3.0], [0.0, *(1.0 for _ in graph.nodes), 0.0])
    assert len(rehearsed(graph, marks)) == len(graph.nodes)
    assert set(marks.num_marks[1::2]) == {len(graph.nodes) + 3}


def test_marks_dearer_than_what_lies_between_nodes_leave_none_without_time() -> None:
    graph = message_of(Calls(lambda x: torch.tanh(torch.relu(x))), torch.ones(2, 2))
    assert rehearsed(graph, ScriptedMarks([2.0], [0.0, 1.0, 3.0, 0.0])) == [0.5, 1.5]


def test_microbatch_is_handed_in_before_each_run_and_over_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    @contextmanager
    def handed_in(items: Sequence[Any], _: torch.device) -> Iterator[Take]:
        yield lambda: done.append(f"{len(items)} in") or 0.25

    @contextmanager
    def handed_over(_: torch.device) -> Iterator[Give]:
        yield lambda outputs: done.append(f"{len(outputs)} out") or 0.5

    class Runs(ScriptedMarks):
        def seconds(self) -> list[float]:
            done.append("run")
            return super().seconds()

    monkeypatch.setattr(rehearsal, "handed_in", handed_in)
    monkeypatch.setattr(rehearsal, "handed_over", handed_over)
    graph = message_of(Calls(lambda x, y: (x + y, x, x - y)), torch.ones(2), torch.ones(2))
    outcome = rehearse(graph, ValueTable(graph, {}), CPU, ONCE, lambda: None, Runs([3.0], [0.0, 1.0, 1.0, 0.0]))
    assert (outcome.input_seconds, outcome.output_seconds) == (0.25, 0.5)
    # The run with marks follows without them.
    assert done == 2 * ["2 in", "run", "3 out", "run"]


def test_what_no_message_holds_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("no such message")

    monkeypatch.setattr("stage_daemon.worker.profile.delivery.wire.fill_all", refuse)
    monkeypatch.setattr("stage_daemon.worker.profile.delivery.Outlet.give", refuse)
    graph = message_of(nn.ReLU(), torch.ones(2))
    rehearsal = rehearse(graph, ValueTable(graph, {}), CPU, ONCE, lambda: None)
    assert (rehearsal.input_seconds, rehearsal.output_seconds) == (None, None)
    assert len(rehearsal.nodes) == 1


def test_typical_is_a_mean_that_the_slowest_tenth_does_not_touch() -> None:
    assert typical([1.0, 2.0, 6.0]) == 3.0
    assert typical([100.0, *range(1, 10)]) == 5.0


@pytest.mark.parametrize(("seconds", "runs"), [(1e-3, 4), (1e-6, 8), (1.0, 1)])
def test_small_graphs_run_several_times_in_a_row(seconds: float, runs: int) -> None:
    """As small microbatches come."""
    graph = message_of(nn.ReLU(), torch.ones(2))

    class EachAsLong:
        num_marks = num_runs = 0

        def mark(self) -> None:
            self.num_marks += 1

        def seconds(self) -> list[float]:
            num_marks, self.num_marks = self.num_marks, 0
            self.num_runs += 1
            return [seconds / (num_marks - 1)] * (num_marks - 1)

    marks = EachAsLong()
    runs_by_round: list[int] = []
    rehearse(graph, ValueTable(graph, {}), CPU, ONCE, lambda: runs_by_round.append(marks.num_runs), marks)
    # With marks and without; the first round finds out how long one takes.
    assert runs_by_round == [2, 2 + 2 * runs]


class MadeUpEvent:
    """Of a device on which each launch takes a second of its own."""

    clock = count()

    def record(self) -> None:
        self.at = next(self.clock)

    def synchronize(self) -> None:
        self.is_done = True

    def elapsed_time(self, later: MadeUpEvent) -> float:
        assert later.at > self.at
        return 1e3 * (later.at - self.at)


def test_device_is_waited_for_once_per_run_and_read_afterwards() -> None:
    events: list[MadeUpEvent] = []

    def new_event() -> Any:
        events.append(MadeUpEvent())
        return events[-1]

    marks = EventMarks(new_event)
    for _ in range(2):
        for _ in range(3):
            marks.mark()
        assert marks.seconds() == [1.0, 1.0]
    assert [hasattr(event, "is_done") for event in events] == 2 * [False, False, True]


class DeepNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_products_of_many_layers_stay_finite() -> None:
    """Arithmetic on what is not is quicker, or slower."""
    graph = message_of(DeepNet(), torch.ones(2, 256))
    with Products() as products:
        rehearsed(graph)
    assert products.largest
    assert max(products.largest) < 1e3


class Products(TorchDispatchMode):
    """The largest element of each product of matrices; nan where one is none."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: list[float] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.addmm.default:
            self.largest.append(result.abs().max().item())
        return result


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.layer(x)
        return hidden.square().sum(), hidden


def test_backward_pass_goes_back_from_the_loss_alone() -> None:
    graph = message_of(Trained(), torch.ones(2, 3))
    program = trained_program(graph, ValueTable(graph, {}), CPU)
    program.train()
    weight, bias = program.module.program.parameters()
    hidden = functional.linear(program.inputs[0], weight, bias)
    expected = torch.autograd.grad(hidden.square().sum(), [weight, bias])
    assert weight.grad is not None
    torch.testing.assert_close((weight.grad, bias.grad), expected)
    # As microbatches of a step do.
    program.train()
    torch.testing.assert_close(weight.grad, 2 * expected[0])


def test_passes_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward as a step runs it, which keeps its graph, and back from there."""
    graph = message_of(Trained(), torch.ones(2, 3))
    moments = count()
    # Warming up, then three rounds, the slowest of which is no tenth of them.
    seconds = iter([[9.0, 1.0], [5.0, 2.0], [5.0, 2.0], [2.0, 2.0]])

    class Scripted(ClockMarks):
        def seconds(self) -> list[float]:
            assert len(super().seconds()) == 2
            return next(seconds)

    monkeypatch.setattr(rehearsal, "marks_on", lambda _: Scripted(lambda: float(next(moments))))
    effort = Effort(repetitions=3, warmup=1)
    passes = rehearse_training(graph, ValueTable(graph, {}), CPU, effort, lambda: None)
    assert (passes.forward, passes.backward) == (4.0, 2.0)


def test_a_microbatch_of_training_is_handed_in_before_its_passes_and_over_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    @contextmanager
    def handed_in(items: Sequence[Any], _: torch.device) -> Iterator[Take]:
        yield lambda: done.append(f"{len(items)} in") or 0.25

    @contextmanager
    def handed_over(_: torch.device) -> Iterator[Give]:
        yield lambda outputs: done.append(f"{len(outputs)} out") or 0.5

    class Runs(ClockMarks):
        def mark(self) -> None:
            done.append("mark")
            super().mark()

    monkeypatch.setattr(rehearsal, "handed_in", handed_in)
    monkeypatch.setattr(rehearsal, "handed_over", handed_over)
    monkeypatch.setattr(rehearsal, "marks_on", lambda _: Runs(lambda: 0.0))
    graph = message_of(Trained(), torch.ones(2, 3))
    passes = rehearse_training(graph, ValueTable(graph, {}), CPU, ONCE, lambda: None)
    assert passes == PassSeconds(forward=0.0, backward=0.0, input_seconds=0.25, output_seconds=0.5)
    assert done == 2 * ["1 in", "mark", "mark", "mark", "2 out"]


def test_graph_that_does_not_fit_is_refused_before_memory_is_taken() -> None:
    rows = torch.export.Dim("rows", min=1, max=1 << 40)
    graph = message_of(nn.ReLU(), torch.ones(2, 64), dynamic_shapes={"input": {0: rows}})
    with pytest.raises(InsufficientMemory):
        rehearse(graph, ValueTable(graph, {"rows": 1 << 39}), CPU, ONCE, lambda: None)


def test_run_that_made_up_values_do_not_get_through_is_told() -> None:
    graph = message_of(
        Calls(lambda tokens, table: functional.embedding(tokens + 4, table)),
        torch.zeros(3, dtype=torch.int64),
        torch.ones(5, 2),
    )
    bench = Bench(graph, {}, CPU, ONCE)
    assert all(bench.measure(one) > 0 for one in bench.distinct)
    with pytest.raises(Unmeasured):
        bench.rehearse(lambda: None)


@pytest.mark.parametrize(
    ("deliveries", "launch", "computed", "expected"),
    [
        # Hidden behind the pass.
        ((1.0, 2.0), 0.5, 4.0, (0.0, 0.0)),
        # The host has 4.5 s to do where the device computes for 3: half of the deliveries shows.
        ((1.0, 2.0), 1.5, 3.0, (0.5, 1.0)),
        # What is launched in the time that it takes hides nothing, and adds no more than deliveries take.
        ((1.0, 2.0), 4.0, 4.0, (1.0, 2.0)),
        ((1.0, 2.0), 9.0, 4.0, (1.0, 2.0)),
        ((None, 2.0), 2.0, 3.0, (None, 1.0)),
        ((None, None), 2.0, 1.0, (None, None)),
        ((0.0, 0.0), 2.0, 1.0, (0.0, 0.0)),
    ],
)
def test_deliveries_beside_a_device_that_computes_by_itself_add_what_it_does_not_hide(
    deliveries: tuple[float | None, float | None],
    launch: float,
    computed: float,
    expected: tuple[float | None, float | None],
) -> None:
    assert added_seconds(*deliveries, launch=launch, computed=computed) == expected
