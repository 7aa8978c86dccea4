"""Training on a worker: what a client asks for is done in order, on a thread of its own, and answered."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Conflict, DaemonError, InvalidRequest
from stage_daemon.runtime.ingress import InputFormat
from stage_daemon.runtime.training.states import DeviceStates
from stage_daemon.runtime.training.step import StepInterpreter, TrainingSurroundings
from stage_daemon.runtime.training.weights import Weights
from stage_daemon.worker import training_wire
from stage_daemon.worker.failures import failure_from_error

# A response, and whether it is the last to its request.
Reply = Callable[[stage_daemon_pb2.TrainResponse, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOf:
    """`inputs` where the first stage is."""

    deployment_id: str
    around: TrainingSurroundings
    weights: Weights
    inputs: InputFormat | None


class Training:
    """A request that cannot be done is answered with a failure; what takes an edge down ends the worker."""

    def __init__(self, told: TrainingOf, reply: Reply) -> None:
        self._told = told
        self._reply = reply
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.interpreter: StepInterpreter | None = None
        self._num_groups = 0
        self._states = DeviceStates(told.around.stages)

    def submit(self, request: bytes) -> None:
        self._waiting.put(request)

    def take_no_more(self) -> None:
        self._waiting.put(None)

    def run(self) -> None:
        """Returns after `take_no_more`, once the other daemons have been told."""
        while (body := self._waiting.get()) is not None:
            self.do(stage_daemon_pb2.TrainRequest.FromString(body))
        self._told.around.mail.end()

    def do(self, request: stage_daemon_pb2.TrainRequest) -> None:
        if request.WhichOneof("content") == "step":
            self._reply(self._step(request.step), True)
            return
        try:
            self._answer(request)
        except InvalidRequest as error:
            self._reply(_refusal(error), True)

    def _answer(self, request: stage_daemon_pb2.TrainRequest) -> None:
        kind = request.WhichOneof("content")
        if kind == "open":
            self._open(request.open)
        elif kind == "read_states":
            for key, tensor in self._states.read(self.interpreter, with_optimizer=request.read_states.with_optimizer):
                self._reply(training_wire.state_to_proto(key, tensor), False)
        elif kind == "write_states":
            self._write(request.write_states)
        else:
            raise InvalidRequest("a training request of no known kind; client and daemon are of different versions")
        self._reply(stage_daemon_pb2.TrainResponse(), True)

    def _open(self, opened: stage_daemon_pb2.OpenTraining) -> None:
        settings = training_wire.optimizer_from_proto(opened.optimizer)
        self.interpreter = StepInterpreter(
            self._told.around,
            self._told.weights,
            settings,
            loss_id=opened.loss_value,
            seed=opened.seed or self._told.deployment_id,
        )
        self._num_groups = len(settings.groups)

    def _step(self, step: stage_daemon_pb2.TrainingStep) -> stage_daemon_pb2.TrainResponse:
        if self.interpreter is None:
            return _refusal(Conflict("a step came before training was opened"))
        try:
            asked = training_wire.step_from_proto(step, self._num_groups, self._told.inputs)
        except InvalidRequest as error:
            return _refusal(error)
        return training_wire.outcome_to_proto(self.interpreter.run(asked))

    def _write(self, request: stage_daemon_pb2.WriteStates) -> None:
        tensors = training_wire.states_from_proto(request)
        if not request.only_check:
            self._states.write(tensors, self.interpreter)
            return
        for key in self._states.check(tensors, self.interpreter):
            self._reply(training_wire.state_to_proto(key, None), False)


def _refusal(error: DaemonError) -> stage_daemon_pb2.TrainResponse:
    return stage_daemon_pb2.TrainResponse(failure=failure_from_error(error))
