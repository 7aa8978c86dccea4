"""Training on a worker: what a client asks for is done in order, on a thread of its own, and answered."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Conflict, DaemonError, InvalidRequest
from stage_daemon.runtime.ingress import InputFormat
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
        self._interpreter: StepInterpreter | None = None
        self._num_groups = 0
        self._names = _names(told)

    def submit(self, request: bytes) -> None:
        self._waiting.put(request)

    def take_no_more(self) -> None:
        self._waiting.put(None)

    def run(self) -> None:
        """Returns after `take_no_more`, once the other daemons have been told."""
        while (body := self._waiting.get()) is not None:
            request = stage_daemon_pb2.TrainRequest.FromString(body)
            if request.WhichOneof("content") == "step":
                self._reply(self._step(request.step), True)
                continue
            try:
                self._answer(request)
            except InvalidRequest as error:
                self._reply(_refusal(error), True)
        self._told.around.mail.end()

    def _answer(self, request: stage_daemon_pb2.TrainRequest) -> None:
        kind = request.WhichOneof("content")
        if kind == "open":
            self._open(request.open)
        elif kind == "read_states":
            for name, tensor in self._names.items():
                self._reply(training_wire.state_to_proto(name, tensor), False)
        elif kind == "write_states":
            self._write(training_wire.states_from_proto(request.write_states.states))
        else:
            raise InvalidRequest("a training request of no known kind; client and daemon are of different versions")
        self._reply(stage_daemon_pb2.TrainResponse(), True)

    def _open(self, opened: stage_daemon_pb2.OpenTraining) -> None:
        settings = training_wire.optimizer_from_proto(opened.optimizer)
        self._interpreter = StepInterpreter(
            self._told.around,
            self._told.weights,
            settings,
            loss_id=opened.loss_value,
            seed=opened.seed or self._told.deployment_id,
        )
        self._num_groups = len(settings.groups)

    def _step(self, step: stage_daemon_pb2.TrainingStep) -> stage_daemon_pb2.TrainResponse:
        if self._interpreter is None:
            return _refusal(Conflict("a step came before training was opened"))
        try:
            asked = training_wire.step_from_proto(step, self._num_groups, self._told.inputs)
        except InvalidRequest as error:
            return _refusal(error)
        return training_wire.outcome_to_proto(self._interpreter.run(asked))

    def _write(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Those that are not here are other daemons'."""
        for name, tensor in tensors.items():
            held = self._names.get(name)
            if held is not None and (held.dtype, held.shape) != (tensor.dtype, tensor.shape):
                raise InvalidRequest(
                    f"state {name!r}: found {tensor.dtype} {list(tensor.shape)}, needs {held.dtype} {list(held.shape)}"
                )
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in self._names:
                    self._names[name].copy_(tensor)
        if self._interpreter is not None:
            self._interpreter.pushed()


def _refusal(error: DaemonError) -> stage_daemon_pb2.TrainResponse:
    return stage_daemon_pb2.TrainResponse(failure=failure_from_error(error))


def _names(told: TrainingOf) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for _, stage in sorted(told.around.stages.items()):
        if stage.module is not None:
            found.update(stage.module.states())
    return found
