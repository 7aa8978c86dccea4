"""One stream of microbatches through a deployment: in at the first stage's daemon, out of the last one's.

The stream of outputs is opened first: until the last daemon has said so, nothing may be sent. Two threads read what the
daemons answer; the caller's thread sends and takes. Where a daemon is on the client's host, that direction's
microbatches go by its worker's door, and the stream only tells of what ends the session.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from access.door import INPUTS, OUTPUTS
from access.host import host_identity
from access.ring import Ring
from access.tickets import TICKET_KEY
from planner.client.answers import AnswerReader
from planner.client.door import KeptMemory, Passage, SessionMemory
from planner.client.interruption import interruptible
from planner.client.lifetime import Lifetime
from planner.client.microbatches import Item, MessageReader, MessageWriter, Place, Scalar, read_response, request_bytes
from planner.client.outputs import ChosenOutput
from planner.client.status import error_from_rpc
from planner.errors import PlannerError, Unavailable
from protos.v1 import stage_daemon_pb2

_READ_BYTES = 4096
# A worker that ends has results on the way for no longer, once its daemon has said that it ends.
_LAST_RESULTS_SECONDS = 5.0

SERVICE = "/" + stage_daemon_pb2.DESCRIPTOR.services_by_name["StageDaemonService"].full_name

_Opening = stage_daemon_pb2.ReceiveOutputsResponse | stage_daemon_pb2.SendInputsResponse


class Arrival(NamedTuple):
    """`payload` holds the data of the result's tensors at `places`, where the message does not."""

    response: stage_daemon_pb2.ReceiveOutputsResponse
    places: tuple[Place | Scalar, ...] = ()
    payload: memoryview | None = None


