"""One graph's distinct nodes, each run alone on the device: inputs made, called, timed, let go of.

Where the whole graph can be run there too, what each takes in such a run counts instead: see `rehearsal`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, TypeVar

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import DaemonError, InvalidGraph, UnsupportedOperator
from stage_daemon.loader import contexts
from stage_daemon.loader.arguments import ArgumentReader
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.operators import find_operator
from stage_daemon.worker.profile.clock import Effort, seconds_of
from stage_daemon.worker.profile.delivery import seconds_of_inputs, seconds_of_outputs
from stage_daemon.worker.profile.distinct import DistinctNode, distinct_nodes, value_ids
from stage_daemon.worker.profile.gradients import (
    BackwardSeconds,
    NodeBackward,
    Saved,
    split_graph,
    values_with_gradient,
)
from stage_daemon.worker.profile.indices import integer_ranges
from stage_daemon.worker.profile.inputs import check_fits, make_values, storage_bytes
from stage_daemon.worker.profile.rehearsal import (
    PassSeconds,
    Rehearsed,
    rehearse,
    rehearse_training,
    trained_program,
)
from stage_daemon.worker.profile.split_rehearsal import SplitSeconds, rehearse_split
from stage_daemon.worker.profile.states import all_bytes, num_copies, state_values, sum_bytes
from stage_daemon.worker.profile.update import UpdateSeconds, rehearse_update
from stage_daemon.worker.profile.values import Described, ValueTable

_Measured = TypeVar("_Measured")


class Unmeasured(Exception):
    """Why a node could not be run alone. `is_fatal` where the device is of no use to this process any more."""

    def __init__(self, reason: str, *, is_fatal: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fatal = is_fatal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What a node is run on: `states` are those of `values` that stand once in each of `copies`."""

    node: pb.Node
    function: Callable[..., object]
    values: Mapping[int, Any]
    states: tuple[int, ...]
    copies: int


