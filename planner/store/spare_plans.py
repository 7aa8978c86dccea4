"""Plans for a deployment that loses devices: which operation makes the one without these, and what of them is obsolete.

An operation of a plan made ahead is one of many, in the background; a deployment's generation has one for each set of
devices that it may lose. The next generation needs others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.deployment_records import Deployment
from planner.store.deployments import ENDED
from planner.store.inventories import InventoryRecord, add_inventory
from planner.store.operations import OperationState, PlanOperation, add_operation, end_operation, get_operation
from planner.store.tables import DeploymentRow, PlanRow, SparePlanRow


async def lock_spares(session: AsyncSession, deployment: Deployment) -> None:
    """Whoever looks for the deployment's plans and asks for what lacks comes after who did so before, and finds those.

    Until the transaction ends.
    """
    await session.get(DeploymentRow, deployment.id, with_for_update={"key_share": True})


async def find_spare(session: AsyncSession, deployment: Deployment, lost: Iterable[str]) -> PlanOperation | None:
    """The operation that makes, or made, the plan for this generation without the devices."""
    row = await session.get(SparePlanRow, (deployment.id, _key(lost)))
    if row is None or row.generation != deployment.generation:
        return None
    return await get_operation(session, row.operation_id)


async def list_spares(session: AsyncSession, deployment: Deployment) -> frozenset[frozenset[str]]:
    """The sets of lost devices that this generation has an operation for."""
    texts = await session.scalars(
        select(SparePlanRow.lost_device_ids).where(
            SparePlanRow.deployment_id == deployment.id, SparePlanRow.generation == deployment.generation
        )
    )
    return frozenset(frozenset(json.loads(text)) for text in texts)


async def add_spare(
    session: AsyncSession,
    deployment: Deployment,
    lost: Iterable[str],
    operation: PlanOperation,
    inventory: InventoryRecord,
) -> None:
    """Asks for the plan, in the place of one that was asked for before."""
    await add_inventory(session, inventory)
    await add_operation(session, operation)
    before = await session.get(SparePlanRow, (deployment.id, _key(lost)))
    if before is not None:
        await _drop(session, [before], operation.created_at)
    session.add(
        SparePlanRow(
            deployment_id=deployment.id,
            lost_device_ids=_key(lost),
            generation=deployment.generation,
            operation_id=operation.id,
        )
    )
    await session.flush()


async def drop_obsolete_spares(session: AsyncSession, now: datetime) -> None:
    """Of deployments that have ended, or are in a later generation; what is still computed for them is called off."""
    query = (
        select(SparePlanRow)
        .join(DeploymentRow, DeploymentRow.id == SparePlanRow.deployment_id)
        .where(DeploymentRow.state.in_(ENDED) | (DeploymentRow.generation > SparePlanRow.generation))
    )
    await _drop(session, (await session.scalars(query)).all(), now)


async def _drop(session: AsyncSession, rows: Iterable[SparePlanRow], now: datetime) -> None:
    """A plan that somebody deployed stays."""
    for row in rows:
        await session.delete(row)
        await session.flush()
        await end_operation(session, row.operation_id, OperationState.CANCELLED, now)
        used = exists().where(
            (DeploymentRow.plan_id == row.operation_id) | (DeploymentRow.asked_plan_id == row.operation_id)
        )
        await session.execute(delete(PlanRow).where(PlanRow.id == row.operation_id, ~used))


def _key(device_ids: Iterable[str]) -> str:
    return json.dumps(sorted(set(device_ids)))
