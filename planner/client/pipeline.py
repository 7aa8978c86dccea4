"""A deployed model as a function: batches in, outputs in the module's own structure out, in order, many in flight."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from access.files import WatchedCredentials
from planner.client.autocast import AutocastWarning
from planner.client.batches import Batch, flatten_batch
from planner.client.connection import open_channel
from planner.client.door import KeptMemory
from planner.client.idle_sessions import IdleSessions
from planner.client.lifetime import Lifetime, NotPickled
from planner.client.messages import failure_from_proto
from planner.client.microbatches import InputEncoder, Item, decode, decode_beside, kind_of_batch
from planner.client.outputs import ChosenOutput, by_text
from planner.client.pytree import unflatten_outputs
from planner.client.records import Deployment
from planner.client.session import Arrival, Session
from planner.client.tensors import RawTensor, TensorKind
from planner.client.window import FixedWindow, RunWindow, Window
from planner.errors import (
    BuffersInUse,
    DeploymentFailed,
    InvalidArgument,
    MicrobatchFailed,
    PlannerError,
    ResourceExhausted,
    StateLost,
    few_of,
)
from planner.graph.ir import Graph
from protos.v1 import planner_pb2

DATA_MESSAGE_BYTES = 1 << 30
# One that a copy of a stage computes with and one on the way to it; two more are with the client.
_MICROBATCHES_PER_COPY = 2
_MICROBATCHES_OF_CLIENT = 2
# Generations in a row that answered nothing: most likely the oldest microbatch is what breaks them.
MOST_FRUITLESS = 3
# A few more cost little and even out microbatches of unequal length.
_MIN_WINDOW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """Where one generation of the deployment takes inputs and gives outputs."""

    generation: int
    inputs: grpc.Channel
    outputs: grpc.Channel
    unreachable: str
    kept: KeptMemory = field(default_factory=KeptMemory)
    idle: IdleSessions = field(default_factory=IdleSessions)

    def leave(self) -> None:
        """No session goes to those workers again."""
        self.idle.close()
        self.kept.close()


class _Sent(NamedTuple):
    """A microbatch without an answer. `items` is empty where it is never sent again."""

    items: tuple[Item, ...]
    kind: TensorKind


class _Source:
    """The caller's microbatches. Whatever they raise is the caller's own."""

    def __init__(self, microbatches: Iterable[Sequence[object]]) -> None:
        self._microbatches = iter(microbatches)
        self.has_raised = False

    def __iter__(self) -> Iterator[Sequence[object]]:
        return self

    def __next__(self) -> Sequence[object]:
        try:
            return next(self._microbatches)
        except StopIteration:
            raise
        except BaseException:
            self.has_raised = True
            raise


class Pipeline(NotPickled):
    """Made by PlannerClient.pipeline. Threads may share it, and no processes: each run has a session to itself, which a
    later one may go on with.

    A run through a deployment that recovers goes on in the next generation: `find_next` waits for it, and what was not
    answered is sent again, in order. Each microbatch is answered once.

    Where the stages write buffers, such as a key-value cache, the batches of this pipeline are one sequence: one run is
    under way at a time. What earlier ones wrote is lost with the generation that held it, and once another pipeline has
    written: the run raises StateLost, and the next one begins anew. Another pipeline is let in when this one is closed,
    or idle for some seconds; until then it gets BuffersInUse. `written` names those buffers.

    Results are torch tensors where the batch's are, arrays where it holds numpy arrays. With `chosen` outputs each is a
    dict of those by their text, not the module's own structure.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        deployment_id: str,
        num_copies: int,
        input_address: str,
        output_address: str,
        deadline_seconds: float,
        why_failed: Callable[[], DeploymentFailed | None],
        credentials: WatchedCredentials | None = None,
        ticket: Callable[[], str] = str,
        generation: int = 0,
        find_next: Callable[[str, int], Deployment | None] | None = None,
        chosen: Sequence[ChosenOutput] = (),
        written: Sequence[str] = (),
    ) -> None:
        self.graph = graph
        self.deployment_id = deployment_id
        self.chosen = tuple(chosen)
        self._written = tuple(written)
        # Whether a batch of this pipeline has written to them, in the generation that it last had an answer of.
        self._has_state = False
        # Held by a run where there are such buffers.
        self._writing = threading.Lock()
        self._id = secrets.randbits(63) or 1
        # As many as keep all copies of all stages busy.
        self.default_window = max(_MIN_WINDOW, _MICROBATCHES_PER_COPY * num_copies + _MICROBATCHES_OF_CLIENT)
        self._encoder = InputEncoder(graph)
        self._lock = threading.Lock()
        self._credentials = credentials
        self._ticket = ticket
        self._routes = [self._open_route(generation, input_address, output_address)]
        self._deadline_seconds = deadline_seconds
        self._why_failed = why_failed
        self._find_next = find_next
        self._lifetime = Lifetime(f"this pipeline of {deployment_id}")
        self._autocast = AutocastWarning("a pipeline")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One batch."""
        self._autocast.look(stacklevel=2)
        [output] = self.run([Batch(args, kwargs)])
        return output

    def run(
        self, batches: Iterable[Any], window: int | RunWindow | None = None, *, raise_failures: bool = True
    ) -> Iterator[Any]:
        """Each batch's output, in order, with at most `window` batches in flight; None: `default_window`, and up
        to 64 small ones where as many are answered within 4 ms.

        A batch is a Batch, a tuple or list of arguments, a mapping of named ones, or the only argument itself. A batch
        that fails in a stage raises MicrobatchFailed; with `raise_failures` off the error stands in its output's place
        and the others go on.
        """
        self._autocast.look(stacklevel=2)
        flat = (flatten_batch(self.graph, batch) for batch in batches)
        for result in self.run_leaves(flat, window):
            if not isinstance(result, MicrobatchFailed):
                yield self._structured(result)
            elif raise_failures:
                raise result
            else:
                yield result

    def run_leaves(
        self, microbatches: Iterable[Sequence[object]], window: int | RunWindow | None = None
    ) -> Iterator[list[object] | MicrobatchFailed]:
        """As run, on the graph's non-constant inputs, and outputs or what is chosen of them, in order.

        Failures are given, never raised, but for StateLost.
        """
        with self._alone():
            yield from self._run(microbatches, window)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._written:
            yield
            return
        if not self._writing.acquire(blocking=False):
            raise BuffersInUse(
                f"{self.deployment_id} writes {few_of(self._written, 2)}, and a run of this pipeline is under way: "
                "read its outputs to the end, or close it, before the next one begins",
                deployment_id=self.deployment_id,
            )
        try:
            yield
        finally:
            self._writing.release()

    def _run(
        self, microbatches: Iterable[Sequence[object]], window: int | RunWindow | None
    ) -> Iterator[list[object] | MicrobatchFailed]:
        self._lifetime.check()
        if isinstance(window, int):
            if window < 1:
                raise InvalidArgument(f"window is {window}, needs at least 1")
            window = FixedWindow(window)
        window = window or Window(self.default_window)
        source, unanswered = _Source(microbatches), deque[_Sent]()
        num_answered = num_fruitless = 0
        while True:
            route, answered_before = self._routes[-1], num_answered
            try:
                with self._session(route) as session:
                    for arrival in self._stream(session, source, unanswered, window):
                        num_answered += 1
                        self._has_state = bool(self._written)
                        yield _result(arrival, unanswered.popleft().kind, num_answered)
                return
            except StateLost:
                self._has_state = False
                raise
            except (InvalidArgument, ResourceExhausted, MicrobatchFailed, BuffersInUse):
                raise
            except PlannerError as error:
                num_fruitless = num_fruitless + 1 if num_answered == answered_before else 1
                if source.has_raised or num_fruitless > MOST_FRUITLESS or not self._goes_on_after(route):
                    raise self._why_failed() or error from None
                if self._has_state:
                    self._has_state = False
                    raise self._state_lost() from None

    def close(self) -> None:
        """Ends runs that are under way; the deployment goes on. Idempotent. Later runs raise Conflict."""
        if not self._lifetime.end():
            return
        for route in self._routes:
            route.leave()
            route.inputs.close()
            route.outputs.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stream(
        self, session: Session, source: _Source, unanswered: deque[_Sent], window: RunWindow
    ) -> Iterator[Arrival]:
        """Whoever takes an arrival takes the oldest out of `unanswered`."""
        for microbatch in unanswered:
            session.send(microbatch.items)
        for leaves in source:
            items = self._encoder.encode(leaves)
            unanswered.append(_Sent(items=self._to_send_again(items), kind=kind_of_batch(leaves)))
            session.send(items)
            while (in_flight := session.num_in_flight) and (in_flight >= window.size or session.has_arrived()):
                arrival = session.take()
                window.answered(arrival, items)
                yield arrival
        while session.num_in_flight:
            yield session.take()

    def _to_send_again(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """A copy, for the caller may use its tensors' memory for the next microbatch."""
        if self._find_next is None:
            return ()
        return tuple(replace(item, data=bytes(item.data)) if isinstance(item, RawTensor) else item for item in items)

    def _goes_on_after(self, route: _Route) -> bool:
        """Whether there is a later generation, to which the next session goes."""
        if self._find_next is None:
            return False
        later = self._find_next(self.deployment_id, route.generation)
        if later is None:
            return False
        with self._lock:
            if later.generation > self._routes[-1].generation:
                self._routes.append(self._open_route(later.generation, later.input_address, later.output_address))
        route.leave()
        return True

    def _state_lost(self) -> StateLost:
        return StateLost(
            f"{self.deployment_id} goes on as generation {self._routes[-1].generation}, which began with the buffers "
            f"that were uploaded: what earlier batches wrote to {few_of(self._written, 2)} is lost; begin anew with "
            "the batch that began the sequence",
            deployment_id=self.deployment_id,
        )

    def _open_route(self, generation: int, input_address: str, output_address: str) -> _Route:
        return _Route(
            generation=generation,
            inputs=open_channel(input_address, message_bytes=DATA_MESSAGE_BYTES, credentials=self._credentials),
            outputs=open_channel(output_address, message_bytes=DATA_MESSAGE_BYTES, credentials=self._credentials),
            unreachable=f"a daemon of {self.deployment_id} does not answer ({input_address} in, {output_address} out)",
        )

    @contextmanager
    def _session(self, route: _Route) -> Iterator[Session]:
        ticket = self._ticket()
        session = route.idle.take(ticket) or self._open_session(route, ticket)
        try:
            yield session
        except BaseException:
            session.close(is_over=False)
            raise
        route.idle.give_back(session)

    def _open_session(self, route: _Route, ticket: str) -> Session:
        session = Session(
            deployment_id=self.deployment_id,
            generation=route.generation,
            inputs=route.inputs,
            outputs=route.outputs,
            unreachable=route.unreachable,
            deadline_seconds=self._deadline_seconds,
            ticket=ticket,
            chosen=self.chosen,
            kept=route.kept,
            pipeline_id=self._id,
            goes_on=self._has_state,
        )
        session.open()
        return session

    def _structured(self, leaves: Sequence[object]) -> Any:
        if not self.chosen:
            return unflatten_outputs(self.graph, leaves)
        return by_text(self.chosen, leaves)


def _result(arrival: Arrival, kind: TensorKind, number: int) -> list[object] | MicrobatchFailed:
    if arrival.places and arrival.payload is not None:
        return decode_beside(arrival.places, kind, arrival.payload)
    response = arrival.response
    if response.WhichOneof("content") == "failure":
        return _failed(number, response.failure)
    return decode(response.result.values, kind)


def _failed(number: int, message: planner_pb2.Failure) -> MicrobatchFailed:
    failure = failure_from_proto(message)
    error = MicrobatchFailed(f"microbatch {number} failed{failure.place}: {failure.message}")
    stage = {} if failure.stage is None else {"stage": str(failure.stage)}
    error.metadata = {
        **failure.metadata,
        "reason": failure.reason,
        **stage,
        "device_id": failure.device_id,
        "sequence": str(number),
    }
    return error
