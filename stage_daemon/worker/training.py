"""Training on a worker: what a client asks for is done in order, on a thread of its own, and answered."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from google.protobuf.message import DecodeError

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Conflict, InvalidRequest
from stage_daemon.runtime.ingress import InputFormat
from stage_daemon.runtime.training.snapshot import Snapshot
from stage_daemon.runtime.training.states import DeviceStates, TensorKey
from stage_daemon.runtime.training.step import StepInterpreter, TrainingSurroundings
from stage_daemon.runtime.training.weights import Weights
from stage_daemon.worker import shards, training_wire
from stage_daemon.worker.choices_wire import choices_from_proto
from stage_daemon.worker.failures import failure_from_error
from stage_daemon.worker.training_inlet import Request, TrainingInlet

# A response, and whether it is the last to its request.
Reply = Callable[[stage_daemon_pb2.TrainResponse, bool], None]
_Asked = tuple[stage_daemon_pb2.TrainRequest, list[training_wire.Microbatch], Reply]


class Blobs(Protocol):
    """As BlobClient."""

    def read_range(self, sha256: bytes, offset_bytes: int, length_bytes: int) -> Iterator[bytes]: ...
    def upload(self, sha256: bytes, pieces: Sequence[memoryview]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOf:
    """Checkpoints are written to and read from `blobs`."""

    deployment_id: str
    around: TrainingSurroundings
    weights: Weights
    inputs: InputFormat
    blobs: Blobs
    # Where a client of this host reaches `let_in`.
    door: Callable[[], stage_daemon_pb2.WorkerDoor] | None = None


class Training:
    """A request that cannot be done is answered with a failure; what takes an edge down ends the worker."""

    def __init__(self, training: TrainingOf, reply: Reply) -> None:
        self._training = training
        self._reply = reply
        # None of the requests follows where None stands. With those that came by the door: by which inlet.
        self._waiting: queue.SimpleQueue[tuple[Request, TrainingInlet | None] | None] = queue.SimpleQueue()
        # Of whom the door lets in, once; 0: nobody.
        self._session_id = 0
        self._inlet: TrainingInlet | None = None
        # Of both: clients come on the door's thread.
        self._at_door = threading.Lock()
        self.interpreter: StepInterpreter | None = None
        self._num_groups = 0
        self._states = DeviceStates(training.around.stages)
        self._snapshot: Snapshot | None = None
        # Until all of it is copied; it may have been saved by then.
        self._copying: Snapshot | None = None
        self._fetched: Mapping[TensorKey, torch.Tensor] | None = None

    def submit(self, request: Request, inlet: TrainingInlet | None = None) -> None:
        """By the supervisor, or by the inlet that is to have the answer."""
        self._waiting.put((request, inlet))

    def let_in(self, session_id: int, connection: socket.socket) -> bool:
        """Whether it is the client whose stream is open, which then may ask for steps here."""
        with self._at_door:
            if not session_id or session_id != self._session_id:
                return False
            self._session_id = 0
            self._inlet = TrainingInlet(connection, self.submit, self._training.inputs.copies)
            return True

    def take_no_more(self) -> None:
        self._waiting.put(None)

    def run(self) -> None:
        """Returns after `take_no_more`, once the other daemons have been told."""
        while (asked := self._next()) is not None:
            self.do(*asked)
            del asked
        self._end_inlet()
        self._training.around.passes.end()
        self._training.around.mail.end()

    def _next(self) -> _Asked | None:
        while (waiting := self._waiting.get()) is not None:
            asked, inlet = waiting
            if inlet is None:
                return *_read(asked), self._reply
            if not inlet.is_over:
                return *_only_step(*_read(asked)), _by(inlet)
        return None

    def do(
        self,
        request: stage_daemon_pb2.TrainRequest,
        microbatches: list[training_wire.Microbatch],
        reply: Reply | None = None,
    ) -> None:
        """`microbatches` are a step's, and are taken from there: see `training_wire.read_request`. The memory that they
        came in is free before the answer goes, for the next step."""
        reply = reply or self._reply
        if request.WhichOneof("content") == "step":
            reply(self._step(request.step, microbatches), True)
            return
        try:
            reply(self._answer(request), True)
        except Exception as error:
            # Also where memory lacks for what is to be kept or read: no other device waits for this one here.
            reply(_refusal(error), True)

    def save_snapshot(self) -> stage_daemon_pb2.SaveSnapshotResponse:
        """Of the last snapshot, once; on any thread. Steps go on meanwhile."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise Conflict("no snapshot was taken since the last was saved")
        try:
            return shards.save(snapshot, self._training.blobs.upload)
        finally:
            snapshot.drop()

    def _answer(self, request: stage_daemon_pb2.TrainRequest) -> stage_daemon_pb2.TrainResponse:
        kind = request.WhichOneof("content")
        if kind == "open":
            self._open(request.open)
            response = training_wire.opened_to_proto(self._states.names)
            self._offer_door(request.open.host, response.opened)
            return response
        if kind == "read_states":
            for name, tensor in self._states.read():
                self._reply(training_wire.state_to_proto(name, tensor), False)
        elif kind == "write_states":
            self._write(training_wire.states_from_proto(request.write_states))
        elif kind == "take_snapshot":
            self._take_snapshot(request.take_snapshot)
        elif kind == "fetch_states":
            self._fetch(request.fetch_states)
        elif kind == "take_fetched":
            if self._fetched is None:
                raise Conflict("no states were fetched")
            fetched, self._fetched = self._fetched, None
            self._write(fetched)
        elif kind == "leave":
            self._end_inlet()
        else:
            raise InvalidRequest(
                "a training request of no known kind, or that cannot be parsed: client and daemon differ in version"
            )
        return stage_daemon_pb2.TrainResponse()

    def _open(self, opened: stage_daemon_pb2.OpenTraining) -> None:
        self.interpreter = None
        settings, output_ids = training_wire.optimizer_from_proto(opened.optimizer), self._training.around.output_ids
        self.interpreter = StepInterpreter(
            self._training.around,
            self._training.weights,
            settings,
            loss_id=opened.loss_value,
            seed=opened.seed or self._training.deployment_id,
            before_update=self._settle,
            # Of those who give outputs.
            choices=choices_from_proto(opened.outputs, len(output_ids)) if output_ids else (),
        )
        self._num_groups = len(settings.groups)

    def _offer_door(self, host: str, opened: stage_daemon_pb2.TrainingOpened) -> None:
        """To a client of this host. Whoever was let in before is let go."""
        self._end_inlet()
        door = self._training.door() if host and self._training.door is not None else None
        if door is not None and door.host == host:
            self._session_id = secrets.randbits(63) or 1
            opened.door.CopyFrom(door)
            opened.session_id = self._session_id

    def _end_inlet(self) -> None:
        with self._at_door:
            self._session_id = 0
            if self._inlet is not None:
                self._inlet.end()
                self._inlet = None

    def _step(
        self, step: stage_daemon_pb2.TrainingStep, microbatches: list[training_wire.Microbatch]
    ) -> stage_daemon_pb2.TrainResponse:
        if self.interpreter is None:
            return _refusal(Conflict("a step came before training was opened"))
        try:
            training_step = training_wire.step_from_proto(
                step, microbatches, self._num_groups, self._training.inputs, self._training.around.lane
            )
            self.interpreter.check(training_step)
        except InvalidRequest as error:
            return _refusal(error)
        finally:
            microbatches.clear()
        return training_wire.outcome_to_proto(self.interpreter.run(training_step))

    def _write(self, tensors: Mapping[TensorKey, torch.Tensor]) -> None:
        self._settle()
        self._states.write(tensors, self.interpreter)

    def _take_snapshot(self, request: stage_daemon_pb2.TakeSnapshot) -> None:
        self._settle()
        self._snapshot = Snapshot(
            self._states.select((*request.states, *request.others), self.interpreter),
            written_by_passes=self._states.written_by_passes,
            others=request.others,
        )
        self._copying = self._snapshot

    def _settle(self) -> None:
        """What is about to be written over has been copied."""
        if self._copying is not None:
            self._copying.settle()
            self._copying = None

    def _fetch(self, request: stage_daemon_pb2.FetchStates) -> None:
        self._fetched = None
        saved = {TensorKey(tensor.name, tensor.optimizer_tensor): tensor for tensor in request.tensors}
        declared = {key: training_wire.declared_from_proto(tensor) for key, tensor in saved.items()}
        here = self._states.check(declared, self.interpreter)
        self._fetched = {key: training_wire.read_saved(saved[key], self._training.blobs.read_range) for key in here}


def _by(inlet: TrainingInlet) -> Reply:
    return lambda response, is_last: inlet.give(response)


def _only_step(
    request: stage_daemon_pb2.TrainRequest, microbatches: list[training_wire.Microbatch]
) -> tuple[stage_daemon_pb2.TrainRequest, list[training_wire.Microbatch]]:
    """Of what came by the door: the supervisor hears of everything else, and its answers may be several."""
    is_step = request.WhichOneof("content") == "step"
    return (request, microbatches) if is_step else (stage_daemon_pb2.TrainRequest(), [])


def _read(asked: Request) -> tuple[stage_daemon_pb2.TrainRequest, list[training_wire.Microbatch]]:
    """A request of no kind where it cannot be parsed."""
    try:
        return training_wire.read_request(*asked)
    except DecodeError:
        return stage_daemon_pb2.TrainRequest(), []


def _refusal(error: Exception) -> stage_daemon_pb2.TrainResponse:
    return stage_daemon_pb2.TrainResponse(failure=failure_from_error(error))
