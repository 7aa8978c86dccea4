"""A deployment's worker as its supervisor sees it: an asyncio handle on a child process.

The child owns the torch state and the process groups, so that its death takes nothing else along. It is forked from a
server that already holds torch, which costs milliseconds where a fresh interpreter costs seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from access.files import TlsFiles
from access.pieces import serialize_in_pieces
from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.control.frame_connection import FrameConnection
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import Conflict, DaemonError, WorkerDied
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.worker import entry
from stage_daemon.worker.failures import error_from_failure
from stage_daemon.worker.frames import Frame, FrameKind

_CONTEXT = get_context("forkserver")
_PRELOADED = ["stage_daemon.worker.preload"]


def preload_forkserver() -> None:
    """Starts the server that workers are forked from; idempotent. Call it early: importing torch takes seconds."""
    _CONTEXT.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()


async def forkserver_is_warm() -> None:
    """Returns once workers are forked at once: before its first fork the server has imported torch."""
    preload_forkserver()
    first = _CONTEXT.Process(target=entry.nothing, daemon=True)
    await asyncio.to_thread(first.start)
    await asyncio.to_thread(first.join)


async def start_with(process: BaseProcess, ours: socket.socket, theirs: socket.socket) -> None:
    """Starts a process that was given the other end of `ours`. Where the caller leaves meanwhile, it ends by itself."""
    starting = asyncio.create_task(asyncio.to_thread(process.start))
    # Not before: by the time that the process gets it, its number could be that of another connection.
    starting.add_done_callback(lambda _: theirs.close())
    try:
        await asyncio.shield(starting)
    except BaseException:
        starting.add_done_callback(lambda _: ours.close())
        raise


class WorkerProcess:
    """One worker process. Use it from the event loop that started it.

    Any call raises the failure that ended the worker once it is dead: the worker's own account where it gave one,
    Conflict where it has drained, else WorkerDied. `exited` then holds the reason in words.
    """

    def __init__(self, *, deployment_id: str, device: str, process: BaseProcess, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        assert process.pid is not None
        self.process_id = process.pid
        self.exited: asyncio.Future[str] = loop.create_future()
        # What the worker said was wrong before it died, with stage, device and edge where it knew them.
        self.failure: planner_pb2.Failure | None = None
        # Where clients of this host reach it once it is connected.
        self.door = stage_daemon_pb2.WorkerDoor()
        # Called with each session whose client leaves too many results unread at the door.
        self.on_unread: Callable[[int], None] = lambda session_id: None
        self._deployment_id = deployment_id
        self._device = device
        self._process = process
        self._connection = FrameConnection(connection)
        self._error: DaemonError | None = None
        self._drained = False
        # By the kind of the answer, in the order of the questions.
        self._asked: dict[FrameKind, deque[asyncio.Future[bytes]]] = {
            FrameKind.METRICS_REPLY: deque(),
            FrameKind.TIMELINE_REPLY: deque(),
            FrameKind.CHOSEN: deque(),
            FrameKind.SNAPSHOT_SAVED: deque(),
        }
        self._replies: dict[FrameKind, asyncio.Queue[Frame | None]] = {}
        self._inputs_taken: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._outputs: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._ended = asyncio.Event()

    @classmethod
    async def start(
        cls,
        *,
        deployment_id: str,
        generation: int,
        device: str,
        blob_address: str,
        tls: TlsFiles | None = None,
        operators: tuple[CustomOperator, ...] = (),
        kept: KeptStates | None = None,
    ) -> WorkerProcess:
        """A worker ready for `load`. `device`: see LocalDevice.torch_device; `blob_address` is the planner's host:port.

        Weights that are `kept` it need not read, and it adds those that it does read.
        """
        preload_forkserver()
        ours, theirs = socket.socketpair()
        process = _CONTEXT.Process(
            target=entry.run,
            args=(theirs, deployment_id, generation, device, blob_address, tls, operators, kept),
            name=f"worker-{deployment_id}",
            daemon=True,
        )
        await start_with(process, ours, theirs)
        worker = cls(deployment_id=deployment_id, device=device, process=process, connection=ours)
        await worker._open()
        return worker

    async def load(
        self, request: stage_daemon_pb2.LoadStagesRequest
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        """Progress until every stage is loaded and checked."""
        replies = self._expect(FrameKind.LOAD_PROGRESS, FrameKind.LOADED)
        await self._write(Frame(kind=FrameKind.LOAD, body=await asyncio.to_thread(serialize_in_pieces, request)))
        while (frame := await self._reply(replies)).kind is FrameKind.LOAD_PROGRESS:
            yield stage_daemon_pb2.LoadStagesResponse.FromString(frame.body)

    async def connect(self, request: stage_daemon_pb2.ConnectStagesRequest) -> None:
        """Returns once every edge of this worker has carried a message, within the request's deadline."""
        replies = self._expect(FrameKind.CONNECTED)
        await self._write(Frame(kind=FrameKind.CONNECT, body=await asyncio.to_thread(serialize_in_pieces, request)))
        self.door = stage_daemon_pb2.WorkerDoor.FromString((await self._reply(replies)).body)

    async def send_input(self, session_id: int, sequence: int, microbatch: bytes) -> None:
        """Hands over a serialized Microbatch; returns once the first stage has taken it, which is the back-pressure.

        Raises Conflict once the worker is draining.
        """
        key = (session_id, sequence)
        if key in self._inputs_taken:
            raise Conflict(f"microbatch {sequence} of session {session_id} is already waiting; send each one once")
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inputs_taken[key] = acknowledged
        try:
            await self._write(
                Frame(kind=FrameKind.INPUT, session_id=session_id, sequence=sequence, body=microbatch),
            )
            await acknowledged
        finally:
            self._inputs_taken.pop(key, None)

    async def outputs(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """(session id, sequence, serialized ReceiveOutputsResponse) in the order of the inputs; ends with the worker.

        The worker runs only a few results ahead of this iterator. One consumer at a time.
        """
        while (frame := await self._outputs.get()) is not None:
            with contextlib.suppress(DaemonError):
                await self._write(Frame(kind=FrameKind.OUTPUT_TAKEN))
            yield frame.session_id, frame.sequence, frame.body
        self._outputs.put_nowait(None)

    def training_replies(self) -> TrainingReplies:
        """To a request. One at a time: the next once the last reply has been read."""
        return TrainingReplies(self, self._expect(FrameKind.TRAINED))

    async def ask_to_train(self, request: bytes, before: Callable[[], None]) -> None:
        """Hands over a serialized TrainRequest, and calls `before` when it begins to."""
        await self._write(Frame(kind=FrameKind.TRAIN, body=request), before)

    async def metrics(self) -> list[stage_daemon_pb2.StageMetrics]:
        """One record per loaded stage. The worker's main thread answers: one that hangs does not.

        Replies come in the order of the questions; that of a caller who has left is dropped.
        """
        reply = await self._ask(Frame(kind=FrameKind.METRICS), FrameKind.METRICS_REPLY)
        return list(stage_daemon_pb2.GetDaemonStatusResponse.FromString(reply).stages)

    async def timelines(self, request: stage_daemon_pb2.GetTimelineRequest) -> stage_daemon_pb2.GetTimelineResponse:
        """Only its threads: none before the stages are connected."""
        frame = Frame(kind=FrameKind.TIMELINE, body=request.SerializeToString())
        reply = await self._ask(frame, FrameKind.TIMELINE_REPLY)
        return stage_daemon_pb2.GetTimelineResponse.FromString(reply)

    async def choose(self, opened: stage_daemon_pb2.OpenSession) -> None:
        """Returns once the session's results hold what it chose; without outputs, everything again.

        Raises InvalidRequest for an output that is not there.
        """
        refusal = await self._ask(Frame(kind=FrameKind.CHOOSE, body=opened.SerializeToString()), FrameKind.CHOSEN)
        if refusal:
            raise error_from_failure(planner_pb2.Failure.FromString(refusal))

    async def save_snapshot(self) -> stage_daemon_pb2.SaveSnapshotResponse:
        """Takes as long as the upload does; one at a time. Raises why it was not saved."""
        reply = await self._ask(Frame(kind=FrameKind.SAVE_SNAPSHOT), FrameKind.SNAPSHOT_SAVED)
        return stage_daemon_pb2.SaveSnapshotResponse.FromString(reply)

    async def drain(self) -> None:
        """Takes no more inputs, and returns once everything in flight has left and been taken; the worker then exits.

        A worker without the first stage waits for the end to come down its edges: drain all workers at the same time.
        """
        replies = self._expect(FrameKind.DRAINED)
        await self._write(Frame(kind=FrameKind.DRAIN))
        await self._reply(replies)

    def kill(self) -> None:
        """SIGKILL; idempotent. Nothing gentler frees a worker that waits on a dead peer."""
        if not self.exited.done():
            self._process.kill()

    async def next_reply(self, replies: asyncio.Queue[Frame | None]) -> Frame:
        return await self._reply(replies)

    async def _open(self) -> None:
        self._reading = asyncio.create_task(self._read())
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._on_exit)

    async def _read(self) -> None:
        while (frame := await self._connection.read()) is not None:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.OUTPUT:
            self._outputs.put_nowait(frame)
        elif frame.kind in (FrameKind.INPUT_TAKEN, FrameKind.INPUT_REFUSED):
            self._answer_input(frame)
        elif (pending := self._asked.get(frame.kind)) is not None:
            reply = pending.popleft()
            if not reply.done():
                reply.set_result(frame.body)
        elif frame.kind is FrameKind.SNAPSHOT_NOT_SAVED:
            reply = self._asked[FrameKind.SNAPSHOT_SAVED].popleft()
            if not reply.done():
                reply.set_exception(error_from_failure(planner_pb2.Failure.FromString(frame.body)))
        elif frame.kind is FrameKind.RESULTS_UNREAD:
            self.on_unread(frame.session_id)
        elif frame.kind is FrameKind.FAILED:
            self.failure = planner_pb2.Failure.FromString(frame.body)
        elif (replies := self._replies.get(frame.kind)) is not None:
            # Here, since the worker may be gone before whoever drains it goes on.
            self._drained |= frame.kind is FrameKind.DRAINED
            replies.put_nowait(frame)

    def _answer_input(self, frame: Frame) -> None:
        acknowledged = self._inputs_taken.get((frame.session_id, frame.sequence))
        if acknowledged is None or acknowledged.done():
            return
        if frame.kind is FrameKind.INPUT_TAKEN:
            acknowledged.set_result(None)
        else:
            acknowledged.set_exception(error_from_failure(planner_pb2.Failure.FromString(frame.body)))

    def _expect(self, *kinds: FrameKind) -> asyncio.Queue[Frame | None]:
        replies: asyncio.Queue[Frame | None] = asyncio.Queue()
        for kind in kinds:
            self._replies[kind] = replies
        return replies

    async def _reply(self, replies: asyncio.Queue[Frame | None]) -> Frame:
        frame = await replies.get()
        if frame is None:
            raise self._gone()
        return frame

    async def _ask(self, question: Frame, kind: FrameKind) -> bytes:
        """The body of the answer, of that kind."""
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        await self._write(question, lambda: self._asked[kind].append(reply))
        return await reply

    async def _write(self, frame: Frame, before: Callable[[], None] = lambda: None) -> None:
        """Calls `before` just before, so that questions and those who wait for answers have one order."""
        if self._ended.is_set():
            raise self._gone()
        try:
            await self._connection.write(frame, before)
        except ConnectionError:
            await self._ended.wait()
            raise self._gone() from None

    def _gone(self) -> DaemonError:
        return self._error or WorkerDied(f"the worker of {self._deployment_id} has exited")

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        # The socket may still hold what the worker said last.
        await self._reading
        self._connection.close()
        self._process.join()
        reason = self._exit_reason()
        self._error = self._ending_error(reason)
        self._ended.set()
        for replies in self._replies.values():
            replies.put_nowait(None)
        pending_replies = (reply for replies in self._asked.values() for reply in replies)
        waiting: list[asyncio.Future[Any]] = [*self._inputs_taken.values(), *pending_replies]
        for reply in waiting:
            if not reply.done():
                reply.set_exception(self._gone())
        self._outputs.put_nowait(None)
        self.exited.set_result(reason)
        # Its pipes; those that are held in a circle would stay until garbage is collected.
        self._process.close()

    def _ending_error(self, reason: str) -> DaemonError:
        if self.failure is not None:
            return error_from_failure(self.failure)
        if self._is_drained():
            # What it was sent and has not answered came after all that it let out.
            return Conflict("the deployment has been draining and takes no more microbatches")
        return WorkerDied(reason)

    def _is_drained(self) -> bool:
        return self._drained and self._process.exitcode == 0

    def _exit_reason(self) -> str:
        if self.failure is not None:
            return self.failure.message
        code = self._process.exitcode
        if self._is_drained():
            return "drained"
        who = f"worker {self.process_id} of {self._deployment_id} on {self._device}"
        if code is not None and code < 0:
            return f"{who} was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"{who} exited with code {code}"


class TrainingReplies:
    """Serialized TrainResponses to one request."""

    def __init__(self, worker: WorkerProcess, replies: asyncio.Queue[Frame | None]) -> None:
        self._worker = worker
        self._replies = replies
        # The worker will reply, whether anybody waits for that or not.
        self.is_asked = False
        self.is_over = False

    async def ask(self, request: bytes) -> None:
        await self._worker.ask_to_train(request, self._begin)

    def _begin(self) -> None:
        self.is_asked = True

    async def next(self) -> bytes:
        frame = await self._worker.next_reply(self._replies)
        self.is_over = frame.sequence == 0
        return frame.body
