"""A worker's stages once connected: lanes on their threads, inputs in, results out."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from access.files import TlsFiles
from access.peers import DAEMON_ROLE
from access.streams import StreamTls
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import Conflict, DaemonError, InvalidRequest, StageFailed
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.runtime.actions import Kind
from stage_daemon.runtime.choices import Choices
from stage_daemon.runtime.device_lane import interpreter_of
from stage_daemon.runtime.egress import Egress, Result
from stage_daemon.runtime.ingress import Ingress, InputFormat, Submission
from stage_daemon.runtime.interpreter import (
    Surroundings,
    channels_in_turn,
    is_fed,
    runs_a_stage,
    stage_of,
)
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import COMPUTE, Timeline
from stage_daemon.runtime.training.mail import Mail
from stage_daemon.runtime.training.passes_ahead import passes_of
from stage_daemon.runtime.training.step import TrainingSurroundings, timed_actions
from stage_daemon.runtime.training.weights import Weights
from stage_daemon.transport.channel import FailureCallback
from stage_daemon.transport.connect import Channels, Meeting, host_memory_bytes, open_channels
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import copies_of, moved, streams_of
from stage_daemon.transport.turn import EVERY
from stage_daemon.worker import training_wire, wire
from stage_daemon.worker.choices_wire import choices_from_proto
from stage_daemon.worker.door import Door
from stage_daemon.worker.failures import failure_from_error
from stage_daemon.worker.training import Blobs, Reply, Training, TrainingOf
from stage_daemon.worker.training_inlet import Request

# A pass is not a wait, and may well take longer than one; beyond this many deadlines it is taken to hang.
PASS_DEADLINES = 10
_OF_CLIENTS = (Kind.TAKE_INPUT, Kind.GIVE_OUTPUT)
_FOR_INFERENCE = "the plan is for inference; deploy one with a training schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Called from the pipeline's threads. `on_result` may block, which holds the pipeline.

    `on_result` is for sessions that did not come through the door, `on_unread` for those of the door: see `Door`.
    """

    on_failure: FailureCallback
    on_taken: Callable[[Submission], None]
    on_result: Callable[[Result], None]
    on_unread: Callable[[int], None]
    on_trained: Reply


