"""A graph run whole and in order, as a stage runs it: what each of its nodes takes among the others, and what a
client's microbatch takes before and after.

Called over and over, a node finds its own code and tensors in the caches, where in a run others were before it; and
nobody counts what lies between two calls. So nodes alone seem quicker than they are, small ones by a third to a half,
and a message that is written right after another by more than that.
States of one shape are few tensors in turns: as many as a cache does not hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import fx

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.declared import Declared
from stage_daemon.loader.draws import draws_random
from stage_daemon.loader.rebuild import NODE_INDEX, rebuild_module
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.randomness import drawing
from stage_daemon.transport.streams import streams_of
from stage_daemon.worker.profile.clock import Clock, Effort, host_clock
from stage_daemon.worker.profile.delivery import Take, handed_in, handed_over
from stage_daemon.worker.profile.distinct import value_ids
from stage_daemon.worker.profile.indices import narrowest_ranges
from stage_daemon.worker.profile.inputs import check_fits, make_tensor, make_values, storage_bytes
from stage_daemon.worker.profile.states import CACHE_BYTES, num_copies
from stage_daemon.worker.profile.values import ValueTable

# Beyond these, fewer rounds are run; at least so many, beside one to warm up.
MOST_SECONDS = 10.0
LEAST_ROUNDS = 3
# A round has more than one run of a small graph, as small microbatches come several at a time.
_ROUND_SECONDS = 4e-3
_MOST_RUNS = 8
_SEED = 0
_MARKS = "marks"


class Marks(Protocol):
    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Between each mark and the one before, of all marks since the last call."""
        ...


class ClockMarks:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moments: list[float] = []

    def mark(self) -> None:
        self._moments.append(self._clock())

    def seconds(self) -> list[float]:
        moments, self._moments = self._moments, []
        return [after - before for before, after in pairwise(moments)]


class EventMarks:
    """By the device's own clock: what a node's kernels take, and where starting them takes longer, that."""

    def __init__(self, new_event: Callable[[], torch.Event]) -> None:
        self._new_event = new_event
        self._events: list[torch.Event] = []

    def mark(self) -> None:
        event = self._new_event()
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        events, self._events = self._events, []
        events[-1].synchronize()
        return [1e-3 * before.elapsed_time(after) for before, after in pairwise(events)]


