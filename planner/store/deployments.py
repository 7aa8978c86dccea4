"""Deployments in the database: where each stands, where its stages run, and its events in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import Conflict, NotFound
from planner.store.deployment_records import (
    Deployment,
    DeploymentEvent,
    DeploymentState,
    LoadedStage,
    RecoveryPolicy,
    StagePlacement,
    WorkerSettings,
)
from planner.store.failures import failure_columns, failure_from_row
from planner.store.owners import add_owner, forget_owners, owners_of
from planner.store.paging import PageRequest
from planner.store.tables import (
    DeploymentEventRow,
    DeploymentRow,
    DeploymentStageRow,
    OwnerRow,
    PlanStageRow,
    SparePlanRow,
)

ENDED = tuple(state.value for state in DeploymentState if state.ended)


async def add_deployment(session: AsyncSession, deployment: Deployment) -> None:
    session.add(
        DeploymentRow(
            id=deployment.id,
            plan_id=deployment.plan_id,
            asked_plan_id=deployment.asked_plan_id,
            plan_reason=deployment.plan_reason,
            graph_id=deployment.graph_id,
            state=deployment.state.value,
            generation=deployment.generation,
            recovery=deployment.recovery.value,
            num_threads=deployment.workers.num_threads,
            compile=deployment.workers.compile,
            input_address=deployment.input_address,
            output_address=deployment.output_address,
            created_at=deployment.created_at,
            ended_at=deployment.ended_at,
        )
    )
    await session.flush()
    _add_stages(session, deployment)


async def begin_generation(session: AsyncSession, deployment: Deployment) -> None:
    """The deployment stands from now on where it says, in the generation and by the plan that it says.

    A plan that was made for this deployment alone belongs to its owners from now on.
    """
    row = await session.get_one(DeploymentRow, deployment.id, with_for_update=True)
    if row.plan_id != deployment.plan_id:
        await session.execute(delete(SparePlanRow).where(SparePlanRow.operation_id == deployment.plan_id))
        for principal in await owners_of(session, "deployment", deployment.id):
            await add_owner(session, "plan", deployment.plan_id, principal, datetime.now(UTC))
    row.generation = deployment.generation
    row.plan_id = deployment.plan_id
    row.plan_reason = deployment.plan_reason
    row.input_address = deployment.input_address
    row.output_address = deployment.output_address
    await session.execute(delete(DeploymentStageRow).where(DeploymentStageRow.deployment_id == deployment.id))
    _add_stages(session, deployment)


def _add_stages(session: AsyncSession, deployment: Deployment) -> None:
    session.add_all(
        DeploymentStageRow(
            deployment_id=deployment.id,
            stage=placement.stage,
            position=position,
            device_id=placement.device_id,
            daemon_address=placement.daemon_address,
            incarnation_id=placement.incarnation_id,
            num_threads=placement.num_threads,
            compiled_difference=placement.compiled_difference,
        )
        for position, placement in enumerate(deployment.stages)
    )


async def set_loaded(session: AsyncSession, deployment_id: str, device_id: str, stages: Iterable[LoadedStage]) -> None:
    for loaded in stages:
        rows = update(DeploymentStageRow).where(
            DeploymentStageRow.deployment_id == deployment_id,
            DeploymentStageRow.device_id == device_id,
            DeploymentStageRow.stage == loaded.stage,
        )
        await session.execute(
            rows.values(num_threads=loaded.num_threads, compiled_difference=loaded.compiled_difference)
        )


async def get_deployment(session: AsyncSession, deployment_id: str) -> Deployment:
    """Raises NotFound."""
    deployments = await _read(session, select(DeploymentRow).where(DeploymentRow.id == deployment_id))
    if not deployments:
        raise NotFound(
            f"no deployment has the id {deployment_id[:80]!r}; list the deployments to see which there are",
            deployment_id=deployment_id[:80],
        )
    return deployments[0]


async def delete_deployment(session: AsyncSession, deployment_id: str) -> None:
    """With its events. Raises NotFound, and Conflict while it has not ended."""
    await session.get(DeploymentRow, deployment_id, with_for_update=True)
    deployment = await get_deployment(session, deployment_id)
    if not deployment.state.ended:
        raise Conflict(
            f"deployment {deployment.id} is {deployment.state.value}; stop it before deleting it",
            state=deployment.state.value,
        )
    await session.execute(delete(DeploymentRow).where(DeploymentRow.id == deployment.id))
    await forget_owners(session, "deployment", deployment.id)


async def list_active_deployments(session: AsyncSession) -> tuple[Deployment, ...]:
    """Those that are neither STOPPED nor FAILED, oldest first."""
    active = select(DeploymentRow).where(DeploymentRow.state.not_in(ENDED))
    return await _read(session, active.order_by(DeploymentRow.created_at, DeploymentRow.id))


async def list_deployments(
    session: AsyncSession,
    page: PageRequest,
    *,
    plan_id: str = "",
    graph_id: str = "",
    state: DeploymentState | None = None,
    active_only: bool = False,
) -> tuple[tuple[Deployment, ...], str]:
    """The page, newest first, and the token of the next; empty filters let everything through."""
    query = select(DeploymentRow)
    if graph_id:
        query = query.where(DeploymentRow.graph_id == graph_id)
    if state is not None:
        query = query.where(DeploymentRow.state == state.value)
    if plan_id:
        query = query.where(DeploymentRow.plan_id == plan_id)
    if active_only:
        query = query.where(DeploymentRow.state.not_in(ENDED))
    return page.cut(await _read(session, page.select(query, DeploymentRow.created_at, DeploymentRow.id)))


async def append_event(session: AsyncSession, deployment_id: str, event: DeploymentEvent) -> DeploymentEvent:
    """Gives the event the next sequence, whatever it came with, and moves the deployment to the event's state.

    The deployment's row is locked first, so that sequences stay without gaps among concurrent writers.
    """
    row = await session.get(DeploymentRow, deployment_id, with_for_update=True, populate_existing=True)
    assert row is not None, deployment_id
    last = await session.scalar(
        select(func.max(DeploymentEventRow.sequence)).where(DeploymentEventRow.deployment_id == deployment_id)
    )
    sequence = (last or 0) + 1
    columns = failure_columns(event.failure) if event.failure else {}
    session.add(
        DeploymentEventRow(
            deployment_id=deployment_id,
            sequence=sequence,
            occurred_at=event.occurred_at,
            state=event.state.value,
            message=event.message,
            stage=event.stage,
            device_id=event.device_id or None,
            loaded_bytes=event.loaded_bytes,
            total_bytes=event.total_bytes,
            **columns,
        )
    )
    row.state = event.state.value
    if event.state.ended:
        row.ended_at = event.occurred_at
        for name, content in columns.items():
            setattr(row, name, content)
    return replace(event, sequence=sequence)


async def is_last_event(session: AsyncSession, deployment_id: str, event: DeploymentEvent) -> bool:
    """Whether `event`, whatever its sequence, is the deployment's newest."""
    events = select(DeploymentEventRow).where(DeploymentEventRow.deployment_id == deployment_id)
    last = await session.scalar(events.order_by(DeploymentEventRow.sequence.desc()).limit(1))
    return last is not None and replace(_event_record(last), sequence=event.sequence) == event


