"""What nobody can ask for any more, or need: forgotten after a while, so that the tables do not grow for ever."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import CursorResult, Delete, delete, exists, not_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.deployments import ENDED
from planner.store.operations import IS_OPEN
from planner.store.tables import (
    DaemonRow,
    DeploymentRow,
    DeploymentStageRow,
    InventoryRow,
    PlanOperationRow,
    PlanRow,
    RequestIdRow,
    SparePlanRow,
)


async def purge(session: AsyncSession, before: datetime) -> Mapping[str, int]:
    """How many rows of each table are gone: what ended, was last used, or was made before that moment.

    Request ids; operations without a plan; inventories that came inside of a request and belong to no plan; daemons
    that fell silent and on which no deployment was left that has not ended.
    """
    purged: dict[str, int] = {}
    for name, statement in _statements(before).items():
        result = await session.execute(statement.execution_options(synchronize_session=False))
        assert isinstance(result, CursorResult)
        purged[name] = result.rowcount
    return purged


def _statements(before: datetime) -> Mapping[str, Delete]:
    """In this order: an inventory is free once its last operation is gone."""
    in_use = (
        select(DeploymentStageRow.device_id)
        .join(DeploymentRow, DeploymentRow.id == DeploymentStageRow.deployment_id)
        .where(DeploymentRow.state.not_in(ENDED))
    )
    return {
        "request_ids": delete(RequestIdRow).where(RequestIdRow.created_at < before),
        "plan_operations": delete(PlanOperationRow).where(
            not_(IS_OPEN),
            PlanOperationRow.ended_at < before,
            ~exists().where(PlanRow.id == PlanOperationRow.id),
            ~exists().where(SparePlanRow.operation_id == PlanOperationRow.id),
        ),
        "inventories": delete(InventoryRow).where(
            not_(InventoryRow.listed),
            InventoryRow.created_at < before,
            ~exists().where(PlanRow.inventory_id == InventoryRow.id),
            ~exists().where(PlanOperationRow.inventory_id == InventoryRow.id),
        ),
        "daemons": delete(DaemonRow).where(DaemonRow.lease_expires_at < before, DaemonRow.device_id.not_in(in_use)),
    }
