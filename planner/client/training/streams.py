"""One stream of training requests to each daemon of a deployment; all are told the same, and all answer."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from access.door import MOST_REQUEST_BYTES, TRAINING, bytes_together
from access.tensor_fields import enclosed
from access.tickets import TICKET_KEY
from planner.client.answers import AnswerReader
from planner.client.door import Passage
from planner.client.interruption import interruptible
from planner.client.messages import failure_from_proto
from planner.client.microbatches import Item, fill, microbatch_buffers
from planner.client.session import SERVICE
from planner.client.status import error_from_failure, error_from_rpc
from planner.errors import Cancelled, PlannerError, StepNotApplied, Unavailable
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

_Response = stage_daemon_pb2.TrainResponse
_STEP = stage_daemon_pb2.TrainRequest.DESCRIPTOR.fields_by_name["step"].number
_MICROBATCHES = stage_daemon_pb2.TrainingStep.DESCRIPTOR.fields_by_name["microbatches"].number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A TrainRequest whose tensors' bytes are copied once, to where they are sent from. `step` is without its
    microbatches, which stand beside their sequence numbers."""

    step: stage_daemon_pb2.TrainingStep
    microbatches: Sequence[tuple[int, Sequence[Item]]] = ()

    def serialized(self) -> bytes:
        buffers: list[bytes | memoryview] = [self.step.SerializeToString()]
        for sequence, items in self.microbatches:
            buffers += enclosed(_MICROBATCHES, microbatch_buffers(sequence, items))
        return b"".join(enclosed(_STEP, buffers))

    def beside(self) -> tuple[bytes, list[memoryview]]:
        """It without its tensors' data, and that."""
        request = stage_daemon_pb2.TrainRequest(step=self.step)
        data: list[memoryview] = []
        for sequence, items in self.microbatches:
            fill(request.step.microbatches.add(sequence=sequence).values, items, data)
        return request.SerializeToString(), data


Request = stage_daemon_pb2.TrainRequest | StepRequest


def serialized(request: Request) -> bytes:
    return request.serialized() if isinstance(request, StepRequest) else request.SerializeToString()