async def list_events(session: AsyncSession, deployment_id: str, after_sequence: int) -> tuple[DeploymentEvent, ...]:
    rows = await session.scalars(
        select(DeploymentEventRow)
        .where(DeploymentEventRow.deployment_id == deployment_id, DeploymentEventRow.sequence > after_sequence)
        .order_by(DeploymentEventRow.sequence)
    )
    return tuple(_event_record(row) for row in rows)


async def count_deployments(session: AsyncSession) -> dict[DeploymentState, int]:
    """In every state."""
    rows = await session.execute(
        select(DeploymentRow.state, func.count().label("number")).group_by(DeploymentRow.state)
    )
    counts = {row.state: row.number for row in rows}
    return {state: counts.get(state.value, 0) for state in DeploymentState}


async def count_active(session: AsyncSession, principal: str) -> int:
    """Of those that it owns, how many have not ended."""
    owned = select(OwnerRow.object_id).where(OwnerRow.kind == "deployment", OwnerRow.principal == principal)
    query = select(func.count()).where(DeploymentRow.state.not_in(ENDED), DeploymentRow.id.in_(owned))
    return (await session.execute(query)).scalar_one()


async def promised_bytes(session: AsyncSession, device_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Per device, the peak bytes that each active deployment's plan promised there."""
    query = (
        select(DeploymentStageRow.device_id, DeploymentRow.id, func.sum(PlanStageRow.peak_bytes))
        .join(DeploymentRow, DeploymentRow.id == DeploymentStageRow.deployment_id)
        .join(
            PlanStageRow,
            (PlanStageRow.plan_id == DeploymentRow.plan_id) & (PlanStageRow.stage == DeploymentStageRow.stage),
        )
        .where(DeploymentRow.state.not_in(ENDED), DeploymentStageRow.device_id.in_(tuple(device_ids)))
        .group_by(DeploymentStageRow.device_id, DeploymentRow.id)
        .order_by(DeploymentStageRow.device_id, DeploymentRow.id)
    )
    promised: dict[str, dict[str, int]] = {}
    for device_id, deployment_id, size_bytes in await session.execute(query):
        promised.setdefault(device_id, {})[deployment_id] = int(size_bytes)
    return promised


async def _read(session: AsyncSession, query: Select[Any]) -> tuple[Deployment, ...]:
    rows = (await session.scalars(query, execution_options={"populate_existing": True})).all()
    placements = await _placements(session, [row.id for row in rows])
    return tuple(_record(row, placements[row.id]) for row in rows)


async def _placements(session: AsyncSession, deployment_ids: list[str]) -> Mapping[str, list[StagePlacement]]:
    rows = await session.scalars(
        select(DeploymentStageRow)
        .where(DeploymentStageRow.deployment_id.in_(deployment_ids))
        .order_by(DeploymentStageRow.deployment_id, DeploymentStageRow.stage, DeploymentStageRow.position)
    )
    placements: dict[str, list[StagePlacement]] = {deployment_id: [] for deployment_id in deployment_ids}
    for row in rows:
        placement = StagePlacement(
            stage=row.stage,
            device_id=row.device_id,
            daemon_address=row.daemon_address,
            incarnation_id=row.incarnation_id,
            num_threads=row.num_threads,
            compiled_difference=row.compiled_difference,
        )
        placements[row.deployment_id].append(placement)
    return placements


def _record(row: DeploymentRow, placements: list[StagePlacement]) -> Deployment:
    return Deployment(
        id=row.id,
        plan_id=row.plan_id,
        asked_plan_id=row.asked_plan_id,
        plan_reason=row.plan_reason,
        graph_id=row.graph_id,
        state=DeploymentState(row.state),
        generation=row.generation,
        recovery=RecoveryPolicy(row.recovery),
        workers=WorkerSettings(num_threads=row.num_threads, compile=row.compile),
        stages=tuple(placements),
        created_at=row.created_at,
        ended_at=row.ended_at,
        failure=failure_from_row(row),
    )


def _event_record(row: DeploymentEventRow) -> DeploymentEvent:
    return DeploymentEvent(
        sequence=row.sequence,
        occurred_at=row.occurred_at,
        state=DeploymentState(row.state),
        message=row.message,
        stage=row.stage,
        device_id=row.device_id or "",
        loaded_bytes=row.loaded_bytes,
        total_bytes=row.total_bytes,
        failure=failure_from_row(row),
    )
