"""Plans as they are asked for: get, list, delete. plan_write turns one into rows, plan_read back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import NotFound
from planner.plan.plan import Plan
from planner.store.deployments import ENDED
from planner.store.inventories import get_inventory
from planner.store.many_rows import add_rows
from planner.store.owners import forget_owners
from planner.store.paging import PageRequest
from planner.store.plan_read import read_plan
from planner.store.plan_write import plan_rows
from planner.store.references import refuse_while_needed
from planner.store.tables import DeploymentRow, PlanRow, PlanStageDeviceRow, SparePlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    id: str
    graph_id: str
    graph_name: str
    mode: str
    num_stages: int
    bottleneck_seconds: float
    peak_bytes: int
    created_at: datetime


# A whole row holds a plan's options, rates and orders of passes besides.
_SUMMARY = tuple(getattr(PlanRow, field.name) for field in fields(PlanSummary))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    """Empty fields let everything through."""

    graph_id: str = ""
    mode: str = ""
    device_id: str = ""


async def add_plan(session: AsyncSession, plan_id: str, plan: Plan, inventory_id: str, now: datetime) -> None:
    """`inventory_id` names the stored inventory that the plan was made for. Others have turns on the loop meanwhile."""
    await add_rows(session, plan_rows(plan_id, plan, inventory_id, now))


async def get_plan(session: AsyncSession, plan_id: str, *, keep: bool = False) -> tuple[Plan, datetime]:
    """The plan exactly as it was added, and when. Raises NotFound.

    With `keep`, nobody can delete it before the transaction ends.
    """
    row = await _row(session, plan_id, lock={"read": True, "key_share": True} if keep else None)
    inventory = (await get_inventory(session, row.inventory_id)).inventory
    plan = await read_plan(session, row, inventory)
    # Between two statements it may go, and the rest of its rows with it.
    if not await has_plan(session, plan_id):
        raise _not_there(plan_id)
    return plan, row.created_at


async def has_plan(session: AsyncSession, plan_id: str) -> bool:
    return await session.scalar(select(PlanRow.id).where(PlanRow.id == plan_id)) is not None


async def list_plans(
    session: AsyncSession, page: PageRequest, plan_filter: PlanFilter
) -> tuple[tuple[PlanSummary, ...], str]:
    """Without those that were made ahead for a deployment and are not in use."""
    query = select(*_SUMMARY).where(~exists().where(SparePlanRow.operation_id == PlanRow.id))
    if plan_filter.graph_id:
        query = query.where(PlanRow.graph_id == plan_filter.graph_id)
    if plan_filter.mode:
        query = query.where(PlanRow.mode == plan_filter.mode)
    if plan_filter.device_id:
        uses = exists().where(
            PlanStageDeviceRow.plan_id == PlanRow.id, PlanStageDeviceRow.device_id == plan_filter.device_id
        )
        query = query.where(uses)
    rows = await session.execute(page.select(query, PlanRow.created_at, PlanRow.id))
    return page.cut([PlanSummary(**row) for row in rows.mappings()])


async def delete_plan(session: AsyncSession, plan_id: str) -> None:
    """Raises NotFound, and Conflict while a deployment of it has not ended."""
    row = await _row(session, plan_id, lock=True)
    uses = or_(DeploymentRow.plan_id == plan_id, DeploymentRow.asked_plan_id == plan_id)
    running = select(DeploymentRow.id).where(uses, DeploymentRow.state.not_in(ENDED))
    await refuse_while_needed(session, f"plan {plan_id}", {"deployment": running}, "stop those first")
    await session.execute(delete(PlanRow).where(PlanRow.id == row.id))
    await forget_owners(session, "plan", plan_id)


async def _row(session: AsyncSession, plan_id: str, lock: bool | dict[str, Any] | None = None) -> PlanRow:
    row = await session.get(PlanRow, plan_id, with_for_update=lock)
    if row is None:
        raise _not_there(plan_id)
    return row


def _not_there(plan_id: str) -> NotFound:
    return NotFound(f"no plan has the id {plan_id[:80]!r}; list the plans to see which there are", plan_id=plan_id[:80])