class Pipeline:
    """Built connected: every edge has carried a message by the time that the constructor returns."""

    def __init__(
        self,
        request: stage_daemon_pb2.ConnectStagesRequest,
        stages: Mapping[int, Stage],
        metrics: Mapping[int, StageMetrics],
        device: torch.device,
        callbacks: Callbacks,
        blobs: Blobs,
        secret: bytes = b"",
        tls: TlsFiles | None = None,
    ) -> None:
        _check_request(request, stages)
        self._callbacks = callbacks
        self._metrics = metrics
        self._deadline_seconds = request.deadline_seconds
        symbols = wire.symbols_from_proto(request.symbols)
        edges = {
            edge.id: wire.edge_from_proto(edge, request.deployment_id, request.generation, symbols)
            for edge in request.edges
        }
        self._stages = {
            index: dataclasses.replace(stage, device_id=request.device_id) for index, stage in stages.items()
        }
        self._lane_of_steps = (
            training_wire.training_from_proto(request.training, request.deployment_id, request.generation, symbols)
            if request.HasField("training")
            else None
        )
        copies = copies_of(device)
        self._input_format = InputFormat(
            values=wire.declared_from_proto(request.inputs), symbols=symbols, copies=copies
        )
        self._ingress = Ingress(callbacks.on_taken)
        self.door = Door(
            self._ingress,
            self._input_format,
            callbacks.on_unread,
            self._foreign_inputs(request),
            lambda session_id, connection: self._training is not None and self._training.let_in(session_id, connection),
        )
        self._training: Training | None = None
        self._choices = Choices()
        self._num_outputs = len(request.outputs)
        self._egress = Egress(max(1, request.microbatches_in_flight), self.door.give, self._choices.apply, copies)
        self._lanes = tuple(map(wire.lane_from_proto, request.lanes))
        self._gives_output = any(action.kind is Kind.GIVE_OUTPUT for lane in self._lanes for action in lane)
        self._channels: Channels = open_channels(
            (*edges.values(), *(training_wire.edges_to_connect(self._lane_of_steps) if self._lane_of_steps else ())),
            request.device_id,
            Meeting(
                address=request.rendezvous_address,
                deadline_seconds=request.deadline_seconds,
                microbatches_in_flight=max(1, request.microbatches_in_flight),
                device=device,
                on_failure=callbacks.on_failure,
                max_tensor_bytes=host_memory_bytes(),
                secret=secret,
                tls=StreamTls(files=tls, peer_identity=request.daemon_identity or DAEMON_ROLE) if tls else None,
            ),
        )
        streams = streams_of(device)
        self._blobs = blobs
        self._passes = passes_of(timed_actions(self._lane_of_steps), streams) if self._lane_of_steps else None
        if self._lane_of_steps:
            self._training = self._make_training(request, edges)
        self._around = Surroundings(
            deployment_id=request.deployment_id,
            stages=_called_directly(_evaluating(self._stages) if self._training else self._stages),
            edges=edges,
            senders=self._channels.senders,
            receivers=self._channels.receivers,
            metrics=metrics,
            input_ids=tuple(value.value for value in request.inputs),
            output_ids=tuple(value.value for value in request.outputs),
            ingress=self._ingress,
            egress=self._egress,
            streams=streams,
        )
        turns = [wire.turn_from_proto(lane.turn) if lane.HasField("turn") else EVERY for lane in request.lanes]
        self._interpreters = tuple(
            interpreter_of(lane, self._around, turn) for lane, turn in zip(self._lanes, turns, strict=True)
        )
        # One for each thread; those of training steps are the last.
        self.timelines: tuple[Timeline, ...] = (
            *(timeline for interpreter in self._interpreters for timeline in interpreter.timelines),
            *(self._passes.timelines if self._passes else ()),
        )

    def start(self) -> None:
        self._fed_threads = []
        for lane, interpreter in zip(self._lanes, self._interpreters, strict=True):
            threads = [self._spawn(name, run, interpreter.stage) for name, run in interpreter.threads.items()]
            if is_fed(lane):
                self._fed_threads += threads
        if self._gives_output:
            self._fed_threads.append(self._spawn("results", self._give_results, None))
        if self._training is not None and self._passes is not None:
            for name, run in {"training": self._training.run, **self._passes.threads()}.items():
                self._fed_threads.append(self._spawn(name, run, None))
        self._spawn("watch", self._watch_passes, None)

    def train(self, request: bytes) -> None:
        """Answered by `on_trained`."""
        if self._training is not None:
            self._training.submit(Request(request))
        else:
            failure = failure_from_error(Conflict(_FOR_INFERENCE))
            self._callbacks.on_trained(stage_daemon_pb2.TrainResponse(failure=failure), True)

    def choose(self, opened: stage_daemon_pb2.OpenSession) -> None:
        """What the session's results hold from now on. Raises InvalidRequest for outputs that are not there."""
        self._choices.choose(opened.session_id, choices_from_proto(opened.outputs, self._num_outputs))

    def save_snapshot(self) -> stage_daemon_pb2.SaveSnapshotResponse:
        """Takes as long as the upload does."""
        if self._training is None:
            raise Conflict(_FOR_INFERENCE)
        return self._training.save_snapshot()

    def submit(self, session_id: int, sequence: int, microbatch: bytes) -> None:
        """Raises Conflict once draining."""

        def read() -> tuple[Item, ...]:
            return self._input_format.read(wire.read_inputs(microbatch))

        self._ingress.submit(Submission(session_id=session_id, sequence=sequence, read=read))

    def take_no_more(self) -> None:
        """What is submitted from now on is refused; idempotent."""
        self._ingress.close()

    def drain(self) -> None:
        """Returns once the end has passed through all lanes and every result is handed over."""
        self.take_no_more()
        if self._training is not None:
            self._training.take_no_more()
        for thread in self._fed_threads:
            thread.join()
        self.door.flush()
        self._channels.pulse.stop()

    def _foreign_inputs(self, request: stage_daemon_pb2.ConnectStagesRequest) -> frozenset[int]:
        """Positions of the inputs whose floats every stage here can read from memory that a client may write to."""
        if self._lane_of_steps is not None:
            return frozenset()
        return frozenset(
            position
            for position, value in enumerate(request.inputs)
            if all(
                value.value in stage.foreign_input_ids
                for stage in self._stages.values()
                if value.value in stage.input_ids
            )
        )

    def _make_training(self, request: stage_daemon_pb2.ConnectStagesRequest, of_lanes: Mapping[int, Edge]) -> Training:
        copies = self._input_format.copies
        assert self._lane_of_steps is not None
        assert self._passes is not None
        mail = Mail(
            {edge_id: end for edge_id, end in self._channels.senders.items() if edge_id not in of_lanes},
            {edge_id: end for edge_id, end in self._channels.receivers.items() if edge_id not in of_lanes},
        )
        around = TrainingSurroundings(
            lane=self._lane_of_steps,
            stages=self._stages,
            metrics=self._metrics,
            passes=self._passes,
            mail=mail,
            input_ids=tuple(value.value for value in request.inputs),
            output_ids=tuple(value.value for value in request.outputs),
            to_host=tuple if copies is None else lambda items: moved(items, copies.to_host),
        )
        training = TrainingOf(
            deployment_id=request.deployment_id,
            around=around,
            weights=Weights(
                self._stages, self._lane_of_steps.trained, self._lane_of_steps.ties, self._lane_of_steps.copies
            ),
            inputs=self._input_format,
            blobs=self._blobs,
            door=self.door.address,
        )
        return Training(training, self._callbacks.on_trained)

    def _spawn(self, name: str, work: Callable[[], None], stage: int | None) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work, stage), name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None], stage: int | None) -> None:
        try:
            work()
        except DaemonError as error:
            self._callbacks.on_failure(error)
        except Exception as error:
            self._callbacks.on_failure(StageFailed(f"{type(error).__name__}: {error}", stage=stage))

    def _give_results(self) -> None:
        while (result := self._egress.take()) is not None:
            self._callbacks.on_result(result)

    def _watch_passes(self) -> None:
        limit_seconds = PASS_DEADLINES * self._deadline_seconds
        while True:
            time.sleep(self._deadline_seconds)
            for timeline in self.timelines:
                span = timeline.under_way()
                if (
                    span is not None
                    and span.timed.action.kind in COMPUTE
                    and time.monotonic() - span.since_seconds > limit_seconds
                ):
                    raise StageFailed(
                        f"{self._stages[span.timed.stage].name} has been running one microbatch for over"
                        f" {limit_seconds:g} s: it hangs, or the deployment needs a longer deadline",
                        stage=span.timed.stage,
                        device_id=self._stages[span.timed.stage].device_id,
                        action=span.timed.action.kind.name.lower(),
                    )