class Session:
    """Use it as a context manager, or by `open` and `close`. Both streams end with it, whatever is still in flight."""

    def __init__(
        self,
        *,
        deployment_id: str,
        generation: int,
        inputs: grpc.Channel,
        outputs: grpc.Channel,
        unreachable: str,
        deadline_seconds: float,
        ticket: str = "",
        chosen: Sequence[ChosenOutput] = (),
        kept: KeptMemory | None = None,
        pipeline_id: int = 0,
        goes_on: bool = False,
    ) -> None:
        """`kept` is of sessions with the same workers. `goes_on`: with what earlier ones have written."""
        self.ticket = ticket
        self._lifetime = Lifetime("a session")
        self._metadata = ((TICKET_KEY, ticket),) if ticket else ()
        # Not by the stub, whose serializer and parser copy what tensors hold.
        self._send_inputs: grpc.StreamStreamMultiCallable[bytes, stage_daemon_pb2.SendInputsResponse] = (
            inputs.stream_stream(
                f"{SERVICE}/SendInputs",
                response_deserializer=stage_daemon_pb2.SendInputsResponse.FromString,
            )
        )
        self._receive_outputs: grpc.UnaryStreamMultiCallable[stage_daemon_pb2.ReceiveOutputsRequest, bytes] = (
            outputs.unary_stream(
                f"{SERVICE}/ReceiveOutputs",
                request_serializer=stage_daemon_pb2.ReceiveOutputsRequest.SerializeToString,
            )
        )
        self._unreachable = unreachable
        self._deadline_seconds = deadline_seconds
        self._open = stage_daemon_pb2.OpenSession(
            deployment_id=deployment_id,
            session_id=secrets.randbits(63) or 1,
            host=host_identity(),
            generation=generation,
            pipeline_id=pipeline_id,
            goes_on=goes_on,
        )
        for choice in chosen:
            choice.fill(self._open.outputs.add())
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # What each stream answers first, be it its end.
        self._openings: queue.SimpleQueue[_Opening | PlannerError] = queue.SimpleQueue()
        self._arrivals: queue.SimpleQueue[bytes | PlannerError] = queue.SimpleQueue()
        # Readable once something has arrived by a stream.
        self._arrived, self._arrive_here = socket.socketpair()
        self._arrive_here.setblocking(False)
        self._input: Passage | None = None
        self._output: Passage | None = None
        self._writer, self._reader = MessageWriter(), MessageReader()
        self._pollers: dict[tuple[int, ...], select.poll] = {}
        self._readers: list[AnswerReader] = []
        self._kept = kept
        self._memory = kept.take() if kept is not None else SessionMemory()
        self._num_sent = 0
        self._num_taken = 0
        # Of earlier runs.
        self._num_before = 0
        self._may_idle = True

    @property
    def num_in_flight(self) -> int:
        return self._num_sent - self._num_taken

    def __enter__(self) -> Session:
        self.open()
        return self

    def open(self) -> None:
        try:
            with interruptible(self._interrupt):
                self._open_streams()
        except BaseException:
            self._close()
            raise

    def can_idle(self) -> bool:
        """Another run may go on with it: both directions go by a door, of daemons that allow it, nothing is in flight,
        neither they nor the workers have said anything, and its memory is worth keeping."""
        if not (self._may_idle and self._input and self._output) or self.num_in_flight or not self._arrivals.empty():
            return False
        # First: it takes in what the worker has answered.
        is_worth_keeping = self._memory_now().is_worth_keeping()
        is_told = self._readable((self._arrived.fileno(), self._input.fileno(), self._output.fileno()), 0)
        return is_worth_keeping and not is_told

    def begin_run(self) -> None:
        """Microbatches are counted from 1 again where they are told of."""
        self._num_before = self._num_taken

    def _open_streams(self) -> None:
        request = stage_daemon_pb2.ReceiveOutputsRequest(open=self._open)
        self._read(
            self._receive_outputs(request, metadata=self._metadata),
            self._arrive,
            opens=True,
            ends_early=True,
        )
        self._output = self._passage(self._opening(), OUTPUTS, self._memory.outputs)
        self._requests.put(stage_daemon_pb2.SendInputsRequest(open=self._open).SerializeToString())
        requests: Iterator[bytes] = iter(self._requests.get, None)
        opens = bool(self._open.host)
        self._read(
            self._send_inputs(requests, metadata=self._metadata),
            lambda response: None,
            opens=opens,
            ends_early=False,
        )
        if opens:
            self._input = self._passage(self._opening(), INPUTS, self._memory.inputs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_over=kind is None)

    def close(self, *, is_over: bool) -> None:
        """Where its run `is_over`, rather than broken off, the next session can take over its memory. A forked
        process, whose frames and finalizers have it too, closes nothing."""
        if not self._lifetime.end():
            return
        if is_over and self._kept is not None and not self.num_in_flight and self._input and self._output:
            self._kept.give_back(self._memory_now())
        self._close()

    def send(self, items: Sequence[Item]) -> None:
        """Sends or queues one microbatch. What keeps it from arriving is raised by `take`."""
        self._num_sent += 1
        if self._input is None:
            self._requests.put(request_bytes(self._num_sent, items))
            return
        message, payloads = self._writer.message(items)
        try:
            with interruptible(self._interrupt):
                self._input.send(self._num_sent, message, payloads, self._deadline_seconds)
        except OSError:
            # The daemon says why; nothing that follows can be understood.
            self._input.close()

    def has_arrived(self) -> bool:
        """take() would not wait."""
        if not self._arrivals.empty():
            return True
        return self._output is not None and self._output.is_ready()

    def take(self) -> Arrival:
        """The next result, in the order of sending. Raises what ended the session, or Unavailable at the deadline."""
        with interruptible(self._interrupt):
            sequence, arrival = self._next()
        self._num_taken += 1
        if sequence != self._num_taken:
            raise PlannerError(f"result {sequence} arrived, {self._num_taken} was due")
        return arrival

    def _next(self) -> tuple[int, Arrival]:
        return self._from_daemon() if self._output is None else self._from_worker(self._output)

    def _from_daemon(self) -> tuple[int, Arrival]:
        result, payload = read_response(self._next_of(self._arrivals))
        return result.response.sequence, Arrival(response=result.response, places=result.places, payload=payload)

    def _from_worker(self, output: Passage) -> tuple[int, Arrival]:
        """What the worker has sent comes before what the daemon says of its end."""
        until = time.monotonic() + self._deadline_seconds
        while (remaining := until - time.monotonic()) > 0:
            is_told = not self._arrivals.empty()
            if is_told:
                remaining = min(remaining, _LAST_RESULTS_SECONDS)
            if output.is_ready():
                try:
                    frame = output.take(remaining)
                except OSError:
                    frame = None
                if frame is None:
                    self._output = None
                    return self._from_daemon()
                sequence, message, payload = frame
                result = self._reader.read(message)
                return sequence, Arrival(result.response, result.places, payload)
            ready = self._readable(
                (output.fileno(),) if is_told else (output.fileno(), self._arrived.fileno()), remaining
            )
            if output.fileno() in ready:
                continue
            if is_told:
                return self._from_daemon()
            if ready:
                self._arrived.recv(_READ_BYTES)
        raise self._overdue()

    def _memory_now(self) -> SessionMemory:
        assert self._input is not None
        assert self._output is not None
        return SessionMemory(self._input.memory, self._output.memory)

    def _opening(self) -> stage_daemon_pb2.WorkerDoor | None:
        """Where the daemon that was asked last has its worker's door, once it has opened the session."""
        answer: _Opening = self._next_of(self._openings)
        if answer.sequence != 0:
            raise PlannerError(f"the session began with result {answer.sequence}, the opening was due")
        self._may_idle = self._may_idle and answer.may_idle
        return answer.door if answer.HasField("door") else None

    def _passage(self, door: stage_daemon_pb2.WorkerDoor | None, purpose: bytes, memory: Ring | None) -> Passage | None:
        """None where the stream itself has to do: also of a worker that cannot be reached from here after all."""
        if door is None:
            return None
        try:
            return Passage(door, purpose, self._open.session_id, memory)
        except OSError:
            return None

    def _next_of(self, answers: queue.SimpleQueue[Any]) -> Any:
        try:
            answer = answers.get(timeout=self._deadline_seconds)
        except queue.Empty:
            raise self._overdue() from None
        if isinstance(answer, PlannerError):
            raise answer
        return answer

    def _overdue(self) -> Unavailable:
        return Unavailable(
            f"no result of microbatch {self._num_taken - self._num_before + 1} within {self._deadline_seconds:g} s; "
            "look at the daemons' logs, or allow more by deadline_seconds"
        )

    def _arrive(self, answer: bytes | PlannerError) -> None:
        self._arrivals.put(answer)
        # Where no more fits, it is readable already; once it is closed, nobody reads.
        with contextlib.suppress(OSError):
            self._arrive_here.send(b".")

    def _read(self, call: Any, take: Callable[[Any], None], *, opens: bool, ends_early: bool) -> None:
        """`opens`: the first answer is an opening. `ends_early`: the normal end, too, means that something is wrong."""

        def taken(answer: Any) -> None:
            nonlocal opens
            if opens:
                self._openings.put(_opening_of(answer))
            else:
                take(answer)
            opens = False

        def ended(error: grpc.RpcError | None) -> None:
            if error is not None:
                failure: PlannerError = error_from_rpc(error, unreachable=self._unreachable)
            elif ends_early:
                failure = Unavailable("the last stage's daemon ended the stream of results")
            else:
                return
            if opens:
                self._openings.put(failure)
            self._arrive(failure)

        self._readers.append(AnswerReader(call, taken, ended))

    def _interrupt(self) -> None:
        """Ends every wait of this session, from another thread."""
        for reader in self._readers:
            reader.cancel()
        for passage in (self._input, self._output):
            if passage is not None:
                passage.end_waits()

    def _close(self) -> None:
        self._requests.put(None)
        for reader in self._readers:
            reader.cancel()
        for passage in (self._input, self._output):
            if passage is not None:
                # A child that this process has forked meanwhile has them too.
                passage.end_waits()
                passage.close()
        for reader in self._readers:
            reader.join()
        self._arrived.close()
        self._arrive_here.close()

    def _readable(self, descriptors: tuple[int, ...], timeout_seconds: float) -> list[int]:
        poller = self._pollers.get(descriptors)
        if poller is None:
            poller = self._pollers[descriptors] = select.poll()
            for descriptor in descriptors:
                poller.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(1e3 * timeout_seconds)]


def _opening_of(answer: bytes | stage_daemon_pb2.SendInputsResponse) -> _Opening:
    return stage_daemon_pb2.ReceiveOutputsResponse.FromString(answer) if isinstance(answer, bytes) else answer