class TrainingStreams:
    """By device id. Steps go by the worker's door where it is on this host, all else by its daemon.

    A wait longer than the deadline is an error, after which nothing can be asked any more."""

    def __init__(
        self,
        channels: Mapping[str, grpc.Channel],
        unreachable: str,
        deadline_seconds: float,
        ticket: Callable[[], str] = str,
    ) -> None:
        self._unreachable = unreachable
        # Why nothing can be asked any more.
        self._broken: PlannerError | None = None
        self._streams = {
            device_id: _Stream(device_id, channel, unreachable, deadline_seconds, ticket)
            for device_id, channel in channels.items()
        }

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(self._streams)

    def ask(self, requests: Mapping[str, Request]) -> dict[str, list[_Response]]:
        """What each daemon that is asked answers; raises the first failure, once all have answered."""
        answers = self._answers(requests)
        failures = (one[-1].failure for one in answers.values() if one[-1].WhichOneof("content") == "failure")
        if (failure := next(failures, None)) is not None:
            raise error_from_failure(failure_from_proto(failure), otherwise=StepNotApplied)
        return answers

    def _answers(self, requests: Mapping[str, Request]) -> dict[str, list[_Response]]:
        if self._broken is not None:
            raise self._broken
        # Until all have come: one that comes later would be taken for the answer to the next request.
        self._broken = Unavailable("an earlier request was broken off; close this trainer and open another")
        for device_id, request in requests.items():
            self._streams[device_id].send(request)
        try:
            answers = {device_id: self._streams[device_id].answers() for device_id in requests}
        except PlannerError as error:
            self._broken = error
            raise
        self._broken = None
        return answers

    def save_snapshot(self, deployment_id: str, generation: int) -> list[stage_daemon_pb2.SaveSnapshotResponse]:
        """What each daemon has uploaded of the snapshot that it took last; on any thread. Raises the first failure."""
        request = stage_daemon_pb2.SaveSnapshotRequest(deployment_id=deployment_id, generation=generation)
        calls = [stream.save_snapshot(request) for stream in self._streams.values()]
        try:
            return [call.result() for call in calls]
        except grpc.FutureCancelledError:
            raise Cancelled("the training was closed while a checkpoint was written") from None
        except grpc.RpcError as error:
            raise error_from_rpc(error, unreachable=self._unreachable) from None

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class _Stream:
    def __init__(
        self,
        device_id: str,
        channel: grpc.Channel,
        unreachable: str,
        deadline_seconds: float,
        ticket: Callable[[], str],
    ) -> None:
        self._device_id = device_id
        self._unreachable = unreachable
        self._deadline_seconds = deadline_seconds
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[_Response | PlannerError] = queue.SimpleQueue()
        requests: Iterator[bytes] = iter(self._requests.get, None)
        self._stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        self._ticket = ticket
        self._passage: Passage | None = None
        self._num_by_door = 0
        # The answer to what was sent last comes there.
        self._waits_at_door = False
        train: Any = channel.stream_stream(f"{SERVICE}/Train", response_deserializer=_Response.FromString)
        call = train(requests, metadata=self._metadata())
        self._reader = AnswerReader(call, self._arrived.put, self._ended, name=f"training-{device_id}")

    def send(self, request: Request) -> None:
        self._waits_at_door = self._passage is not None and self._goes_by(self._passage, request)
        if not self._waits_at_door:
            self._requests.put(serialized(request))

    def _goes_by(self, passage: Passage, request: Request) -> bool:
        """False for what cannot go by the door."""
        if not isinstance(request, StepRequest):
            return False
        message, data = request.beside()
        if max(len(message), bytes_together(map(len, data))) > MOST_REQUEST_BYTES:
            return False
        self._num_by_door += 1
        try:
            with interruptible(passage.end_waits):
                passage.send(self._num_by_door, message, data, self._deadline_seconds)
        except OSError:
            self._leave_door()
        return True

    def save_snapshot(self, request: stage_daemon_pb2.SaveSnapshotRequest) -> Any:
        """A future: it may take long, and ends where the daemon does."""
        return self._stub.SaveSnapshot.future(request, metadata=self._metadata())

    def answers(self) -> list[_Response]:
        """To one request. States come one by one, until a response without one."""
        if self._waits_at_door:
            return [self._from_worker()]
        answers = [self._next()]
        while answers[-1].WhichOneof("content") == "state":
            answers.append(self._next())
        if answers[-1].WhichOneof("content") == "opened":
            self._use_door(answers[-1].opened)
        return answers

    def _use_door(self, opened: stage_daemon_pb2.TrainingOpened) -> None:
        self._leave_door()
        if not opened.session_id or not opened.door.takes_tensors_beside:
            return
        # A worker that cannot be reached from here after all is asked by its daemon.
        with suppress(OSError):
            self._passage = Passage(opened.door, TRAINING, opened.session_id)

    def _leave_door(self) -> None:
        if self._passage is not None:
            self._passage.close()
            self._passage = None

    def _from_worker(self) -> _Response:
        """What its daemon says where the worker says nothing more."""
        if self._passage is not None:
            try:
                with interruptible(self._passage.end_waits):
                    frame = self._passage.take(self._deadline_seconds)
            except TimeoutError:
                raise self._overdue() from None
            except OSError:
                frame = None
            if frame is not None:
                _, message, _ = frame
                return _Response.FromString(message)
        self._ask_why()
        self._next()
        raise Unavailable(f"the worker of {self._device_id} has ended the training")

    def _ask_why(self) -> None:
        """Asks for nothing: a daemon whose worker has gone says why."""
        self._leave_door()
        request = stage_daemon_pb2.TrainRequest()
        request.write_states.SetInParent()
        self._requests.put(request.SerializeToString())

    def close(self) -> None:
        """Ends the stream; what is under way on the daemon ends by itself."""
        self._leave_door()
        self._requests.put(None)
        # A daemon that has answered all ends its side at once.
        self._reader.join()
        self._reader.cancel()
        self._reader.join()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """For each call anew: a ticket is good for minutes, a training lasts for days."""
        ticket = self._ticket()
        return ((TICKET_KEY, ticket),) if ticket else ()

    def _next(self) -> _Response:
        try:
            with interruptible(self._reader.cancel):
                answer = self._arrived.get(timeout=self._deadline_seconds)
                if isinstance(answer, PlannerError):
                    raise answer
        except queue.Empty:
            raise self._overdue() from None
        return answer

    def _overdue(self) -> Unavailable:
        return Unavailable(
            f"no answer from the daemon of {self._device_id} within {self._deadline_seconds:g} s; look at its log,"
            " or allow more by deadline_seconds"
        )

    def _ended(self, error: grpc.RpcError | None) -> None:
        failure: PlannerError = Unavailable(f"the daemon of {self._device_id} ended the training")
        if error is not None:
            failure = error_from_rpc(error, unreachable=self._unreachable)
        self._arrived.put(failure)