def marks_on(device: torch.device) -> Marks:
    if device.type == "cuda":
        return EventMarks(lambda: torch.Event("cuda", enable_timing=True))
    return ClockMarks(host_clock(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """`nodes` [nodes] add up to what a run of the whole graph takes. `input_seconds` and `output_seconds` are of what a
    client hands in before such a run and is given after it, see `added_seconds`; None where that cannot be handed
    over."""

    nodes: tuple[float, ...]
    input_seconds: float | None
    output_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """Of the whole graph, in training. A forward pass takes longer there than in inference: its graph is kept. So do
    deliveries, for more tensors are in the caches."""

    forward: float
    backward: float
    input_seconds: float | None = None
    output_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole graph on made-up states and inputs."""

    module: StageModule
    inputs: tuple[Any, ...]
    draws_random: bool

    def run(self, function: Callable[..., tuple[Any, ...]] | None = None) -> tuple[Any, ...]:
        """`function`: of the module, or of another form of the same."""
        drawn = drawing("profile", 0) if self.draws_random else nullcontext()
        with torch.no_grad(), drawn:
            outputs: tuple[Any, ...] = (function or self.module)(*self.inputs)
        return outputs

    def train(self, between: Callable[[], object] = lambda: None) -> None:
        """Forward and back from the losses, else from all outputs; gradients of weights add up. `between` is called
        between the passes."""
        roots = self.roots()
        between()
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    def roots(self, module: StageModule | None = None) -> list[torch.Tensor]:
        """Forward: where a backward pass begins. `module`: another form of the same."""
        drawn = drawing("profile", 0) if self.draws_random else nullcontext()
        with torch.enable_grad(), drawn:
            given = (module or self.module)(*self.inputs)
        outputs = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
        return [one for one in outputs if one.dim() == 0] or outputs


def program_of(
    graph: pb.Graph, values: ValueTable, device: torch.device, *, num_processes: int = 1, num_kept: int = 0
) -> Program:
    """To be run forward, and back where microbatches are kept for that. Raises InsufficientMemory where it does not fit
    the device so many times."""
    needed = _needed_bytes(graph, values) + (_kept_in_training(graph, values, num_kept) if num_kept else 0)
    check_fits(num_processes * needed, device)
    module = rebuild_module(graph, device)
    module.set_states(_states(graph, values, device))
    return Program(module=module, inputs=_inputs(graph, values, device), draws_random=draws_random(graph))


def trained_program(graph: pb.Graph, values: ValueTable, device: torch.device, *, num_processes: int = 1) -> Program:
    """As steps run it whose backward passes are whole."""
    program = program_of(graph, values, device, num_processes=num_processes, num_kept=1)
    return replace(program, module=program.module.accumulating())


def rehearse(
    graph: pb.Graph,
    values: ValueTable,
    device: torch.device,
    effort: Effort,
    on_round: Callable[[], None],
    marks: Marks | None = None,
) -> Rehearsed:
    """`on_round` is called after each run with and without marks.

    Raises what a node raises on made-up values, and InsufficientMemory.
    """
    marks = marks or marks_on(device)
    computes_by_itself = streams_of(device) is not None
    program = program_of(graph, values, device)
    # As lanes call it.
    whole_run, marked_run = program.module.function(), _marked(program.module, marks).function()

    def seconds_of_run(run: Callable[..., tuple[Any, ...]]) -> tuple[list[float], float, tuple[Any, ...]]:
        """Between marks; until a device that computes by itself has been given all of it; and what it gives."""
        marks.mark()
        before = time.perf_counter()
        outputs = program.run(run)
        launch = time.perf_counter() - before
        marks.mark()
        return marks.seconds(), launch, outputs

    wholes: list[float] = []
    launches: list[float] = []
    parts: list[list[float]] = []
    num_runs = num_rounds = 1
    with _Client(program.inputs, device) as client:
        until = time.monotonic() + MOST_SECONDS
        while num_rounds <= effort.repetitions + 1 and (num_rounds <= LEAST_ROUNDS + 1 or time.monotonic() < until):
            for _ in range(num_runs):
                # As in a stream, where a microbatch comes and goes with the caches full of the stage's own.
                client.hand_in()
                [seconds], launch, outputs = seconds_of_run(whole_run)
                client.hand_over(outputs)
                wholes.append(seconds)
                launches.append(launch)
            parts += [seconds_of_run(marked_run)[0] for _ in range(num_runs)]
            on_round()
            num_runs = max(1, min(_MOST_RUNS, int(_ROUND_SECONDS / max(wholes[0], 1e-9))))
            num_rounds += 1
    # The first to warm up.
    whole, deliveries = typical(wholes[1:]), (client.input_seconds, client.output_seconds)
    if computes_by_itself:
        deliveries = added_seconds(*deliveries, launch=typical(launches[1:]), computed=whole)
    return Rehearsed(
        nodes=tuple(_shared_out(whole, [typical(one) for one in zip(*parts[1:], strict=True)])),
        input_seconds=deliveries[0],
        output_seconds=deliveries[1],
    )


def added_seconds(
    input_seconds: float | None, output_seconds: float | None, *, launch: float, computed: float
) -> tuple[float | None, float | None]:
    """What deliveries add to a pass where the host does them, and launches the next one, while the device computes: of
    what the host takes, the part beyond what the device does, in the deliveries' own shares."""
    deliveries = (input_seconds or 0.0) + (output_seconds or 0.0)
    added = min(deliveries, max(0.0, launch + deliveries - computed))
    share = added / deliveries if deliveries else 0.0
    return (
        None if input_seconds is None else share * input_seconds,
        None if output_seconds is None else share * output_seconds,
    )


def rehearse_training(
    graph: pb.Graph, values: ValueTable, device: torch.device, effort: Effort, on_round: Callable[[], None]
) -> PassSeconds:
    """Both passes in turns, as a stage runs them, deliveries before and after. `on_round` is called after each pair.

    Raises what a node raises on made-up values or backward, and InsufficientMemory.
    """
    program = trained_program(graph, values, device)
    marks = marks_on(device)
    passes: list[list[float]] = []
    outputs = program.run()
    with _Client(program.inputs, device) as client:
        until = time.monotonic() + MOST_SECONDS
        while len(passes) <= effort.repetitions and (len(passes) <= LEAST_ROUNDS or time.monotonic() < until):
            client.hand_in()
            marks.mark()
            program.train(marks.mark)
            marks.mark()
            passes.append(marks.seconds())
            client.hand_over(outputs)
            on_round()
    # The first to warm up.
    forward, backward = (typical(seconds) for seconds in zip(*passes[1:], strict=True))
    return PassSeconds(
        forward=forward,
        backward=backward,
        input_seconds=client.input_seconds,
        output_seconds=client.output_seconds,
    )


def typical(seconds: Sequence[float]) -> float:
    """What a stream of such takes each: the mean. The slowest tenth, in which the machine did something else, is left
    out."""
    quickest = sorted(seconds)[: len(seconds) - len(seconds) // 10]
    return statistics.fmean(quickest)


class _Client:
    """Hands microbatches in and takes results, as far as they can be handed over at all."""

    def __init__(self, inputs: Sequence[Any], device: torch.device) -> None:
        self._inputs, self._device = inputs, device
        self._stack = ExitStack()
        self._input_seconds: list[float] | None = []
        self._output_seconds: list[float] | None = []

    def __enter__(self) -> _Client:
        self._give = self._stack.enter_context(handed_over(self._device))
        try:
            self._take: Take | None = self._stack.enter_context(handed_in(self._inputs, self._device))
        except Exception:
            # Of a type that no message has.
            self._take, self._input_seconds = None, None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hand_in(self) -> None:
        if self._take is not None and self._input_seconds is not None:
            self._input_seconds.append(self._take())

    def hand_over(self, outputs: Sequence[Any]) -> None:
        if self._output_seconds is None:
            return
        try:
            self._output_seconds.append(self._give(outputs))
        except Exception:
            self._output_seconds = None

    @property
    def input_seconds(self) -> float | None:
        return typical(self._input_seconds[1:]) if self._input_seconds else None

    @property
    def output_seconds(self) -> float | None:
        return typical(self._output_seconds[1:]) if self._output_seconds else None


def _shared_out(whole: float, parts: Sequence[float]) -> list[float]:
    """`parts` begin with what comes before the first node and end with what comes behind the last. What `whole` takes
    beyond the nodes' own is of all of them alike, as states are fetched for each; where marks are dearer than that, the
    nodes' own is too much by as large a share for each, so that none is left without time."""
    own = parts[1:-1]
    beyond = whole - sum(own)
    if beyond < 0:
        return [seconds * whole / sum(own) for seconds in own]
    return [seconds + beyond / len(own) for seconds in own]


def _marked(module: StageModule, marks: Marks) -> StageModule:
    """The same program on the same states with a mark before the first node and behind each."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(module.program.graph, {}))
    last = {node.meta[NODE_INDEX]: node for node in copied.nodes if NODE_INDEX in node.meta}
    first = next((node for node in copied.nodes if NODE_INDEX in node.meta), None)
    if first is not None:
        with copied.inserting_before(first):
            handle = copied.create_node("get_attr", _MARKS)
            copied.call_method("mark", (handle,))
        for node in last.values():
            with copied.inserting_after(node):
                copied.call_method("mark", (handle,))
    # No tensor and no module, so nothing is registered.
    setattr(module.program, _MARKS, marks)
    return module.with_program(fx.GraphModule(module.program, copied, "MarkedProgram"))


def _states(graph: pb.Graph, values: ValueTable, device: torch.device) -> dict[str, torch.Tensor]:
    """By name. Tied ones are one."""
    random = torch.Generator(device=device).manual_seed(_SEED)
    ranges = narrowest_ranges(graph, values)
    by_declaration: dict[Declared, list[torch.Tensor]] = {}
    tied: dict[int, torch.Tensor] = {}
    states: dict[str, torch.Tensor] = {}
    counts = _counts(graph, values)
    used: dict[Declared, int] = dict.fromkeys(counts, 0)
    for state in graph.states:
        declared = _declared(state, values)
        if state.tie_group not in tied or not state.tie_group:
            tensors = by_declaration.setdefault(declared, [])
            if len(tensors) < counts[declared]:
                tensors.append(_state(make_tensor(declared, ranges.get(state.value), device, random)))
            tied[state.tie_group] = tensors[used[declared] % len(tensors)]
            used[declared] += 1
        states[state.name] = tied[state.tie_group]
    return states


def _state(tensor: torch.Tensor) -> torch.Tensor:
    """Matrices as large as a new layer's: products of many stay finite."""
    if tensor.dim() < 2 or not tensor.is_floating_point() or tensor.itemsize == 1 or not tensor.is_contiguous():
        return tensor
    return tensor.sub_(0.5).mul_(max(1, tensor[0].numel()) ** -0.5)


def _counts(graph: pb.Graph, values: ValueTable) -> dict[Declared, int]:
    """How many tensors there are of each kind of state."""
    counts: dict[Declared, int] = {}
    for state in graph.states:
        declared = _declared(state, values)
        counts[declared] = counts.get(declared, 0) + 1
    return {one: min(count, num_copies(one.size_bytes, CACHE_BYTES) + 1) for one, count in counts.items()}


def _declared(state: pb.State, values: ValueTable) -> Declared:
    declared = values.tensor(state.value)
    assert declared is not None, "a graph whose states are no tensors is not parsed"
    return declared


def _inputs(graph: pb.Graph, values: ValueTable, device: torch.device) -> tuple[Any, ...]:
    ids = [entry.value for entry in graph.inputs if entry.WhichOneof("content") == "value"]
    described = {value_id: values.describe(value_id) for value_id in ids}
    tensors = make_values(described, narrowest_ranges(graph, values), device, _SEED)
    return tuple(tensors[value_id] for value_id in ids)


def _needed_bytes(graph: pb.Graph, values: ValueTable) -> int:
    """Of states, and of values at the node where most of them are kept; views count as copies."""
    states = sum(one.size_bytes * count for one, count in _counts(graph, values).items())
    return states + _most_kept(graph, values)


def _kept_in_training(graph: pb.Graph, values: ValueTable, num_kept: int) -> int:
    """Of values, whatever the backward passes of so many microbatches read, and of gradients of states."""
    outputs = (values.tensor(value_id) for node in graph.nodes for value_id in node.outputs if value_id)
    states = sum(one.size_bytes * count for one, count in _counts(graph, values).items())
    return states + num_kept * sum(storage_bytes(one) for one in outputs if one is not None)


def _most_kept(graph: pb.Graph, values: ValueTable) -> int:
    last_reader: Mapping[int, int] = {
        value_id: index for index, node in enumerate(graph.nodes) for value_id in (*node.outputs, *value_ids(node))
    }
    of_states = {state.value for state in graph.states}
    ends: dict[int, int] = {}
    live_bytes = most = 0
    for index, node in enumerate(graph.nodes):
        for value_id in node.outputs:
            declared = values.tensor(value_id) if value_id and value_id not in of_states else None
            if declared is not None:
                size_bytes = storage_bytes(declared)
                live_bytes += size_bytes
                ends[last_reader[value_id]] = ends.get(last_reader[value_id], 0) + size_bytes
        most = max(most, live_bytes)
        live_bytes -= ends.pop(index, 0)
    return most
