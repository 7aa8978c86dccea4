"""One deployment on this daemon: its life, its worker, its clients' sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import structlog

from access.files import TlsFiles
from protos.v1 import stage_daemon_pb2
from stage_daemon.control.lifecycle import Life, Phase, Trigger, advance
from stage_daemon.control.microbatches import most_training_bytes
from stage_daemon.control.rendezvous import Rendezvous
from stage_daemon.control.sequences import Sequences
from stage_daemon.control.sessions import Session, Sessions
from stage_daemon.control.worker_process import TrainingReplies, WorkerProcess
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import Cancelled, Conflict, DaemonError, Released, WorkerDied, WorkerHung
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.worker.failures import error_from_failure
from stage_daemon.worker.own_device import name_in_worker

# A worker that has not said by then is left out of the status.
METRICS_SECONDS = 1.0
# One miss may be the supervisor's own: it reads late where its machine stood still.
MISSES_UNTIL_HUNG = 2
# While it answers, within the time of one miss: what hangs has done so for no longer than a share of that unasked.
ASKS_PER_MISS = 4

_LEAVE = stage_daemon_pb2.TrainRequest(leave=stage_daemon_pb2.LeaveTraining()).SerializeToString()

log = structlog.get_logger(__name__)


class HostedDeployment:
    """Created LOADING. `loading` is held while it loads; `on_change` is called whenever something happened that the
    planner should hear of at once."""

    def __init__(
        self,
        *,
        life: Life,
        device_id: str,
        torch_device: str,
        worker_silence_seconds: float,
        loading: asyncio.Semaphore,
        on_change: Callable[[], None],
        tls: TlsFiles | None = None,
        secret: bytes = b"",
        operators: tuple[CustomOperator, ...] = (),
        kept: KeptStates | None = None,
    ) -> None:
        self.life = life
        self.sessions = Sessions(life.deployment_id)
        self._sequences = Sequences(life.deployment_id)
        self.connection = stage_daemon_pb2.ConnectStagesRequest()
        # Of a message that asks for training, once the stages are connected.
        self.most_training_bytes = 0.0
        # Whoever knows it belongs to the deployment; empty where the planner gave none.
        self.secret = secret
        # The weights that its worker loads, where the next generation may need them.
        self.kept = kept
        self._device_id = device_id
        self._torch_device = torch_device
        self._worker_silence_seconds = worker_silence_seconds
        self._loading = loading
        self._loaded = stage_daemon_pb2.LoadStagesRequest()
        self._on_change = on_change
        self._tls = tls
        self._operators = operators
        self._opening: asyncio.Task[Rendezvous] | None = None
        self._worker: WorkerProcess | None = None
        self._draining: asyncio.Task[None] | None = None
        self._senders: set[int] = set()
        # By stage, which of its copies is here; none of a stage without copies.
        self._copies: dict[int, int] = {}
        self._is_training = False
        self._is_saving = False
        self._saving: asyncio.Task[stage_daemon_pb2.SaveSnapshotResponse] | None = None
        self._unfinished: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def takes_inputs(self) -> bool:
        return _does(self.connection, stage_daemon_pb2.ACTION_KIND_TAKE_INPUT)

    @property
    def gives_outputs(self) -> bool:
        return _does(self.connection, stage_daemon_pb2.ACTION_KIND_GIVE_OUTPUT)

    async def load(
        self, request: stage_daemon_pb2.LoadStagesRequest
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        """A failure ends the deployment here; so does a caller that goes away, for it would never connect it."""
        self._loaded = request
        self._copies = {module.stage: module.copy for module in request.stages if module.HasField("copy")}
        try:
            async with self._loading:
                worker = await self._start_worker(request)
                async for response in worker.load(request):
                    yield response
            self.life = advance(self.life, Trigger.LOADED)
        except (asyncio.CancelledError, GeneratorExit):
            self.fail(Cancelled("the planner went away while the stages were loading"))
            raise
        except Exception as error:
            raise self.fail(error) from error

    async def open_rendezvous(self, host: str) -> int:
        """The port of the store; the same one if asked again."""
        self._check_not_ended()
        if self._opening is None:
            # It goes on if the caller leaves, so that whatever is opened is closed with the deployment.
            self._opening = asyncio.create_task(Rendezvous.open(host, self.secret))
        try:
            rendezvous = await asyncio.shield(self._opening)
        except DaemonError:
            self._opening = None
            raise
        self._check_not_ended()
        return rendezvous.port

    async def connect(self, request: stage_daemon_pb2.ConnectStagesRequest) -> None:
        """Raises Conflict unless loaded; another failure ends the deployment here."""
        self.life = advance(self.life, Trigger.CONNECT)
        assert self._worker is not None
        self.connection = request
        try:
            self.most_training_bytes = await asyncio.to_thread(most_training_bytes, request, self._loaded)
            self._loaded.Clear()
            await self._worker.connect(request)
            self.life = advance(self.life, Trigger.CONNECTED)
        except asyncio.CancelledError:
            self.fail(Cancelled("the planner went away while the stages were connecting"))
            raise
        except Exception as error:
            raise self.fail(error) from error
        if self.gives_outputs:
            self._spawn(self._deliver_outputs(self._worker))

    async def release(self, *, drain_seconds: float) -> None:
        """Lets go at once, or, where it is running, after what is in flight has left or the seconds are over.

        Who asks for a drain that is under way waits for that one.
        """
        if drain_seconds > 0 and self.life.phase is Phase.RUNNING:
            self.life = advance(self.life, Trigger.DRAIN)
            self._draining = asyncio.create_task(self._drain(drain_seconds))
        if drain_seconds > 0 and self._draining is not None:
            await asyncio.wait({self._draining})
        self.life = advance(self.life, Trigger.RELEASE)
        self._tear_down(Released(f"deployment {self.life.deployment_id} was stopped"))
        if self._worker is not None:
            await self._worker.exited

    def fail(self, error: Exception) -> DaemonError:
        """Ends the deployment here and returns the error that says where; what had ended already stays as it ended."""
        if self.life.phase.ended:
            return self._end()
        placed = self._placed(error)
        log.error(
            "deployment failed",
            deployment_id=self.life.deployment_id,
            reason=placed.reason,
            stage=placed.stage,
            device_id=placed.device_id,
            message=placed.message,
        )
        self.life = advance(self.life, Trigger.FAIL, placed)
        self._tear_down(placed)
        self._on_change()
        return placed

    async def metrics(self) -> list[stage_daemon_pb2.StageMetrics]:
        """None of a worker that is not there, or that is too busy to say."""
        if self._worker is None or self.life.phase not in (Phase.LOADED, Phase.RUNNING):
            return []
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                return await self._worker.metrics()
        except (TimeoutError, DaemonError):
            return []

    async def timelines(self, request: stage_daemon_pb2.GetTimelineRequest) -> stage_daemon_pb2.GetTimelineResponse:
        """Only its threads. Raises what ended the deployment, or Conflict where it is not running."""
        self.check_running()
        assert self._worker is not None
        try:
            return await self._worker.timelines(request)
        except DaemonError as error:
            raise (self._end() if self.life.phase.ended else self._placed(error)) from error

    def check_running(self) -> None:
        """Raises what ended the deployment, or Conflict where it is not running yet or no more."""
        if self.life.phase is Phase.RUNNING:
            return
        if self.life.phase.ended:
            raise self._end()
        phase = self.life.phase.value
        raise Conflict(
            f"deployment {self.life.deployment_id} is {phase} here, not running; send to it once it is ready",
            deployment_id=self.life.deployment_id,
            phase=phase,
        )

    def door_for(self, opened: stage_daemon_pb2.OpenSession) -> stage_daemon_pb2.WorkerDoor | None:
        """Where the client reaches the worker itself; None unless they share a host."""
        if self._worker is None or not opened.host or opened.host != self._worker.door.host:
            return None
        return self._worker.door

    def open_session(self, session_id: int) -> Session:
        self.check_running()
        return self.sessions.open(session_id)

    @contextlib.asynccontextmanager
    async def choosing(self, opened: stage_daemon_pb2.OpenSession) -> AsyncIterator[None]:
        """Within it the session's results hold what it chose. Raises InvalidRequest for an output that is not there."""
        assert self._worker is not None
        try:
            if opened.outputs:
                await self._worker.choose(opened)
            yield
        finally:
            if opened.outputs:
                self._spawn(self._forget_choice(self._worker, opened.session_id))

    async def _forget_choice(self, worker: WorkerProcess, session_id: int) -> None:
        with contextlib.suppress(DaemonError):
            await worker.choose(stage_daemon_pb2.OpenSession(session_id=session_id))

    @contextlib.asynccontextmanager
    async def sending(self, opened: stage_daemon_pb2.OpenSession) -> AsyncIterator[None]:
        """One stream of inputs per session at a time: two would mix their sequences. Of one pipeline at a time where
        the deployment writes buffers; raises as Sequences.hold.
        """
        writes = self.connection.writes_buffers
        async with self._sequences.hold(opened) if writes else contextlib.nullcontext():
            with self._sending(opened.session_id):
                yield

    @contextlib.contextmanager
    def _sending(self, session_id: int) -> Iterator[None]:
        self.check_running()
        if session_id in self._senders:
            raise Conflict(f"session {session_id} is sending already; give each session an id of its own")
        if self.gives_outputs and not self.sessions.is_open(session_id):
            raise Conflict(f"session {session_id} is not open; call ReceiveOutputs and wait for its first message")
        self._senders.add(session_id)
        try:
            yield
        finally:
            self._senders.discard(session_id)

    @contextlib.contextmanager
    def training(self, *, by_door: bool = False) -> Iterator[None]:
        """One client trains a deployment at a time: another's steps would be between its own.

        What a client asks for `by_door` only the worker knows: it says when that is over.
        """
        self.check_running()
        if not self.connection.HasField("training"):
            raise Conflict(
                f"the plan of {self.life.deployment_id} is for inference; deploy one that was planned with training"
            )
        if self._is_training:
            raise Conflict(f"{self.life.deployment_id} is being trained already; close the other trainer first")
        self._is_training = True
        try:
            yield
        finally:
            self._is_training = False
            if by_door:
                self._unfinished = asyncio.create_task(self._end_training(self._unfinished))

    async def train(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Serialized TrainResponses. Who leaves before the last one leaves a step that other daemons may not have."""
        self.check_running()
        assert self._worker is not None
        try:
            if self._unfinished is not None:
                await asyncio.shield(self._unfinished)
            replies = self._worker.training_replies()
            try:
                await replies.ask(request)
                while not replies.is_over:
                    yield await replies.next()
            finally:
                if replies.is_asked and not replies.is_over:
                    self._unfinished = asyncio.create_task(self._finish_training(replies))
        except DaemonError as error:
            raise (self._end() if self.life.phase.ended else self._placed(error)) from error

    async def save_snapshot(self) -> stage_daemon_pb2.SaveSnapshotResponse:
        """Raises Conflict where one is being saved, what ended the deployment, and why the snapshot was not saved."""
        self.check_running()
        assert self._worker is not None
        if self._is_saving:
            raise Conflict(f"a snapshot of {self.life.deployment_id} is being saved already; wait for it")
        self._is_saving = True
        try:
            if self._saving is not None:
                # Of a caller who has left: the worker goes on with it.
                await asyncio.wait({self._saving})
            self._saving = asyncio.create_task(self._worker.save_snapshot())
            return await asyncio.shield(self._saving)
        except DaemonError as error:
            raise (self._end() if self.life.phase.ended else self._placed(error)) from error
        finally:
            self._is_saving = False

    async def _end_training(self, unfinished: asyncio.Task[None] | None) -> None:
        """What came by the door and has not been begun is forgotten; a step that has is done."""
        if unfinished is not None:
            await unfinished
        if self._worker is not None:
            await self._finish_training(self._worker.training_replies(), _LEAVE)

    async def _finish_training(self, replies: TrainingReplies, request: bytes | None = None) -> None:
        try:
            async with asyncio.timeout(self.connection.deadline_seconds):
                if request is not None:
                    await replies.ask(request)
                while not replies.is_over:
                    await replies.next()
        except TimeoutError:
            self.fail(Cancelled("the client that trains went away in the middle of a step, which does not end here"))
        except DaemonError:
            # What ended the worker ends the deployment.
            return

    async def send_input(self, session_id: int, sequence: int, microbatch: bytes) -> None:
        """Returns once the first stage has taken it."""
        self.check_running()
        assert self._worker is not None
        try:
            await self._worker.send_input(session_id, sequence, microbatch)
        except DaemonError as error:
            raise (self._end() if self.life.phase.ended else self._placed(error)) from error

    async def _start_worker(self, request: stage_daemon_pb2.LoadStagesRequest) -> WorkerProcess:
        self._check_not_ended()
        worker = await WorkerProcess.start(
            deployment_id=request.deployment_id,
            generation=request.generation,
            device=self._torch_device,
            blob_address=request.blob_address,
            tls=self._tls,
            operators=self._operators,
            kept=self.kept,
        )
        self._worker = worker
        worker.on_unread = self.sessions.end_unread
        if self.life.phase.ended:
            worker.kill()
        self._check_not_ended()
        self._spawn(self._watch(worker))
        self._spawn(self._watch_for_hang(worker))
        return worker

    async def _watch(self, worker: WorkerProcess) -> None:
        reason = await worker.exited
        if self.life.phase in (Phase.STOPPED, Phase.FAILED, Phase.DRAINING):
            return
        self.fail(error_from_failure(worker.failure) if worker.failure else WorkerDied(reason))

    async def _watch_for_hang(self, worker: WorkerProcess) -> None:
        """Asks the worker in every phase, since what hangs may have no edge on which anybody waits for it."""
        patience_seconds = self._worker_silence_seconds / MISSES_UNTIL_HUNG
        num_misses = 0
        while num_misses < MISSES_UNTIL_HUNG:
            try:
                async with asyncio.timeout(patience_seconds):
                    await worker.metrics()
            except TimeoutError:
                num_misses += 1
            except DaemonError:
                return
            else:
                num_misses = 0
                await asyncio.sleep(patience_seconds / ASKS_PER_MISS)
        self.fail(
            WorkerHung(
                f"worker {worker.process_id} of {self.life.deployment_id} has answered nothing for "
                f"{self._worker_silence_seconds:g} s: it hangs, or was stopped",
                worker_process_id=worker.process_id,
            )
        )

    async def _deliver_outputs(self, worker: WorkerProcess) -> None:
        async for session_id, _, result in worker.outputs():
            self.sessions.deliver(session_id, result)

    async def _drain(self, drain_seconds: float) -> None:
        assert self._worker is not None
        try:
            async with asyncio.timeout(drain_seconds):
                await self._worker.drain()
        except TimeoutError:
            log.warning("drain took too long", deployment_id=self.life.deployment_id, drain_seconds=drain_seconds)
        except DaemonError as error:
            log.warning("drain failed", deployment_id=self.life.deployment_id, message=str(error))

    def _tear_down(self, error: DaemonError) -> None:
        self.sessions.end_all(error)
        if self._worker is not None:
            self._worker.kill()
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)

    def _check_not_ended(self) -> None:
        """Raises what ended it."""
        if self.life.phase.ended:
            raise self._end()

    def _end(self) -> DaemonError:
        return self.life.error or Released(f"deployment {self.life.deployment_id} was stopped")

    def _placed(self, error: Exception) -> DaemonError:
        """The same error; where it names no device it is about this one, and its first stage unless it says which."""
        daemon_error = error if isinstance(error, DaemonError) else DaemonError(f"{type(error).__name__}: {error}")
        # A worker knows its own device by torch's name.
        if daemon_error.device_id in (None, "", name_in_worker(self._torch_device)):
            daemon_error.device_id = self._device_id
        if daemon_error.stage is None and daemon_error.device_id == self._device_id and self.life.stages:
            daemon_error.stage = self.life.stages[0]
        if daemon_error.device_id == self._device_id and daemon_error.stage in self._copies:
            daemon_error.metadata.setdefault("copy", str(self._copies[daemon_error.stage]))
        return daemon_error

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _close_opened(opening: asyncio.Task[Rendezvous]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _does(connection: stage_daemon_pb2.ConnectStagesRequest, kind: stage_daemon_pb2.ActionKind.ValueType) -> bool:
    return any(action.kind == kind for lane in connection.lanes for action in lane.actions)