def _evaluating(stages: Mapping[int, Stage]) -> dict[int, Stage]:
    """What lanes run where steps train: without what is done in training only, and on the same weights."""
    return {
        index: dataclasses.replace(stage, run=stage.module.evaluating()) if stage.module else stage
        for index, stage in stages.items()
    }


def _called_directly(stages: Mapping[int, Stage]) -> dict[int, Stage]:
    return {
        index: dataclasses.replace(stage, run=stage.run.function()) if isinstance(stage.run, StageModule) else stage
        for index, stage in stages.items()
    }


def _check_request(request: stage_daemon_pb2.ConnectStagesRequest, stages: Mapping[int, Stage]) -> None:
    if request.deadline_seconds <= 0:
        raise InvalidRequest(f"a deadline of {request.deadline_seconds} s, needs more than 0")
    edge_ids = {edge.id for edge in request.edges}
    for lane in map(wire.lane_from_proto, request.lanes):
        if not (runs_a_stage(lane) or any(action.kind in _OF_CLIENTS for action in lane)):
            raise InvalidRequest("a lane that runs no stage, takes no input and gives no output")
        stage = stage_of(lane)
        needed = (stage, *(action.index for action in lane if action.kind is Kind.FORWARD))
        missing = [index for index in needed if index not in stages]
        if missing:
            raise Conflict(f"lane of stage {missing[0]}: this worker has loaded {sorted(stages)}")
        messages = [action for action in lane if action.kind in (Kind.RECEIVE, Kind.SEND)]
        unknown = {edge_id for action in messages for edge_id in channels_in_turn(action)} - edge_ids
        if unknown:
            raise InvalidRequest(f"lane of stage {stage}: edges {sorted(unknown)} are not in the request")