class Bench:
    """Raises InvalidGraph or InvalidRequest for a graph or symbol values that make no sense."""

    def __init__(
        self,
        graph: pb.Graph,
        symbol_values: Mapping[str, int],
        device: torch.device,
        effort: Effort,
        *,
        backward: bool = False,
    ) -> None:
        self._graph = graph
        self._device = device
        self._effort = effort
        self._values = ValueTable(graph, symbol_values)
        self._contexts = _contexts(graph, device)
        self._states = state_values(graph)
        self._with_gradient = values_with_gradient(graph, self._values) if backward else {}
        self.distinct = distinct_nodes(graph, self._values, self._states, self._with_gradient)
        self.split_graph = split_graph(graph, self._with_gradient)
        self._state_bytes = all_bytes(graph, self._values)

    def measure(self, one: DistinctNode) -> float:
        """Seconds of one call. Raises Unmeasured."""
        return self._guarded(lambda: self._measure(one))

    def measure_backward(self, one: DistinctNode) -> tuple[BackwardSeconds, Saved] | None:
        """Of the backward pass through one call, and what is kept for it; None where none goes through it. Raises
        Unmeasured."""
        if self._with_gradient.keys().isdisjoint(self._graph.nodes[one.first].outputs):
            return None
        return self._guarded(lambda: self._measure_backward(one))

    def rehearse(self, on_round: Callable[[], None]) -> Rehearsed:
        """A run of the whole graph, with the mean of each distinct node's seconds for its nodes. Raises Unmeasured."""
        rehearsed = self._guarded(lambda: rehearse(self._graph, self._values, self._device, self._effort, on_round))
        nodes = list(rehearsed.nodes)
        for one in self.distinct:
            mean = statistics.fmean(nodes[index] for index in one.nodes)
            for index in one.nodes:
                nodes[index] = mean
        return replace(rehearsed, nodes=tuple(nodes))

    def rehearse_training(self, on_round: Callable[[], None]) -> PassSeconds:
        """Of the whole graph. Raises Unmeasured."""
        return self._guarded(lambda: rehearse_training(self._graph, self._values, self._device, self._effort, on_round))

    def rehearse_update(self, on_round: Callable[[], None]) -> UpdateSeconds:
        """Of all trained states. Raises Unmeasured."""

        def measure() -> UpdateSeconds:
            program = trained_program(self._graph, self._values, self._device)
            return rehearse_update(self._graph, program, self._device, self._effort, on_round)

        return self._guarded(measure)

    def rehearse_split(self, on_round: Callable[[], None]) -> SplitSeconds:
        """Of all that is behind a cut. Raises Unmeasured."""
        split = self.split_graph
        return self._guarded(
            lambda: rehearse_split(self._graph, self._values, self._device, self._effort, split, on_round)
        )

    def measure_inputs(self) -> float:
        """Seconds that a worker takes to be handed the graph's inputs by a client. Raises Unmeasured."""
        return self._guarded(
            lambda: seconds_of_inputs(self._delivered(self._graph.inputs), self._device, self._effort.repetitions)
        )

    def measure_outputs(self) -> float:
        """Seconds that it takes to hand the graph's outputs to a client. Raises Unmeasured."""
        return self._guarded(
            lambda: seconds_of_outputs(self._delivered(self._graph.outputs), self._device, self._effort.repetitions)
        )

    def _delivered(self, entries: Iterable[pb.Input | pb.Output]) -> tuple[Any, ...]:
        """Tensors and numbers as they are declared; constants are not delivered."""
        value_ids = [entry.value for entry in entries if entry.WhichOneof("content") == "value"]
        described = {value_id: self._values.describe(value_id) for value_id in value_ids}
        check_fits(2 * sum(storage_bytes(one) for one in described.values() if isinstance(one, Declared)), self._device)
        values = make_values(described, {}, self._device, 0)
        return tuple(values[value_id] for value_id in value_ids)

    def _guarded(self, measure: Callable[[], _Measured]) -> _Measured:
        try:
            return measure()
        except DaemonError as error:
            raise Unmeasured(error.message) from error
        except Exception as error:
            # What torch raises for a call that cannot work is of any type: IndexError, RuntimeError, out of memory ...
            raise Unmeasured(_shown(error), is_fatal=self._is_lost()) from error
        finally:
            if self._device.type == "cuda" and not self._is_lost():
                torch.cuda.empty_cache()

    def _measure(self, one: DistinctNode) -> float:
        setting = self._setting(one, tensors_held=1)
        copies = [setting.states if copy else () for copy in range(setting.copies)]
        calls = cycle([self._arguments(setting.node, setting.values, copied) for copied in copies])

        def call() -> None:
            arguments, keywords = next(calls)
            setting.function(*arguments, **keywords)

        with torch.no_grad(), contexts.leave_as_found():
            contexts.enter(*self._contexts[setting.node.context])
            return seconds_of(call, self._device, self._effort)

    def _measure_backward(self, one: DistinctNode) -> tuple[BackwardSeconds, Saved]:
        # What goes in and comes out, and a gradient of each.
        setting = self._setting(one, tensors_held=2)
        with_gradient = [value_id for value_id in setting.values if value_id in self._with_gradient]

        def forward(values: Mapping[int, Any]) -> object:
            arguments, keywords = self._arguments(setting.node, values, ())
            return setting.function(*arguments, **keywords)

        with torch.enable_grad(), contexts.leave_as_found():
            contexts.enter(*self._contexts[setting.node.context])
            copies = [
                NodeBackward(forward, setting.values, with_gradient, setting.states) for _ in range(setting.copies)
            ]
            in_turn = cycle(copies)

            def seconds_for(value_ids: Collection[int]) -> float:
                return seconds_of(lambda: next(in_turn).run(value_ids), self._device, self._effort)

            of_weights = [value_id for value_id in with_gradient if self._with_gradient[value_id]]
            of_inputs = [value_id for value_id in with_gradient if not self._with_gradient[value_id]]
            whole = seconds_for(with_gradient)
            if of_inputs and any(setting.values[value_id].dim() > 1 for value_id in of_weights):
                parts = seconds_for(of_inputs), seconds_for(of_weights)
            else:
                parts = (whole, 0.0) if of_inputs else (0.0, whole)
            seconds = BackwardSeconds(whole=whole, input_gradients=parts[0], weight_gradients=parts[1])
            return seconds, copies[0].saved

    def _setting(self, one: DistinctNode, *, tensors_held: int) -> _Setting:
        node = self._graph.nodes[one.first]
        operator = self._graph.operators[node.operator]
        if operator.kind == pb.OPERATOR_KIND_HIGHER_ORDER:
            raise UnsupportedOperator("what runs of its subgraphs is not known")
        implementation = find_operator(operator)
        described = {value_id: self._values.describe(value_id) for value_id in value_ids(node)}
        states = [value_id for value_id in described if value_id in self._states]
        copies = num_copies(sum_bytes(states, self._values), self._state_bytes)
        self._check_memory(node, described, states, copies, tensors_held)
        if node.context >= len(self._contexts):
            raise InvalidGraph(f"node {one.first}: speaks of context {node.context}; the graph has no such")
        values = make_values(described, integer_ranges(operator.name, node, self._values), self._device, one.first)
        return _Setting(node=node, function=implementation.function, values=values, states=tuple(states), copies=copies)

    def _arguments(
        self, node: pb.Node, values: Mapping[int, Any], copied: Sequence[int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By position and by keyword, on copies of the `copied` values."""
        fresh = {value_id: values[value_id].clone() for value_id in copied if torch.is_tensor(values[value_id])}
        reader = ArgumentReader({**values, **fresh}, (), self._device)
        arguments = tuple(reader.read("", argument) for argument in node.arguments)
        return arguments, {item.name: reader.read("", item.argument) for item in node.keyword_arguments}

    def _check_memory(
        self, node: pb.Node, described: Mapping[int, Described], states: Sequence[int], copies: int, tensors_held: int
    ) -> None:
        outputs = [self._values.describe(value_id) for value_id in node.outputs if value_id]
        tensors = [one for one in (*described.values(), *outputs) if isinstance(one, Declared)]
        copied = (copies - 1) * sum_bytes(states, self._values)
        check_fits(tensors_held * (sum(map(storage_bytes, tensors)) + copied), self._device)

    def _is_lost(self) -> bool:
        """A kernel that failed on a GPU takes the process's context with it."""
        if self._device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            return True
        return False


def _contexts(graph: pb.Graph, device: torch.device) -> list[contexts.ContextArguments]:
    home = next((value.device_class for value in graph.values if value.kind == pb.VALUE_KIND_TENSOR), "cpu")
    arguments = [
        contexts.context_arguments(f"context {index}", context, home, device)
        for index, context in enumerate(graph.contexts)
    ]
    return arguments or [contexts.DEFAULT]


def _shown(error: Exception) -> str:
    """The first line: what follows is torch's own stack."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:300]
