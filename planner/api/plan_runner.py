"""Plan operations, computed by whichever planner is free: claimed in the database, each in a process of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.computing import ComputationFailed, Computing, TimedOut, WorkerDied
from planner.api.graph_calls import graph_source
from planner.api.identity import new_id
from planner.api.metrics import PlanMetrics
from planner.api.tasks import GraphSource, compute_plan, compute_replacement
from planner.cost.calibration import Calibration
from planner.cost.inventory import Inventory
from planner.cost.measured import MeasuredTimes
from planner.errors import PlannerError
from planner.plan.options import RatesFrom
from planner.plan.plan import Plan
from planner.settings import Settings
from planner.store.database import Database
from planner.store.deployment_records import Failure
from planner.store.failures import failure_of
from planner.store.graphs import get_graph
from planner.store.inventories import get_inventory
from planner.store.operations import (
    Claim,
    OperationState,
    PlanOperation,
    claim_operation,
    end_operation,
    get_operation,
    give_back_operations,
    list_ended,
    list_hurried,
    renew_operations,
)
from planner.store.plans import add_plan, get_plan
from planner.store.profiles import calibrations_for, times_for

# From one look at the database to the next, for what other planners leave, end or ask for.
PERIOD_SECONDS = 0.5
# Of plans made ahead: whatever else the host computes comes first.
BACKGROUND_NICENESS = 15
# A plan whose planners died this often is most likely what kills them.
MOST_CLAIMS = 20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """All that a worker needs besides the operation. `replaced` is the plan whose place is to be taken, if any."""

    source: GraphSource
    inventory: Inventory
    measured: tuple[MeasuredTimes, ...]
    calibrations: tuple[Calibration, ...]
    replaced: Plan | None = None


class PlannersDied(PlannerError):
    reason = "PLANNERS_DIED"


class PlanRunner:
    """`start`, or `run` in a task, claims and computes; the other calls work without it, for another planner may."""

    def __init__(
        self, database: Database, computing: Computing, settings: Settings, metrics: PlanMetrics | None = None
    ) -> None:
        self.planner_id = new_id("planner")
        self._database = database
        self._computing = computing
        self._settings = settings
        self._metrics = metrics or PlanMetrics(CollectorRegistry(), computing.num_workers)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Those at work that are made ahead; each is told once somebody waits for it.
        self._background: dict[str, asyncio.Event] = {}
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes up what was left on a database that no other planner can be on, and runs until `close`."""
        if not self._database.is_shared:
            async with self._database.session() as session:
                await give_back_operations(session, None)
        self._running = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Until cancelled. A database that is away is waited for; what is being computed goes on meanwhile."""
        while True:
            self._wake.clear()
            period_seconds: float | None = PERIOD_SECONDS
            try:
                # One that hangs for longer is given up: the next may find another connection.
                async with asyncio.timeout(self._settings.claim_seconds):
                    await self._attend()
                if not (self._database.is_shared or self._tasks or self._waiters):
                    # No other planner is there, and what is asked of this one wakes it.
                    period_seconds = None
            except (PlannerError, TimeoutError) as error:
                log.warning("no plans are claimed", message=str(error) or "the database does not answer")
            except Exception:
                log.exception("claiming plans")
            with suppress(TimeoutError):
                async with asyncio.timeout(period_seconds):
                    await self._wake.wait()

    def wake(self) -> None:
        """There is an operation to claim."""
        self._wake.set()

    async def wait(self, operation_id: str, timeout_seconds: float) -> PlanOperation:
        """The operation once it has ended, or as it stands after `timeout_seconds`: never before."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_seconds
        ended = asyncio.Event()
        self._waiters[operation_id].add(ended)
        self.wake()
        try:
            while True:
                ended.clear()
                async with self._database.reading() as session:
                    operation = await get_operation(session, operation_id)
                remaining_seconds = ends_at - loop.time()
                if operation.state.ended or remaining_seconds <= 0:
                    return operation
                with suppress(TimeoutError):
                    async with asyncio.timeout(remaining_seconds):
                        await ended.wait()
        finally:
            self._waiters[operation_id].discard(ended)
            if not self._waiters[operation_id]:
                del self._waiters[operation_id]

    async def cancel(self, operation_id: str) -> PlanOperation:
        """Kills the computation, also that of another planner. An operation that has ended stays as it is."""
        async with self._database.session() as session:
            await get_operation(session, operation_id)
            await end_operation(session, operation_id, OperationState.CANCELLED, _now())
        await self._kill([operation_id])
        async with self._database.reading() as session:
            return await get_operation(session, operation_id)

    async def close(self) -> None:
        """What is not computed yet is given back: another planner has it at once, or the next that starts here."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self._kill(list(self._tasks))
        try:
            async with self._database.session() as session:
                await give_back_operations(session, self.planner_id)
        except PlannerError as error:
            log.warning("operations stay claimed", message=error.message)

    async def _attend(self) -> None:
        async with self._database.session() as session:
            claimed_ids = await renew_operations(session, self.planner_id, self._settings.claim_seconds)
            # Where a commit was not confirmed, the claim stands and nobody works on it.
            if unknown := claimed_ids - self._tasks.keys():
                await give_back_operations(session, self.planner_id, unknown)
            hurried = await list_hurried(session, self._background) if self._background else ()
        for operation_id in hurried:
            # It may have ended since the database was asked.
            if (somebody_waits := self._background.pop(operation_id, None)) is not None:
                somebody_waits.set()
        # Cancelled by a call, or another planner's now.
        await self._kill([operation_id for operation_id in self._tasks if operation_id not in claimed_ids])
        await self._tell_ended()
        while len(self._tasks) < self._computing.num_workers and (claim := await self._claim()) is not None:
            self._start(claim)

    async def _claim(self) -> Claim | None:
        """Of several workers plans made ahead leave one to those that somebody waits for, and each caller to others."""
        all_but_one = max(1, self._computing.num_workers - 1)
        has_room = len(self._background) < all_but_one
        async with self._database.session() as session:
            return await claim_operation(
                session,
                self.planner_id,
                self._settings.claim_seconds,
                _now(),
                background=has_room,
                most_of_one=all_but_one,
            )

    def _start(self, claim: Claim) -> None:
        operation_id = claim.operation.id
        if claim.operation.background:
            self._background[operation_id] = asyncio.Event()
        task = asyncio.create_task(self._run(claim), name=operation_id)
        self._tasks[operation_id] = task
        task.add_done_callback(lambda done: self._forget(operation_id, done))

    async def _tell_ended(self) -> None:
        if not self._waiters:
            return
        async with self._database.reading() as session:
            ended = await list_ended(session, self._waiters)
        for operation_id in ended:
            self._tell(operation_id)

    def _tell(self, operation_id: str) -> None:
        for waiter in self._waiters.get(operation_id, ()):
            waiter.set()

    async def _kill(self, operation_ids: list[str]) -> None:
        tasks = [task for operation_id in operation_ids if (task := self._tasks.get(operation_id))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, claim: Claim) -> None:
        with self._metrics.observe(claim.operation.created_at) as fails:
            try:
                await self._compute(claim)
            except PlannerError as error:
                fails(error.reason)
                await self._fail(claim, _failure(error, claim.operation.id))
            except Exception as error:
                fails(PlannerError.reason)
                await self._fail(claim, _incident(claim.operation.id, exc_info=error))

    async def _compute(self, claim: Claim) -> None:
        operation = claim.operation
        if claim.fence > MOST_CLAIMS:
            raise PlannersDied(
                f"{MOST_CLAIMS} planners ended while they computed this plan; ask for it with fewer devices or nodes"
            )
        job = await self._database.persist(lambda session: self._prepare(session, operation))
        plan, moved_bytes = await self._run_job(operation, job)
        ended_at = _now()

        async def succeed(session: AsyncSession) -> None:
            if await end_operation(
                session, operation.id, OperationState.SUCCEEDED, ended_at, fence=claim.fence, moved_bytes=moved_bytes
            ):
                await add_plan(session, operation.id, plan, operation.inventory_id, ended_at)

        await self._database.persist(succeed)
        log.info(
            "plan made",
            id=operation.id,
            graph_id=operation.graph_id,
            mode=operation.options.mode.name,
            num_stages=len(plan.stages),
            seconds=round((ended_at - operation.created_at).total_seconds(), 3),
        )

    async def _run_job(self, operation: PlanOperation, job: PlanJob) -> tuple[Plan, int | None]:
        """The plan, and what it moves where it takes another's place."""
        if job.replaced is not None:
            return await self._replace(operation, job, job.replaced)
        plan = await self._computing.run(
            self._settings.plan_timeout_seconds,
            compute_plan,
            job.source,
            operation.graph_id,
            job.inventory,
            operation.options,
            job.measured,
            job.calibrations,
        )
        return plan, None

    async def _replace(self, operation: PlanOperation, job: PlanJob, replaced: Plan) -> tuple[Plan, int]:
        """One that is made ahead yields the processor to all else on the host, and no process can take that back. So
        once somebody waits for it a second one computes it too, and the first that ends counts, unless it was ended
        by its time or its host: that says nothing of the plan.
        """

        async def compute(niceness: int) -> tuple[Plan, int]:
            return await self._computing.run(
                self._settings.plan_timeout_seconds,
                compute_replacement,
                job.source,
                operation.graph_id,
                job.inventory,
                operation.options,
                replaced,
                job.measured,
                job.calibrations,
                niceness,
            )

        hurried = self._background.get(operation.id)
        if hurried is None:
            return await compute(0)

        async def overtake() -> tuple[Plan, int]:
            await hurried.wait()
            return await compute(0)

        ahead, overtaking = asyncio.create_task(compute(BACKGROUND_NICENESS)), asyncio.create_task(overtake())
        try:
            await asyncio.wait((ahead, overtaking), return_when=asyncio.FIRST_COMPLETED)
            first, second = (ahead, overtaking) if ahead.done() else (overtaking, ahead)
            if hurried.is_set() and isinstance(first.exception(), (TimedOut, WorkerDied)):
                return await second
            return first.result()
        finally:
            for task in (ahead, overtaking):
                task.cancel()
            await asyncio.gather(ahead, overtaking, return_exceptions=True)

    async def _prepare(self, session: AsyncSession, operation: PlanOperation) -> PlanJob:
        graph = await get_graph(session, operation.graph_id)
        inventory = (await get_inventory(session, operation.inventory_id)).inventory
        kinds = [device.kind for device in inventory.devices]
        options = operation.options
        replaced = None
        if operation.replaced_plan_id is not None:
            replaced, _ = await get_plan(session, operation.replaced_plan_id)
        rates_from = options.rates_from or RatesFrom(self._settings.rates_from)
        return PlanJob(
            source=graph_source(self._settings, graph.sha256),
            inventory=inventory,
            measured=await times_for(session, graph.id, kinds),
            calibrations=await calibrations_for(session, kinds, rates_from, options.rates_from_profiles),
            replaced=replaced,
        )

    async def _fail(self, claim: Claim, failure: Failure) -> None:
        operation_id, ended_at = claim.operation.id, _now()
        log.info("plan failed", operation_id=operation_id, reason=failure.reason, message=failure.message)
        await self._database.persist(
            lambda session: end_operation(
                session, operation_id, OperationState.FAILED, ended_at, failure, fence=claim.fence
            )
        )

    def _forget(self, operation_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(operation_id, None)
        self._background.pop(operation_id, None)
        self._tell(operation_id)
        self.wake()
        if not task.cancelled() and task.exception() is not None:
            log.error("operation could not be ended", operation_id=operation_id, exc_info=task.exception())


def _failure(error: PlannerError, operation_id: str) -> Failure:
    if isinstance(error, ComputationFailed):
        return _incident(operation_id, details=error.metadata.get("details", error.message))
    return failure_of(error)


def _incident(operation_id: str, **details: object) -> Failure:
    incident_id = new_id("incident")
    log.error("incident", incident_id=incident_id, operation_id=operation_id, **details)
    return Failure(
        reason="INTERNAL",
        message=f"internal error {incident_id}: the planner's log has the details under that id",
        metadata={"incident_id": incident_id},
    )


def _now() -> datetime:
    return datetime.now(UTC)
