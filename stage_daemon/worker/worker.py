"""Serves one supervisor: reads frames on the main thread and works on others, so that its end is always noticed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from access.files import TlsFiles
from protos.v1 import stage_daemon_pb2
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import Conflict, DaemonError
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.loader.operators import allow_operators
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import Submission
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.worker import timeline_wire, wire
from stage_daemon.worker.blobs import BlobClient
from stage_daemon.worker.failures import failure_from_error
from stage_daemon.worker.frames import Frame, FrameKind, read_frame, write_frame
from stage_daemon.worker.loading import load_stages
from stage_daemon.worker.pipeline import Callbacks, Pipeline
from stage_daemon.worker.threads import use_threads

# Results that the supervisor has been sent and that no client has taken yet.
MAX_OUTPUTS_AHEAD = 4


class Worker:
    """One deployment's stages on one device. The first failure is told and ends the process."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        deployment_id: str,
        generation: int,
        device: str,
        blob_address: str,
        tls: TlsFiles | None = None,
        operators: tuple[CustomOperator, ...] = (),
        kept_states: KeptStates | None = None,
    ) -> None:
        self._connection = connection
        self._deployment_id = deployment_id
        self._generation = generation
        self._device = torch.device(device)
        self._blob_address = blob_address
        self._tls = tls
        self._operators = operators
        self._kept_states = kept_states
        self._secret = b""
        self._write_lock = threading.Lock()
        self._failing = threading.Lock()
        self._stages: Mapping[int, Stage] = {}
        self._metrics: dict[int, StageMetrics] = {}
        self._pipeline: Pipeline | None = None
        self._outputs_ahead = threading.Semaphore(MAX_OUTPUTS_AHEAD)

    def serve(self) -> None:
        """Returns once the supervisor is gone."""
        while self._handle_next():
            pass

    def _handle_next(self) -> bool:
        """A call of its own, so that no large frame is held until the next comes."""
        frame = read_frame(self._connection)
        if frame is not None:
            self._handle(frame)
        return frame is not None

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.INPUT:
            self._take_input(frame)
        elif frame.kind is FrameKind.OUTPUT_TAKEN:
            self._outputs_ahead.release()
        elif frame.kind is FrameKind.TRAIN:
            self._train(frame.body)
        elif frame.kind is FrameKind.CHOOSE:
            self._choose(frame.body)
        elif frame.kind is FrameKind.SAVE_SNAPSHOT:
            self._start(self._save_snapshot, frame.body)
        elif frame.kind is FrameKind.METRICS:
            timelines = self._pipeline.timelines if self._pipeline else ()
            status = wire.metrics_to_proto(self._deployment_id, os.getpid(), self._metrics, timelines)
            self._write(Frame(kind=FrameKind.METRICS_REPLY, body=status.SerializeToString()))
        elif frame.kind is FrameKind.TIMELINE:
            request = stage_daemon_pb2.GetTimelineRequest.FromString(frame.body)
            reply = timeline_wire.timelines_to_proto(self._pipeline.timelines if self._pipeline else (), request)
            self._write(Frame(kind=FrameKind.TIMELINE_REPLY, body=reply.SerializeToString()))
        elif frame.kind is FrameKind.LOAD:
            self._start(self._load, frame.body)
        elif frame.kind is FrameKind.CONNECT:
            self._start(self._connect, frame.body)
        elif frame.kind is FrameKind.DRAIN:
            if self._pipeline is not None:
                # Here, so that whatever comes after this frame is refused.
                self._pipeline.take_no_more()
            self._start(self._drain, frame.body)

    def _start(self, work: Callable[[bytes], None], body: bytes) -> None:
        def guarded() -> None:
            try:
                work(body)
            except Exception as error:
                self._fail(error)

        threading.Thread(target=guarded, name=work.__name__, daemon=True).start()

    def _load(self, body: bytes) -> None:
        request = stage_daemon_pb2.LoadStagesRequest.FromString(body)
        allow_operators(self._operators)
        use_threads(self._device, request.num_threads, request.workers_on_host)
        self._blob_address = request.blob_address or self._blob_address
        reader = BlobClient(self._blob_address, self._tls)
        self._secret = request.secret
        self._stages = load_stages(request, reader, self._device, self._tell_progress, self._kept_states)
        reader.close()
        self._metrics = {stage: StageMetrics() for stage in self._stages}
        self._write(Frame(kind=FrameKind.LOADED))

    def _tell_progress(self, progress: stage_daemon_pb2.LoadStagesResponse) -> None:
        self._write(Frame(kind=FrameKind.LOAD_PROGRESS, body=progress.SerializeToString()))

    def _connect(self, body: bytes) -> None:
        request = stage_daemon_pb2.ConnectStagesRequest.FromString(body)
        if request.generation != self._generation or request.deployment_id != self._deployment_id:
            raise Conflict(
                f"asked to connect {request.deployment_id} generation {request.generation}, this worker holds"
                f" {self._deployment_id} generation {self._generation}"
            )
        callbacks = Callbacks(
            on_failure=self._fail,
            on_taken=self._tell_taken,
            on_result=self._give_result,
            on_unread=self._tell_unread,
            on_trained=self._tell_trained,
        )
        # Connects where training saves or resumes.
        blobs = BlobClient(self._blob_address, self._tls)
        self._pipeline = Pipeline(
            request, self._stages, self._metrics, self._device, callbacks, blobs, self._secret, self._tls
        )
        self._pipeline.start()
        self._write(Frame(kind=FrameKind.CONNECTED, body=self._pipeline.door.address().SerializeToString()))

    def _take_input(self, frame: Frame) -> None:
        if self._pipeline is None:
            self._fail(Conflict("a microbatch came before the stages were connected"))
            return
        try:
            self._pipeline.submit(frame.session_id, frame.sequence, frame.body)
        except Conflict as error:
            refusal = failure_from_error(error).SerializeToString()
            self._write(
                Frame(kind=FrameKind.INPUT_REFUSED, session_id=frame.session_id, sequence=frame.sequence, body=refusal)
            )

    def _choose(self, body: bytes) -> None:
        refusal = b""
        try:
            if self._pipeline is None:
                raise Conflict("a session chose its outputs before the stages were connected")
            self._pipeline.choose(stage_daemon_pb2.OpenSession.FromString(body))
        except DaemonError as error:
            refusal = failure_from_error(error).SerializeToString()
        self._write(Frame(kind=FrameKind.CHOSEN, body=refusal))

    def _train(self, body: bytes) -> None:
        if self._pipeline is None:
            self._fail(Conflict("a training request came before the stages were connected"))
        else:
            self._pipeline.train(body)

    def _save_snapshot(self, _: bytes) -> None:
        try:
            if self._pipeline is None:
                raise Conflict("a snapshot is to be saved before the stages were connected")
            saved = self._pipeline.save_snapshot()
        except Exception as error:
            self._write(Frame(kind=FrameKind.SNAPSHOT_NOT_SAVED, body=failure_from_error(error).SerializeToString()))
        else:
            self._write(Frame(kind=FrameKind.SNAPSHOT_SAVED, body=saved.SerializeToString()))

    def _tell_trained(self, response: stage_daemon_pb2.TrainResponse, is_last: bool) -> None:
        self._write(Frame(kind=FrameKind.TRAINED, sequence=0 if is_last else 1, body=response.SerializeToString()))

    def _tell_taken(self, submission: Submission) -> None:
        self._write(Frame(kind=FrameKind.INPUT_TAKEN, session_id=submission.session_id, sequence=submission.sequence))

    def _give_result(self, result: Result) -> None:
        buffers = wire.result_buffers(result)
        self._outputs_ahead.acquire()
        self._write(Frame(kind=FrameKind.OUTPUT, session_id=result.session_id, sequence=result.sequence), buffers)

    def _tell_unread(self, session_id: int) -> None:
        self._write(Frame(kind=FrameKind.RESULTS_UNREAD, session_id=session_id))

    def _drain(self, body: bytes) -> None:
        if self._pipeline is not None:
            self._pipeline.drain()
        for _ in range(MAX_OUTPUTS_AHEAD):
            self._outputs_ahead.acquire()
        self._write(Frame(kind=FrameKind.DRAINED))
        os._exit(0)

    def _fail(self, error: Exception) -> None:
        """Tells the supervisor and ends the process; whoever comes second waits for that."""
        self._failing.acquire()
        self._write(Frame(kind=FrameKind.FAILED, body=failure_from_error(error).SerializeToString()))
        os._exit(1)

    def _write(self, frame: Frame, more: Sequence[bytes | memoryview] = ()) -> None:
        try:
            with self._write_lock:
                write_frame(self._connection, frame, more)
        except OSError:
            # The supervisor is gone, and with it the reason to live.
            os._exit(1)
