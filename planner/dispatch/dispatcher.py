"""Every deployment of this planner: admits new ones, hears daemons, and ends what stands on a daemon that is gone."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from access.files import WatchedCredentials
from planner.cost.inventory import Device
from planner.dispatch.admission import admit, check_compile
from planner.dispatch.daemon_client import CallDeadlines, DaemonClient
from planner.dispatch.driver import ABANDONED, Driver
from planner.dispatch.leadership import Leadership
from planner.dispatch.lease import Leases, Standing, failure_of
from planner.dispatch.ledger import Ledger
from planner.dispatch.placing import BeingPlanned, Placer, clients_of
from planner.dispatch.rollout import Broken, Leaving, Started, StopAsked, TakenUp
from planner.dispatch.stage_modules import StageRequests, prepare_requests
from planner.dispatch.succession import failure_of_end, has_ended
from planner.errors import DeviceTaken, NotDeployable, NotFound, NotLeading, PlannerError, Unavailable
from planner.plan.plan import Plan
from planner.store.blobs import BlobStore
from planner.store.claims import database_now
from planner.store.daemons import (
    find_daemon,
    list_daemons,
    list_live_daemons,
    renew_lease,
    save_daemon,
    set_draining,
)
from planner.store.database import Database
from planner.store.deployment_records import (
    Daemon,
    Deployment,
    DeploymentEvent,
    DeploymentState,
    Failure,
    RecoveryPolicy,
    WorkerSettings,
)
from planner.store.deployments import add_deployment, get_deployment, list_active_deployments, promised_bytes
from planner.store.failures import failure_of as failure_of_error
from planner.store.graphs import GraphRecord, get_graph
from planner.store.owners import add_owner
from planner.store.plans import get_plan
from planner.store.quotas import check_deployments
from planner.store.request_ids import create_once

READY = DeploymentState.READY
# A daemon that says twice in a row that it does not hold a stage has lost it.
MISSES_UNTIL_LOST = 2
# From one look at which losses are not planned for to the next.
PLAN_AHEAD_PERIOD_SECONDS = 0.25
# One that is late loses nothing.
RENEWALS_PER_CLAIM = 4
# Of a channel to a daemon on which nothing runs: nobody who was given it still calls it by then.
UNUSED_SECONDS = 600.0
# As many ids as fit into a fact of an error; the next heartbeat is told the rest.
MOST_RELEASES_IN_REFUSAL = 10

log = structlog.get_logger(__name__)


class DispatchSettings(Protocol):
    @property
    def lease_seconds(self) -> float: ...
    @property
    def recovery_seconds(self) -> float: ...
    @property
    def claim_seconds(self) -> float: ...
    @property
    def daemon_identity(self) -> str: ...
    @property
    def max_deployments_per_caller(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDeployment:
    """What a daemon's heartbeat says of one deployment. `failure` is set where it failed there."""

    deployment_id: str
    generation: int
    failure: Failure | None = None


