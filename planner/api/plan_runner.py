"""Runs plan operations: each waits for its turn, is computed in a process of its own, and ends in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.computing import ComputationFailed, Computing
from planner.api.identity import new_id
from planner.api.tasks import GraphSource, compute_plan
from planner.cost.calibration import Calibration
from planner.cost.inventory import Inventory
from planner.cost.measured import MeasuredTimes
from planner.errors import PlannerError, ResourceExhausted, Unavailable
from planner.plan.options import PlanOptions, RatesFrom
from planner.store.database import Database
from planner.store.deployment_records import Failure
from planner.store.failures import failure_of
from planner.store.operations import (
    OperationState,
    PlanOperation,
    end_operation,
    fail_open_operations,
    get_operation,
    start_operation,
)
from planner.store.plans import add_plan
from planner.store.profiles import calibrations_for, times_for

Facts = tuple[tuple[MeasuredTimes, ...], tuple[Calibration, ...]]
# How often an operation that no task here computes is looked at while somebody waits for it.
POLL_SECONDS = 0.5

log = structlog.get_logger(__name__)

RESTARTED = Failure(
    reason="SERVER_RESTARTED",
    message="the planner stopped before the plan was computed; ask for it again with a new request_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """All that a worker needs, and where the result belongs. `rates_from` is the request's, else the server's."""

    operation_id: str
    inventory_id: str
    source: GraphSource
    graph_id: str
    inventory: Inventory
    options: PlanOptions
    rates_from: RatesFrom


class PlanRunner:
    def __init__(self, database: Database, computing: Computing, timeout_seconds: float) -> None:
        self._database = database
        self._computing = computing
        self._timeout_seconds = timeout_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def recover(self) -> None:
        """Ends what a server that died left open."""
        async with self._database.session() as session:
            num_failed = await fail_open_operations(session, RESTARTED, _now())
        if num_failed:
            log.warning("operations failed by a restart", num_operations=num_failed)

    def submit(self, job: PlanJob) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job), name=job.operation_id)
        self._tasks[job.operation_id] = task
        task.add_done_callback(self._forget(job.operation_id))

    async def wait(self, operation_id: str, timeout_seconds: float) -> PlanOperation:
        """The operation once it has ended, or as it stands after `timeout_seconds`: never before."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_seconds
        while True:
            task = self._tasks.get(operation_id)
            if task is not None:
                await asyncio.wait({task}, timeout=max(0.0, ends_at - loop.time()))
            async with self._database.reading() as session:
                operation = await get_operation(session, operation_id)
            remaining_seconds = ends_at - loop.time()
            if operation.state.ended or remaining_seconds <= 0:
                return operation
            await asyncio.sleep(min(POLL_SECONDS, remaining_seconds))

    async def cancel(self, operation_id: str) -> PlanOperation:
        """Kills the computation. An operation that has ended stays as it is."""
        async with self._database.session() as session:
            await get_operation(session, operation_id)
            await end_operation(session, operation_id, OperationState.CANCELLED, _now())
        await self._kill([operation_id])
        async with self._database.reading() as session:
            return await get_operation(session, operation_id)

    async def close(self) -> None:
        """What cannot be written now is ended by the next server's `recover`."""
        await self._kill(list(self._tasks))
        try:
            async with self._database.session() as session:
                await fail_open_operations(session, RESTARTED, _now())
        except (Unavailable, ResourceExhausted) as error:
            log.warning("operations stay open", message=error.message)

    async def _kill(self, operation_ids: list[str]) -> None:
        tasks = [task for operation_id in operation_ids if (task := self._tasks.get(operation_id))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, job: PlanJob) -> None:
        try:
            async with self._computing.turn():
                await self._compute(job)
        except PlannerError as error:
            await self._fail(job.operation_id, _failure(error, job.operation_id))
        except Exception as error:
            incident = _incident(job.operation_id, exc_info=error)
            await self._fail(job.operation_id, incident)

    async def _compute(self, job: PlanJob) -> None:
        facts = await self._database.persist(lambda session: _begin(session, job))
        if facts is None:
            return
        measured, calibrations = facts
        plan = await self._computing.run(
            self._timeout_seconds,
            compute_plan,
            job.source,
            job.graph_id,
            job.inventory,
            job.options,
            measured,
            calibrations,
        )
        ended_at = _now()

        async def succeed(session: AsyncSession) -> None:
            if await end_operation(session, job.operation_id, OperationState.SUCCEEDED, ended_at):
                await add_plan(session, job.operation_id, plan, job.inventory_id, ended_at)

        await self._database.persist(succeed)

    async def _fail(self, operation_id: str, failure: Failure) -> None:
        log.info("plan failed", operation_id=operation_id, reason=failure.reason, message=failure.message)
        ended_at = _now()
        await self._database.persist(
            lambda session: end_operation(session, operation_id, OperationState.FAILED, ended_at, failure)
        )

    def _forget(self, operation_id: str) -> Callable[[asyncio.Task[None]], None]:
        def forget(task: asyncio.Task[None]) -> None:
            self._tasks.pop(operation_id, None)
            if not task.cancelled() and task.exception() is not None:
                log.error("operation could not be ended", operation_id=operation_id, exc_info=task.exception())

        return forget


async def _begin(session: AsyncSession, job: PlanJob) -> Facts | None:
    """What was measured so far; None where the operation has ended already."""
    if not await start_operation(session, job.operation_id, _now()):
        operation = await get_operation(session, job.operation_id)
        if operation.state is not OperationState.RUNNING:
            return None
    kinds = [device.kind for device in job.inventory.devices]
    measured = await times_for(session, job.graph_id, kinds)
    calibrations = await calibrations_for(session, kinds, job.rates_from, job.options.rates_from_profiles)
    return measured, calibrations


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
