"""Does what the rollout decides: calls daemons, feeds their answers back, and writes each step down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from planner.dispatch.daemon_client import DaemonCallFailed, DaemonClient
from planner.dispatch.diagnosis import find_cause
from planner.dispatch.ledger import Ledger
from planner.dispatch.messages import loaded_stage_from_proto
from planner.dispatch.placing import Placement
from planner.dispatch.progress import worth_telling
from planner.dispatch.rollout import (
    Broken,
    Command,
    Connect,
    Connected,
    Diagnose,
    Diagnosed,
    Event,
    Load,
    Loaded,
    OpenRendezvous,
    Place,
    Placed,
    Release,
    Released,
    RendezvousOpened,
    Rollout,
    Step,
    Unplaced,
    Waits,
    advance,
    rollout_of,
)
from planner.dispatch.stage_modules import StageRequests
from planner.dispatch.succession import failure_of_end, until_ended
from planner.errors import NotLeading, PlannerError
from planner.store.deployment_records import (
    Deployment,
    DeploymentEvent,
    DeploymentState,
    Failure,
    LoadedStage,
    StagePlacement,
)
from planner.store.failures import failure_of
from protos.v1 import stage_daemon_pb2

# What was being rolled out is not any more.
ABANDONED = (DeploymentState.DRAINING, DeploymentState.RECOVERING)

log = structlog.get_logger(__name__)


class Driver:
    """One deployment. `requests` is there from the start of a rollout; one that is taken up READY needs none.

    `place` finds where the next generation runs; it may wait for daemons, telling why, and raises PlannerError where it
    gives up. `settled` is called when it is READY and when it has ended.
    """

    def __init__(
        self,
        deployment: Deployment,
        clients: Mapping[str, DaemonClient],
        ledger: Ledger,
        place: Callable[[Deployment, Callable[[str], Awaitable[None]]], Awaitable[Placement]],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self.deployment = deployment
        self.rollout: Rollout = rollout_of(deployment)
        self.requests: StageRequests | None = None
        self.ended = asyncio.Event()
        self._clients = clients
        self._ledger = ledger
        self._place_next = place
        self._settled = settled
        self._lock = asyncio.Lock()
        # And whose event it is.
        self._taking: dict[asyncio.Task[None], asyncio.Task[Any] | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rollout_tasks: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._told_bytes: dict[tuple[str, int], int] = {}
        self._is_closed = False

    async def handle(self, event: Event, placement: Placement | None = None, *, generation: int | None = None) -> None:
        """Events are taken one at a time; each step is written down before it is acted on.

        With `generation` the event is about that one: where the next has begun meanwhile it says nothing. A caller that
        leaves once its event is being taken changes nothing: what is written down is acted on.

        Raises NotLeading once the driver is closed.
        """
        await self._lock.acquire()
        if self._is_closed:
            self._lock.release()
            raise NotLeading(f"this planner has let go of {self.deployment.id}; ask the one that leads")
        caller = asyncio.current_task()
        taking = asyncio.create_task(self._take(event, placement, generation, caller))
        self._taking[taking] = caller
        taking.add_done_callback(self._taken)
        await asyncio.shield(taking)

    def _taken(self, taking: asyncio.Task[None]) -> None:
        del self._taking[taking]
        self._lock.release()

    async def _take(
        self, event: Event, placement: Placement | None, generation: int | None, caller: asyncio.Task[Any] | None
    ) -> None:
        if generation is not None and generation != self.deployment.generation:
            return
        if isinstance(event, Broken):
            event = replace(event, failure=self.deployment.with_copy(event.failure))
        step = advance(self.rollout, event)
        if step.message:
            begun = placement.deployment if placement else None
            await self._ledger.append(self.deployment.id, self._row(step), begun)
            if placement:
                self._begin(placement)
        is_new = step.rollout.state is not self.rollout.state
        self.rollout = step.rollout
        if is_new:
            self._log_state()
        if is_new and (step.rollout.state.ended or step.rollout.state in ABANDONED):
            self._abandon_rollout(caller)
        if not self._is_closed:
            for command in step.commands:
                self._spawn(command)
            self._keep_watch(caller)
        if step.rollout.state.ended:
            self.ended.set()
        if is_new and (step.rollout.state.ended or step.rollout.state is DeploymentState.READY):
            self._settled()

    @property
    def is_busy(self) -> bool:
        """Whether a call to a daemon is under way."""
        return bool(self._tasks)

    async def close(self) -> None:
        """Whoever takes the deployment up goes on from what is written down. An event of another's that is being taken
        is still written, and not acted on."""
        self._is_closed = True
        own = self._tasks | self._watches
        tasks = own | {taking for taking, caller in self._taking.items() if caller in own}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep_watch(self, caller: asyncio.Task[Any] | None) -> None:
        """Over the daemons that it stands on, while it is ready; nobody calls them then."""
        if self.rollout.state is not DeploymentState.READY:
            for task in self._watches - {caller}:
                task.cancel()
        elif not self._watches:
            for device_id, client in self._clients.items():
                placement = self.deployment.stages_on(device_id)[0]
                task = asyncio.create_task(self._watch(client, placement, self.deployment.generation))
                self._watches.add(task)
                task.add_done_callback(self._watches.discard)

    async def _watch(self, client: DaemonClient, placement: StagePlacement, generation: int) -> None:
        try:
            await until_ended(client, placement.incarnation_id)
            await self.handle(Broken(failure_of_end(placement)), generation=generation)
        except PlannerError as error:
            # Whoever looks for late daemons sees it too.
            log.warning("an end is not written", deployment_id=self.deployment.id, message=error.message)
        except Exception:
            log.exception("watching", deployment_id=self.deployment.id, device_id=client.device_id)

    def _log_state(self) -> None:
        """Each state that it comes to, and how long after it was asked for."""
        age = datetime.now(UTC) - self.deployment.created_at
        log.info(
            "deployment",
            id=self.deployment.id,
            plan_id=self.deployment.plan_id,
            state=self.rollout.state.value,
            generation=self.deployment.generation,
            seconds=round(age.total_seconds(), 3),
        )

    def _begin(self, placement: Placement) -> None:
        self.deployment = placement.deployment
        self.requests = placement.requests
        self._clients = placement.clients
        self._told_bytes.clear()

    def _row(self, step: Step) -> DeploymentEvent:
        failure = step.rollout.failure
        stages = self.deployment.stages_on(step.device_id)
        stage = failure.stage if failure else (stages[0].stage if stages else None)
        return DeploymentEvent(
            sequence=0,
            occurred_at=datetime.now(UTC),
            state=step.rollout.state,
            message=step.message,
            stage=stage,
            device_id=step.device_id,
            failure=failure,
        )

    def _spawn(self, command: Command) -> None:
        task = asyncio.create_task(self._guarded(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not isinstance(command, Release):
            self._rollout_tasks.add(task)
            task.add_done_callback(self._rollout_tasks.discard)

    def _abandon_rollout(self, caller: asyncio.Task[Any] | None) -> None:
        for task in self._rollout_tasks - {caller}:
            task.cancel()

    async def _guarded(self, command: Command) -> None:
        try:
            await self._perform(command)
        except DaemonCallFailed as error:
            await self._answer_failed(command, error.failure)
        except NotLeading as error:
            log.info("left to another planner", deployment_id=self.deployment.id, message=error.message)
        except Exception as error:
            log.exception("rollout", deployment_id=self.deployment.id, command=str(command))
            failure = Failure(reason="INTERNAL", message=f"the planner failed: {error}")
            await self.handle(Unplaced(failure) if isinstance(command, Place) else Broken(failure))

    def _perform(self, command: Command) -> Coroutine[Any, Any, None]:
        match command:
            case Load(device_id):
                return self._load(device_id)
            case OpenRendezvous(device_id):
                return self._open_rendezvous(device_id)
            case Connect(device_id, rendezvous_address):
                return self._connect(device_id, rendezvous_address)
            case Release():
                return self._release(command)
            case Diagnose(suspicion):
                return self._diagnose(suspicion)
            case Place():
                return self._place()

    async def _answer_failed(self, command: Command, failure: Failure) -> None:
        if isinstance(command, Release):
            # A daemon that cannot be told now is told by its next heartbeat, or is gone with all it held.
            log.info("release", deployment_id=self.deployment.id, reason=failure.reason, message=failure.message)
            await self.handle(Released(command.device_id))
            return
        assert not isinstance(command, Place)
        await self.handle(
            self.broken(failure, failure.device_id if isinstance(command, Diagnose) else command.device_id)
        )

    async def _load(self, device_id: str) -> None:
        assert self.requests is not None
        loaded: dict[int, LoadedStage] = {}
        async for response in self._clients[device_id].load(self.requests.load[device_id]):
            loaded[response.stage] = loaded_stage_from_proto(response)
            await self._tell_progress(device_id, response)
        if any(stage.num_threads for stage in loaded.values()):
            await self._ledger.tell_loaded(self.deployment.id, device_id, tuple(loaded.values()))
        await self.handle(Loaded(device_id))

    async def _tell_progress(self, device_id: str, response: stage_daemon_pb2.LoadStagesResponse) -> None:
        stage = device_id, response.stage
        if not worth_telling(self._told_bytes.get(stage), response.loaded_bytes, response.total_bytes):
            return
        self._told_bytes[stage] = response.loaded_bytes
        async with self._lock:
            if self.rollout.state is DeploymentState.LOADING:
                await self._ledger.append(self.deployment.id, _progress(device_id, response))

    async def _open_rendezvous(self, device_id: str) -> None:
        client = self._clients[device_id]
        address = await client.open_rendezvous(self.deployment.id, self.deployment.generation)
        await self.handle(RendezvousOpened(address))

    async def _connect(self, device_id: str, rendezvous_address: str) -> None:
        assert self.requests is not None
        request = stage_daemon_pb2.ConnectStagesRequest()
        request.CopyFrom(self.requests.connect[device_id])
        request.rendezvous_address = rendezvous_address
        await self._clients[device_id].connect(request)
        await self.handle(Connected(device_id))

    async def _release(self, command: Release) -> None:
        client, deployment = self._clients[command.device_id], self.deployment
        await client.release(deployment.id, deployment.generation, drain=command.drain, keep_states=command.keep_states)
        await self.handle(Released(command.device_id))

    async def _place(self) -> None:
        try:
            placement = await self._place_next(self.deployment, lambda why: self.handle(Waits(why)))
        except PlannerError as error:
            await self.handle(Unplaced(failure_of(error)))
        else:
            new = placement.deployment
            reason = new.plan_reason if new.plan_id != self.deployment.plan_id else ""
            await self.handle(Placed(new.device_ids(), reason), placement)

    async def _diagnose(self, suspicion: Failure) -> None:
        cause = await find_cause(self.deployment.id, self._clients)
        await self.handle(Diagnosed(self.broken(cause, cause.device_id).failure if cause else None))

    def broken(self, failure: Failure, reported_by: str) -> Broken:
        """The failure as it was reported; where it names no device it is about the one that reported it, unless only
        others have its stage."""
        holders = [one.device_id for one in self.deployment.stages if one.stage == failure.stage] or [reported_by]
        device_id = failure.device_id or (reported_by if reported_by in holders else holders[0])
        stages = self.deployment.stages_on(device_id)
        stage = stages[0].stage if failure.stage is None and stages else failure.stage
        placed = replace(failure, device_id=device_id, stage=stage)
        return Broken(self.deployment.with_copy(placed), reported_by)


def _progress(device_id: str, response: stage_daemon_pb2.LoadStagesResponse) -> DeploymentEvent:
    return DeploymentEvent(
        sequence=0,
        occurred_at=datetime.now(UTC),
        state=DeploymentState.LOADING,
        message="loading",
        stage=response.stage,
        device_id=device_id,
        loaded_bytes=response.loaded_bytes,
        total_bytes=response.total_bytes,
    )