class Dispatcher:
    """`start` has to go on for leases to expire and this planner to lead; the other calls work without it.

    Of several planners on a database one leads; at the others all calls but `watch` raise NotLeading.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        settings: DispatchSettings,
        deadlines: CallDeadlines = CallDeadlines(),  # noqa: B008  frozen
        credentials: WatchedCredentials | None = None,
        planner_secret: bytes = b"",
        ask_for_plans: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask_for_plans` wakes who computes the plans that wait in the database."""
        self._database = database
        self._blobs = blobs
        self._deadlines = deadlines
        self._credentials = credentials
        self._planner_secret = planner_secret
        self._daemon_identity = settings.daemon_identity
        self._max_deployments_per_caller = settings.max_deployments_per_caller
        self._leases = Leases(settings.lease_seconds, _seconds())
        self._leadership = Leadership(database, settings.claim_seconds)
        self._ledger = Ledger(database, self._leadership)
        self._placer = Placer(
            database,
            self._leadership,
            settings.recovery_seconds,
            self._client,
            self._prepare,
            ask_for_plans,
        )
        self._drivers: dict[str, Driver] = {}
        self._planned_ahead: dict[str, int] = {}
        self._news = asyncio.Event()
        self._misses: dict[tuple[str, str], int] = {}
        self._clients: dict[tuple[str, str], DaemonClient] = {}
        self._wanted_at: dict[tuple[str, str], float] = {}
        self._admission = asyncio.Lock()
        self._registrations = asyncio.Lock()
        self._resumption = asyncio.Lock()
        self._resumed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Runs in the background until `close`."""
        self._spawn(self.run())
        # Beside those checks: a daemon that hangs is waited for, and they must not stand still meanwhile.
        self._spawn(self._every_period(self._end_refusing, "late daemons stand"))
        self._spawn(self._keep_planned_ahead())
        if self._database.is_shared:
            self._spawn(self._keep_leading())

    async def run(self) -> None:
        """Takes up what a planner before this one left, then ends deployments whose daemons' leases run out."""
        await self._every_period(self._check_leases, "leases stand still")

    async def deploy(
        self,
        plan_id: str,
        request_id: str,
        fingerprint: str = "",
        recovery: RecoveryPolicy = RecoveryPolicy.MANUAL,
        workers: WorkerSettings | None = None,
        caller: str = "",
    ) -> str:
        """Starts a rollout and returns the deployment's id at once. Raises NotFound, NotDeployable, DeviceGone ...

        It is the caller's, where one is known, from the transaction on that adds it.
        """
        await self._resume()
        # A client that hangs up must not leave a deployment behind that nobody rolls out.
        creating = self._create(plan_id, request_id, fingerprint, recovery, workers or WorkerSettings(), caller)
        return await asyncio.shield(asyncio.ensure_future(creating))

    async def stop(self, deployment_id: str) -> None:
        """Returns once it has ended; draining goes on if the caller leaves. Idempotent. Raises NotFound."""
        await self._resume()
        driver = self._drivers.get(deployment_id)
        if driver is not None:
            await asyncio.shield(driver.handle(StopAsked()))
            await driver.ended.wait()
            if not driver.rollout.state.ended:
                raise NotLeading(f"another planner stops {deployment_id} now; ask it")
            return
        async with self._database.reading() as session:
            await get_deployment(session, deployment_id)

    def watch(self, deployment_id: str, after_sequence: int) -> AsyncIterator[DeploymentEvent]:
        """History, then live; ends with the event that ends the deployment. Raises NotFound."""
        return self._ledger.watch(deployment_id, after_sequence)

    async def register(self, device: Device, address: str, torch_version: str, incarnation_id: str) -> float:
        """Gives the daemon a lease and returns its seconds. What stood on the one before it there has failed.

        Raises DeviceTaken while another holds the device's lease, unless that one is known to have ended.
        """
        await self._resume()
        standing = self._leases.find(device.id)
        if standing is not None and standing.incarnation_id != incarnation_id:
            await self._succeed(device.id, standing, incarnation_id)
        async with self._registrations:
            holder = self._leases.find(device.id)
            if holder is not None and holder != standing and holder.incarnation_id != incarnation_id:
                self._refuse_taken(device.id)
            async with self._database.session() as session:
                await self._leadership.check(session)
                now = await database_now(session)
                daemon = Daemon(
                    device=device,
                    address=address,
                    incarnation_id=incarnation_id,
                    torch_version=torch_version,
                    lease_expires_at=now + timedelta(seconds=self._leases.lease_seconds),
                )
                await save_daemon(session, daemon, now)
            self._leases.hear(device.id, incarnation_id, _seconds())
        log.info("daemon registered", device_id=device.id, address=address)
        await self._end_lost()
        return self._leases.lease_seconds

    async def heartbeat(
        self, device_id: str, incarnation_id: str, reported: Iterable[HeldDeployment], *, leaving: bool = False
    ) -> tuple[float, tuple[str, ...]]:
        """(seconds of the renewed lease, ids to let go of). Raises NotFound: register; DeviceTaken: another did.

        `leaving` stands until another incarnation registers.
        """
        await self._resume()
        reports = {report.deployment_id: report for report in reported}
        await self._recognise(device_id, incarnation_id, reports.values())
        self._leases.hear(device_id, incarnation_id, _seconds())
        for report in reports.values():
            await self._hear(device_id, report)
        if leaving:
            await self._clear(device_id, incarnation_id)
        await self._look_for_lost(device_id, reports.keys())
        return self._leases.lease_seconds, self._ended_of(reports.values())

    async def drain(self, device_id: str, *, undo: bool = False) -> Mapping[str, str]:
        """Puts nothing new on the device, and begins to move what can: deployment ids, and why each stays there.

        Why is empty while it is about to leave: ask again until everything there stays. Raises NotFound.
        """
        await self._resume()
        async with self._database.session() as session:
            await self._leadership.check(session)
            daemon = await find_daemon(session, device_id)
            if daemon is None or not daemon.live_at(await database_now(session)):
                raise NotFound(f"device {device_id!r} has no daemon that holds a lease", device_id=device_id)
            await set_draining(session, device_id, daemon.incarnation_id, not undo)
        on_it = self._active_on(device_id)
        if undo:
            return {driver.deployment.id: "the device is not drained" for driver in on_it}
        return {driver.deployment.id: await self._move(driver, device_id) for driver in on_it}

    async def close(self) -> None:
        """Leaves deployments as they are: daemons go on, and the next planner takes them up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(
            *self._tasks, *(driver.close() for driver in self._drivers.values()), return_exceptions=True
        )
        await asyncio.gather(*(client.close() for client in self._clients.values()), return_exceptions=True)
        try:
            await self._leadership.give_up()
        except PlannerError as error:
            log.warning("others wait until this planner's claim ends", message=error.message)

    async def _keep_leading(self) -> None:
        """Leads as soon as nobody else does, until another has to because this planner was silent."""
        while True:
            try:
                async with asyncio.timeout(self._leadership.claim_seconds):
                    if not self._resumed:
                        await self._resume()
                    elif not await self._leadership.renew():
                        await self._step_down()
            except NotLeading:
                pass
            except (PlannerError, TimeoutError) as error:
                log.warning("cannot claim now", message=str(error) or "the database does not answer")
            except Exception:
                log.exception("leading")
            await asyncio.sleep(self._leadership.claim_seconds / RENEWALS_PER_CLAIM)

    async def _keep_planned_ahead(self) -> None:
        """Whenever a deployment is ready or has ended."""
        while True:
            self._news.clear()
            try:
                await self._plan_ahead()
            except NotLeading:
                pass
            except PlannerError as error:
                log.warning("no plans are made ahead", message=error.message)
                self._news.set()
            except Exception:
                log.exception("planning ahead")
            await asyncio.sleep(PLAN_AHEAD_PERIOD_SECONDS)
            await self._news.wait()

    async def _plan_ahead(self) -> None:
        replanned = [driver for driver in self._drivers.values() if driver.deployment.recovery is RecoveryPolicy.REPLAN]
        for driver in replanned:
            deployment = driver.deployment
            if driver.rollout.state is READY and self._planned_ahead.get(deployment.id) != deployment.generation:
                await self._placer.plan_ahead(deployment)
                self._planned_ahead[deployment.id] = deployment.generation
        ended = self._planned_ahead.keys() - {d.deployment.id for d in replanned if not d.rollout.state.ended}
        if ended or not self._planned_ahead:
            await self._placer.forget_ended()
            for deployment_id in ended:
                del self._planned_ahead[deployment_id]

    async def _step_down(self) -> None:
        """Another planner has taken up all that this one did; what this one still does is refused by the database."""
        log.warning("another planner leads")
        self._resumed = False
        drivers = tuple(self._drivers.values())
        self._drivers.clear()
        self._misses.clear()
        self._planned_ahead.clear()
        self._leases = Leases(self._leases.lease_seconds, _seconds())
        await asyncio.gather(*(driver.close() for driver in drivers), return_exceptions=True)
        for driver in drivers:
            driver.ended.set()

    async def _create(
        self,
        plan_id: str,
        request_id: str,
        fingerprint: str,
        recovery: RecoveryPolicy,
        workers: WorkerSettings,
        caller: str,
    ) -> str:
        now = datetime.now(UTC)
        created: list[tuple[Deployment, Plan, GraphRecord]] = []

        async def create(session: AsyncSession) -> str:
            created.clear()
            await check_deployments(session, caller, self._max_deployments_per_caller)
            created.append(await self._admit(session, plan_id, recovery, workers, now))
            deployment_id = created[0][0].id
            if caller:
                await add_owner(session, "deployment", deployment_id, caller, now)
            return deployment_id

        async with self._admission:
            try:
                deployment_id, is_new = await create_once(
                    self._database, "Deploy", request_id, fingerprint or plan_id, now, create
                )
            except Unavailable:
                if created:
                    self._spawn(self._roll_out_if_added(*created[0]))
                raise
        if is_new:
            deployment, plan, graph = created[0]
            self._spawn(self._roll_out(self._add_driver(deployment), plan, graph))
        return deployment_id

    async def _roll_out_if_added(self, deployment: Deployment, plan: Plan, graph: GraphRecord) -> None:
        """Where the connection broke during the commit, whose end nobody told."""

        async def find(session: AsyncSession) -> bool:
            await self._leadership.check(session)
            return any(one.id == deployment.id for one in await list_active_deployments(session))

        with suppress(PlannerError):
            if await self._database.persist(find) and deployment.id not in self._drivers:
                await self._roll_out(self._add_driver(deployment), plan, graph)

    async def _admit(
        self, session: AsyncSession, plan_id: str, recovery: RecoveryPolicy, workers: WorkerSettings, now: datetime
    ) -> tuple[Deployment, Plan, GraphRecord]:
        await self._leadership.check(session)
        plan, _ = await get_plan(session, plan_id, keep=True)
        graph = await get_graph(session, plan.graph_id)
        if graph.not_deployable_reason:
            raise NotDeployable(
                f"graph {graph.name} ({graph.id[:12]}) cannot be deployed: {graph.not_deployable_reason}",
                graph_id=graph.id,
            )
        check_compile(plan, workers)
        device_ids = {device_id for stage in plan.stages for device_id in stage.device_ids}
        live = await list_live_daemons(session, await database_now(session))
        deployment = Deployment(
            id=f"dep-{secrets.token_hex(6)}",
            plan_id=plan_id,
            graph_id=graph.id,
            state=DeploymentState.PENDING,
            generation=1,
            stages=admit(plan, live, await promised_bytes(session, device_ids)),
            created_at=now,
            recovery=recovery,
            workers=workers,
        )
        await add_deployment(session, deployment)
        return deployment, plan, graph

    async def _roll_out(self, driver: Driver, plan: Plan, graph: GraphRecord) -> None:
        with suppress(NotLeading):
            await driver.handle(await self._start_of(driver, plan, graph))

    async def _start_of(self, driver: Driver, plan: Plan, graph: GraphRecord) -> Started | Broken:
        """Prepares what the daemons are told."""
        try:
            driver.requests = await self._prepare(driver.deployment, plan, graph)
        except PlannerError as error:
            return Broken(failure_of_error(error))
        except Exception as error:
            log.exception("preparing stages", deployment_id=driver.deployment.id)
            return Broken(Failure(reason="INTERNAL", message=f"the stages could not be prepared: {error}"))
        return Started()

    def _prepare(self, deployment: Deployment, plan: Plan, graph: GraphRecord) -> Awaitable[StageRequests]:
        return asyncio.to_thread(
            prepare_requests,
            deployment,
            plan,
            graph.sha256,
            graph.weights,
            self._blobs,
            self._deadlines.edge_seconds,
            self._daemon_identity,
        )

    async def _resume(self) -> None:
        """Each time that it begins to lead: what was being rolled out begins anew, what is ready goes on, what was
        draining is drained. Raises NotLeading.
        """
        async with self._resumption:
            if self._resumed:
                return
            await self._leadership.take()
            async with self._database.reading() as session:
                deployments = await list_active_deployments(session)
                daemons = await list_daemons(session)
                now = await database_now(session)
            self._remember(daemons, deployments, now)
            await self._write_leases()
            # Whoever waits may leave from here on: no deployment has two drivers.
            taking_up = [self._spawn(self._take_up(self._add_driver(deployment))) for deployment in deployments]
            self._resumed = True
            self._news.set()
            await asyncio.shield(asyncio.gather(*taking_up))

    async def _take_up(self, driver: Driver) -> None:
        with suppress(NotLeading):
            await driver.handle(TakenUp())

    def _add_driver(self, deployment: Deployment) -> Driver:
        driver = Driver(deployment, self._clients_of(deployment), self._ledger, self._placer.place, self._news.set)
        self._drivers[deployment.id] = driver
        return driver

    def _clients_of(self, deployment: Deployment) -> dict[str, DaemonClient]:
        return clients_of(deployment, self._client)

    def _client(self, device_id: str, address: str) -> DaemonClient:
        client = self._clients.get((device_id, address))
        if client is None:
            client = DaemonClient(device_id, address, self._deadlines, self._credentials, self._planner_secret)
            self._clients[device_id, address] = client
        self._wanted_at[device_id, address] = _seconds()
        return client

    async def _close_unused(self) -> None:
        """Each start of a daemon has an address of its own, and most are never called again."""
        drivers = self._drivers.values()
        in_use = {(one.device_id, one.daemon_address) for driver in drivers for one in driver.deployment.stages}
        last = _seconds() - UNUSED_SECONDS
        unused = [key for key, wanted_at in self._wanted_at.items() if wanted_at < last and key not in in_use]
        for key in unused:
            del self._wanted_at[key]
        await asyncio.gather(*[self._clients.pop(key).close() for key in unused])

    def _remember(self, daemons: Iterable[Daemon], deployments: Iterable[Deployment], now: datetime) -> None:
        """Daemons in use have a full lease to come back: nobody could hear them before this planner was there."""
        used = {device_id for deployment in deployments for device_id in deployment.device_ids()}
        for daemon in daemons:
            if daemon.device.id in used or daemon.live_at(now):
                self._leases.hear(daemon.device.id, daemon.incarnation_id, _seconds())

    async def _recognise(self, device_id: str, incarnation_id: str, reported: Iterable[HeldDeployment]) -> None:
        """Raises NotFound or DeviceTaken. Reads the database only for one that was gone."""
        standing = self._leases.find(device_id)
        if standing is None:
            async with self._database.reading() as session:
                daemon = await find_daemon(session, device_id)
            if daemon is None:
                raise NotFound(f"no daemon has registered device {device_id!r}; register", device_id=device_id)
            holder_id = daemon.incarnation_id
        else:
            holder_id = standing.incarnation_id
        if holder_id != incarnation_id:
            self._refuse_taken(device_id, self._ended_of(reported))

    async def _succeed(self, device_id: str, standing: Standing, incarnation_id: str) -> None:
        """Raises DeviceTaken unless the holder of the lease has ended."""
        async with self._database.reading() as session:
            holder = await find_daemon(session, device_id)
        if holder is not None and holder.incarnation_id == incarnation_id:
            # It was added, and had left before that was known here.
            return
        if holder is None or holder.incarnation_id != standing.incarnation_id:
            self._refuse_taken(device_id)
        client = self._client(device_id, holder.address)
        if not await has_ended(client, standing.incarnation_id):
            log.warning("device is taken", device_id=device_id, holder=holder.address)
            self._refuse_taken(device_id)

    def _refuse_taken(self, device_id: str, ended: tuple[str, ...] = ()) -> NoReturn:
        """The refusal tells one that lost its device what it need not hold any longer."""
        raise DeviceTaken(
            f"device {device_id} is that of another daemon, which holds its lease: give each daemon a --device-id of "
            f"its own, or wait for up to {self._leases.lease_seconds:g} s if the other one is gone",
            device_id=device_id,
            lease_seconds=self._leases.lease_seconds,
            release_deployment_ids=",".join(ended[:MOST_RELEASES_IN_REFUSAL]),
        )

    def _ended_of(self, reported: Iterable[HeldDeployment]) -> tuple[str, ...]:
        return tuple(report.deployment_id for report in reported if not self._is_active(report))

    async def _hear(self, device_id: str, report: HeldDeployment) -> None:
        driver = self._drivers.get(report.deployment_id)
        if driver is None or driver.deployment.generation != report.generation:
            return
        if report.failure is not None:
            await driver.handle(driver.broken(report.failure, device_id), generation=report.generation)

    async def _clear(self, device_id: str, incarnation_id: str) -> None:
        """Nothing new goes to a daemon that was asked to end, and what is there moves or stops."""
        async with self._database.session() as session:
            await self._leadership.check(session)
            await set_draining(session, device_id, incarnation_id)
        for driver in self._active_on(device_id):
            if driver.rollout.state not in ABANDONED:
                why = f"the daemon of {device_id} is shutting down"
                await driver.handle(Leaving(device_id, why), generation=driver.deployment.generation)

    async def _move(self, driver: Driver, device_id: str) -> str:
        """Why it stays on the device; empty where it leaves it. One that is not ready yet is asked about again."""
        deployment = driver.deployment
        if driver.rollout.state in ABANDONED:
            return ""
        if deployment.recovery is not RecoveryPolicy.REPLAN:
            return f"its recovery policy is {deployment.recovery.value}; it goes on there until the daemon ends"
        if driver.rollout.state is not READY:
            return ""
        try:
            await self._placer.check_can_move(deployment)
        except BeingPlanned:
            return ""
        except PlannerError as error:
            return error.message
        await driver.handle(Leaving(device_id, f"device {device_id} is drained"), generation=deployment.generation)
        return ""

    async def _look_for_lost(self, device_id: str, reported_ids: Iterable[str]) -> None:
        """Heartbeats follow each other, so the second that lacks a READY deployment was written after it was READY."""
        present = frozenset(reported_ids)
        for driver in self._active_on(device_id):
            generation, key = driver.deployment.generation, (driver.deployment.id, device_id)
            if driver.deployment.id in present or driver.rollout.state is not DeploymentState.READY:
                self._misses.pop(key, None)
                continue
            self._misses[key] = self._misses.get(key, 0) + 1
            if self._misses[key] >= MISSES_UNTIL_LOST:
                message = f"the daemon of {device_id} no longer holds the deployment"
                failure = Failure(reason="STAGE_LOST", message=message, device_id=device_id)
                await driver.handle(driver.broken(failure, device_id), generation=generation)

    async def _write_leases(self) -> None:
        """Raises Unavailable where they cannot be written now."""
        renewals = self._leases.renewals(_seconds())
        async with self._database.session() as session:
            await self._leadership.check(session)
            now = await database_now(session)
            for renewal in renewals:
                expires_at = now + timedelta(seconds=renewal.remaining_seconds)
                await renew_lease(session, renewal.device_id, renewal.incarnation_id, expires_at)
        self._leases.attend(_seconds(), renewals)

    async def _end_lost(self) -> None:
        """Fails deployments whose daemons are gone or are others now."""
        for driver in tuple(self._drivers.values()):
            if driver.rollout.state.ended:
                self._retire(driver)
                continue
            deployment = driver.deployment
            failure = failure_of(deployment, self._leases)
            if failure is not None:
                await driver.handle(Broken(failure), generation=deployment.generation)

    async def _every_period(self, work: Callable[[], Awaitable[None]], trouble: str) -> None:
        """For ever: a failure is logged as `trouble`, and the next period may do better."""
        while True:
            try:
                await work()
            except NotLeading:
                pass
            except (PlannerError, TimeoutError) as error:
                log.warning(trouble, message=str(error) or "the database does not answer")
            except Exception:
                log.exception(trouble)
            await asyncio.sleep(self._leases.period_seconds)

    async def _check_leases(self) -> None:
        await self._resume()
        # One that hangs for longer is given up: the next may find another connection.
        async with asyncio.timeout(self._leases.lease_seconds):
            await self._write_leases()
        await self._end_lost()
        await self._close_unused()

    async def _end_refusing(self) -> None:
        """Breaks what runs on a daemon that has missed a heartbeat and is known to have ended: no lease has to run out.

        Its driver asks as soon as the connection to it breaks; but a host that was cut off may refuse only later.
        """
        late = [
            (driver, driver.deployment.generation, driver.deployment.stages_on(device_id)[0])
            for driver in self._drivers.values()
            if driver.rollout.state is READY
            for device_id in driver.deployment.device_ids()
            if self._leases.is_late(device_id, _seconds())
        ]
        ended = await asyncio.gather(
            *(
                has_ended(self._client(placement.device_id, placement.daemon_address), placement.incarnation_id)
                for _, _, placement in late
            )
        )
        for (driver, generation, placement), is_gone in zip(late, ended, strict=True):
            if is_gone:
                await driver.handle(Broken(failure_of_end(placement)), generation=generation)

    def _retire(self, driver: Driver) -> None:
        if not driver.is_busy:
            del self._drivers[driver.deployment.id]
            for device_id in driver.deployment.device_ids():
                self._misses.pop((driver.deployment.id, device_id), None)

    def _active_on(self, device_id: str) -> tuple[Driver, ...]:
        return tuple(
            driver
            for driver in self._drivers.values()
            if not driver.rollout.state.ended and driver.deployment.stages_on(device_id)
        )

    def _is_active(self, report: HeldDeployment) -> bool:
        """A generation has ended once the next has begun."""
        driver = self._drivers.get(report.deployment_id)
        if driver is None or driver.rollout.state.ended:
            return False
        return report.generation >= driver.deployment.generation

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _seconds() -> float:
    """The clock of all leases: no jump of the wall clock ends one."""
    return time.monotonic()
