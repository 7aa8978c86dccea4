"""The deployments of one device: which are here, and what is asked of each. It never touches the device itself."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

from access.files import TlsFiles
from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.control.hosted import HostedDeployment
from stage_daemon.control.lifecycle import Life, Phase
from stage_daemon.control.profiling import Profiling
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import Cancelled, Conflict, DaemonError, InvalidRequest, NotFound, ResourceExhausted
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.worker.failures import failure_from_error

MAX_DRAIN_SECONDS = 3600.0
# Each that loads reads and checks weights with all its threads: more at once are slower, and need more memory.
MOST_LOADING = 4
# A worker process each.
MOST_DEPLOYMENTS = 64
_STATES = {
    Phase.LOADING: planner_pb2.WORKER_STATE_LOADING,
    Phase.LOADED: planner_pb2.WORKER_STATE_LOADED,
    Phase.CONNECTING: planner_pb2.WORKER_STATE_CONNECTING,
    Phase.RUNNING: planner_pb2.WORKER_STATE_RUNNING,
    Phase.DRAINING: planner_pb2.WORKER_STATE_DRAINING,
    Phase.STOPPED: planner_pb2.WORKER_STATE_STOPPED,
    Phase.FAILED: planner_pb2.WORKER_STATE_FAILED,
}


class Supervisor:
    """`changed` is set when the planner should be told at once; whoever tells it clears it."""

    def __init__(
        self,
        *,
        device_id: str,
        torch_device: str,
        planner_address: str,
        listen_host: str,
        worker_silence_seconds: float = 15.0,
        tls: TlsFiles | None = None,
        operators: tuple[CustomOperator, ...] = (),
    ) -> None:
        self.device_id = device_id
        # New at each start: the planner tells by it whether this daemon is the one that holds the device's lease.
        self.incarnation_id = uuid.uuid4().hex
        self.changed = asyncio.Event()
        # It was asked to end.
        self.is_leaving = False
        self._torch_device = torch_device
        self._planner_address = planner_address
        self._listen_host = listen_host
        self._worker_silence_seconds = worker_silence_seconds
        self._tls = tls
        self._operators = operators
        self._hosted: dict[str, HostedDeployment] = {}
        # Of deployments whose next generation may come here: the one that let go of them, and its weights.
        self._kept: dict[str, tuple[int, KeptStates]] = {}
        self._loading = asyncio.Semaphore(MOST_LOADING)
        self._releasing: set[asyncio.Task[None]] = set()
        self._profiling: Profiling | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def load(
        self, request: stage_daemon_pb2.LoadStagesRequest
    ) -> AsyncIterator[stage_daemon_pb2.LoadStagesResponse]:
        """Progress; ends once every stage is loaded. An earlier generation is let go of first.

        Of many at once some wait for their turn. Raises Conflict where this generation of the deployment, or a later
        one, is here already, and ResourceExhausted.
        """
        self._check_may_load(request)
        await self.release(request.deployment_id, 0.0, request.generation - 1, keep_states=request.keep_states)
        hosted = self._host(request)
        request.blob_address = request.blob_address or self._planner_address
        async for response in hosted.load(request):
            yield response

    async def profile(
        self, request: stage_daemon_pb2.ProfileRequest
    ) -> AsyncIterator[stage_daemon_pb2.ProfileResponse]:
        """Times as they come. Raises Conflict while a deployment or another profile is here, or once one comes."""
        self._check_free_to_profile()
        profile_request = stage_daemon_pb2.ProfileRequest()
        profile_request.CopyFrom(request)
        profile_request.blob_address = request.blob_address or self._planner_address
        profiling = self._profiling = Profiling(profile_request, self._torch_device, self._tls, self._operators)
        try:
            async with aclosing(profiling.run()) as responses:
                async for response in responses:
                    yield response
        finally:
            self._profiling = None

    async def open_rendezvous(self, deployment_id: str, generation: int) -> int:
        """The port of the store at which the generation's workers meet."""
        return await self.find(deployment_id, generation).open_rendezvous(self._listen_host)

    async def connect(self, request: stage_daemon_pb2.ConnectStagesRequest) -> None:
        await self.find(request.deployment_id, request.generation).connect(request)

    async def release(
        self,
        deployment_id: str,
        drain_seconds: float,
        generation: int | None = None,
        *,
        keep_states: bool = False,
    ) -> None:
        """Idempotent: what is not here is let go of already, and what is of a later generation than this one stays.

        With `keep_states` its weights stay for the next generation, until that has come here or been told to let go
        of. Goes on if the caller leaves, who may not come again.
        """
        if not keep_states:
            self._forget_kept(deployment_id, generation)
        hosted = self._hosted.get(deployment_id)
        if hosted is None or (generation is not None and hosted.life.generation > generation):
            return
        releasing = asyncio.create_task(self._release(hosted, drain_seconds, keep_states))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)
        await asyncio.shield(releasing)

    def find(self, deployment_id: str, generation: int = 0) -> HostedDeployment:
        """Raises NotFound, and Conflict where it is here in another generation; 0 means any."""
        hosted = self._hosted.get(deployment_id)
        if hosted is None:
            raise NotFound(
                f"deployment {deployment_id!r} has no stage on {self.device_id}; ask the planner where it runs",
                device_id=self.device_id,
                deployment_id=deployment_id,
            )
        if generation and hosted.life.generation != generation:
            raise Conflict(
                f"deployment {deployment_id} is in generation {hosted.life.generation} here, not {generation}",
                deployment_id=deployment_id,
            )
        return hosted

    def report(self) -> list[planner_pb2.DeploymentOnDaemon]:
        """Where every deployment stands; a failed one, and one of which weights are kept, is reported until the planner
        says to let go of it."""
        stopped = (
            planner_pb2.DeploymentOnDaemon(
                deployment_id=deployment_id, generation=generation, state=planner_pb2.WORKER_STATE_STOPPED
            )
            for deployment_id, (generation, _) in self._kept.items()
        )
        return [*(self._standing(hosted.life) for hosted in self._hosted.values()), *stopped]

    @property
    def hosted(self) -> tuple[HostedDeployment, ...]:
        """Those that have ended too, until they are let go of."""
        return tuple(self._hosted.values())

    @property
    def is_profiling(self) -> bool:
        return self._profiling is not None

    async def metrics(self) -> list[stage_daemon_pb2.StageMetrics]:
        per_deployment = await asyncio.gather(*(hosted.metrics() for hosted in self._hosted.values()))
        return [stage for stages in per_deployment for stage in stages]

    @property
    def holds_work(self) -> bool:
        return any(not hosted.life.phase.ended for hosted in self._hosted.values())

    def leave(self) -> None:
        """Takes no more deployments; the planner, which is told at once, moves or stops those that are here."""
        self.is_leaving = True
        self._stop_profiling(Cancelled(f"the daemon of {self.device_id} is shutting down", device_id=self.device_id))
        self.changed.set()

    async def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Whether every deployment was let go of in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Lets go of everything at once."""
        self._stop_profiling(Cancelled(f"the daemon of {self.device_id} has stopped", device_id=self.device_id))
        await asyncio.gather(*(self.release(deployment_id, 0.0) for deployment_id in {*self._hosted, *self._kept}))

    async def _release(self, hosted: HostedDeployment, drain_seconds: float, keep_states: bool) -> None:
        await hosted.release(drain_seconds=min(drain_seconds, MAX_DRAIN_SECONDS))
        deployment_id, generation = hosted.life.deployment_id, hosted.life.generation
        if self._hosted.get(deployment_id) is hosted:
            del self._hosted[deployment_id]
            if hosted.kept is not None:
                self._kept[deployment_id] = generation, hosted.kept
        if not keep_states:
            self._forget_kept(deployment_id, generation)
        if not self._hosted:
            self._empty.set()
        self.changed.set()

    def _check_may_load(self, request: stage_daemon_pb2.LoadStagesRequest) -> None:
        if self.is_leaving:
            raise Conflict(f"the daemon of {self.device_id} is shutting down", device_id=self.device_id)
        if not request.deployment_id or not request.stages:
            raise InvalidRequest("LoadStages needs a deployment_id and at least one stage")

    def _host(self, request: stage_daemon_pb2.LoadStagesRequest) -> HostedDeployment:
        # The release before it takes its time, and the daemon may be asked to leave meanwhile.
        self._check_may_load(request)
        present = self._hosted.get(request.deployment_id)
        if present is not None and not (present.life.phase.ended and present.life.generation < request.generation):
            raise Conflict(
                f"deployment {request.deployment_id} is here already, {present.life.phase.value}, in generation "
                f"{present.life.generation}; release it first",
                deployment_id=request.deployment_id,
            )
        if present is None and len(self._hosted) >= MOST_DEPLOYMENTS:
            raise ResourceExhausted(
                f"{self.device_id} holds {MOST_DEPLOYMENTS} deployments, as many as a daemon may; stop one of them",
                device_id=self.device_id,
            )
        life = Life(
            deployment_id=request.deployment_id,
            generation=request.generation,
            stages=tuple(module.stage for module in request.stages),
        )
        self._stop_profiling(
            Conflict(f"deployment {request.deployment_id} came to {self.device_id}", device_id=self.device_id)
        )
        hosted = HostedDeployment(
            life=life,
            device_id=self.device_id,
            torch_device=self._torch_device,
            worker_silence_seconds=self._worker_silence_seconds,
            loading=self._loading,
            on_change=self.changed.set,
            tls=self._tls,
            secret=request.secret,
            operators=self._operators,
            kept=self._take_kept(request),
        )
        self._hosted[request.deployment_id] = hosted
        self._empty.clear()
        return hosted

    def _take_kept(self, request: stage_daemon_pb2.LoadStagesRequest) -> KeptStates | None:
        if not request.keep_states:
            self._forget_kept(request.deployment_id)
            return None
        _, states = self._kept.pop(request.deployment_id, (0, None))
        return states or KeptStates.create()

    def _forget_kept(self, deployment_id: str, generation: int | None = None) -> None:
        """Unless they are a later generation's than this one."""
        generation_of_states, states = self._kept.get(deployment_id, (0, None))
        if states is not None and (generation is None or generation_of_states <= generation):
            del self._kept[deployment_id]
            states.close()

    def _check_free_to_profile(self) -> None:
        current = next((hosted.life for hosted in self._hosted.values() if not hosted.life.phase.ended), None)
        if current is not None or self.is_leaving or self._profiling is not None:
            what = f"holds deployment {current.deployment_id}" if current else "is profiling or shutting down already"
            raise Conflict(f"{self.device_id} {what}; profile on a device that is free", device_id=self.device_id)

    def _stop_profiling(self, error: DaemonError) -> None:
        if self._profiling is not None:
            self._profiling.stop(error)

    def _standing(self, life: Life) -> planner_pb2.DeploymentOnDaemon:
        return planner_pb2.DeploymentOnDaemon(
            deployment_id=life.deployment_id,
            generation=life.generation,
            state=_STATES[life.phase],
            failure=failure_from_error(life.error) if life.error else None,
        )
