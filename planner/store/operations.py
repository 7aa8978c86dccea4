"""Plan operations: asked for, claimed by a planner, computed, ended. An ended one never changes.

The rows are the queue: whichever planner is free claims the next that waits, or that a planner left behind which fell
silent. First comes what a deployment without a device waits for, then whoever has the fewest plans at work, and of one
principal the plan that is due first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from planner.errors import NotFound
from planner.plan.options import PlanOptions
from planner.plan.options_document import options_document, options_from_document
from planner.store.claims import claim_next, give_back, renew_claims
from planner.store.deployment_records import Failure
from planner.store.failures import failure_columns, failure_from_row
from planner.store.tables import PlanOperationRow


class OperationState(Enum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in _OPEN


_OPEN = (OperationState.PENDING, OperationState.RUNNING)
IS_OPEN = PlanOperationRow.state.in_([state.value for state in _OPEN])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOperation:
    """`id` is the plan's too. With `replaced_plan_id` the plan is to take that one's place on the inventory's devices,
    and `moved_bytes` is what it moves. In the `background` it waits until no other does.

    `principal` asked for it, empty where nobody is known. Its turn is at `due_at`, by default when it was created.
    """

    id: str
    graph_id: str
    inventory_id: str
    options: PlanOptions
    created_at: datetime
    state: OperationState = OperationState.PENDING
    failure: Failure | None = None
    ended_at: datetime | None = None
    background: bool = False
    replaced_plan_id: str | None = None
    moved_bytes: int | None = None
    principal: str = ""
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A planner's right to end the operation; whoever claims it later has a higher fence."""

    operation: PlanOperation
    fence: int


async def add_operation(session: AsyncSession, operation: PlanOperation) -> None:
    session.add(
        PlanOperationRow(
            id=operation.id,
            graph_id=operation.graph_id,
            inventory_id=operation.inventory_id,
            mode=operation.options.mode.name,
            options=options_document(operation.options),
            state=operation.state.value,
            created_at=operation.created_at,
            background=operation.background,
            replaced_plan_id=operation.replaced_plan_id,
            principal=operation.principal,
            due_at=operation.due_at or operation.created_at,
        )
    )
    await session.flush()


async def get_operation(session: AsyncSession, operation_id: str) -> PlanOperation:
    row = await session.get(PlanOperationRow, operation_id)
    if row is None:
        raise NotFound(f"no plan operation has the id {operation_id[:80]!r}; CreatePlan gives one")
    return _record(row)


async def count_open(session: AsyncSession, principal: str | None = None) -> int:
    """Of those that somebody waits for, or that `principal` does."""
    query = select(func.count()).where(IS_OPEN, not_(PlanOperationRow.background))
    if principal is not None:
        query = query.where(PlanOperationRow.principal == principal)
    return (await session.execute(query)).scalar_one()


async def count_operations(session: AsyncSession) -> dict[OperationState, int]:
    """In every state."""
    rows = await session.execute(
        select(PlanOperationRow.state, func.count().label("number")).group_by(PlanOperationRow.state)
    )
    counts = {row.state: row.number for row in rows}
    return {state: counts.get(state.value, 0) for state in OperationState}


async def hurry(session: AsyncSession, operation_id: str) -> None:
    """Somebody waits for it from now on."""
    await session.execute(
        update(PlanOperationRow)
        .where(PlanOperationRow.id == operation_id)
        .values(background=False)
        .execution_options(synchronize_session=False)
    )


async def list_hurried(session: AsyncSession, operation_ids: Iterable[str]) -> frozenset[str]:
    """Those of them that somebody waits for by now."""
    query = select(PlanOperationRow.id).where(
        PlanOperationRow.id.in_(tuple(operation_ids)), not_(PlanOperationRow.background)
    )
    return frozenset(await session.scalars(query))


async def claim_operation(
    session: AsyncSession,
    planner_id: str,
    claim_seconds: float,
    now: datetime,
    *,
    background: bool = True,
    most_of_one: int | None = None,
) -> Claim | None:
    """The next that nobody works on, RUNNING from now on; None where there is none.

    Those in the background come last, and without `background` not at all. A principal who is known has at most
    `most_of_one` at work on this planner.
    """
    is_open = IS_OPEN if background else and_(IS_OPEN, not_(PlanOperationRow.background))
    at_work = aliased(PlanOperationRow)
    num_at_work = (
        select(func.count())
        .where(
            at_work.principal == PlanOperationRow.principal,
            at_work.claimed_by == planner_id,
            at_work.state == OperationState.RUNNING.value,
        )
        .scalar_subquery()
    )
    if most_of_one is not None:
        is_open = and_(is_open, or_(PlanOperationRow.principal == "", num_at_work < most_of_one))
    row = await claim_next(
        session,
        PlanOperationRow,
        planner_id,
        claim_seconds,
        is_open,
        PlanOperationRow.background.asc(),
        PlanOperationRow.replaced_plan_id.is_(None).asc(),
        num_at_work.asc(),
        PlanOperationRow.due_at.asc(),
        PlanOperationRow.id.asc(),
    )
    if row is None:
        return None
    row.state = OperationState.RUNNING.value
    row.started_at = row.started_at or now
    return Claim(operation=_record(row), fence=row.fence)


async def renew_operations(session: AsyncSession, planner_id: str, claim_seconds: float) -> frozenset[str]:
    """The ids of those that are still this planner's and have not ended."""
    return await renew_claims(session, PlanOperationRow, planner_id, claim_seconds, IS_OPEN)


async def give_back_operations(
    session: AsyncSession, planner_id: str | None, operation_ids: Iterable[str] | None = None
) -> None:
    """They wait again: all of the planner's, or those named, or, where it is None, everybody's."""
    of_whom = IS_OPEN if planner_id is None else and_(IS_OPEN, PlanOperationRow.claimed_by == planner_id)
    if operation_ids is not None:
        of_whom = and_(of_whom, PlanOperationRow.id.in_(tuple(operation_ids)))
    await give_back(session, PlanOperationRow, of_whom, state=OperationState.PENDING.value)


async def list_ended(session: AsyncSession, operation_ids: Iterable[str]) -> frozenset[str]:
    query = select(PlanOperationRow.id).where(PlanOperationRow.id.in_(tuple(operation_ids)), not_(IS_OPEN))
    return frozenset(await session.scalars(query))


async def delete_ended(session: AsyncSession, of_what: ColumnElement[bool]) -> None:
    await session.execute(delete(PlanOperationRow).where(of_what, not_(IS_OPEN)))


async def end_operation(
    session: AsyncSession,
    operation_id: str,
    state: OperationState,
    now: datetime,
    failure: Failure | None = None,
    *,
    fence: int | None = None,
    moved_bytes: int | None = None,
) -> bool:
    """False where it has ended already, or, with `fence`, where another planner has claimed it since."""
    columns: dict[str, Any] = {**(failure_columns(failure) if failure else {}), "moved_bytes": moved_bytes}
    statement = update(PlanOperationRow).where(PlanOperationRow.id == operation_id, IS_OPEN)
    if fence is not None:
        statement = statement.where(PlanOperationRow.fence == fence)
    statement = statement.values(state=state.value, ended_at=now, claimed_by=None, claimed_until=None, **columns)
    result = await session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _record(row: PlanOperationRow) -> PlanOperation:
    return PlanOperation(
        id=row.id,
        graph_id=row.graph_id,
        inventory_id=row.inventory_id,
        options=options_from_document(row.options),
        created_at=row.created_at,
        state=OperationState(row.state),
        failure=failure_from_row(row),
        ended_at=row.ended_at,
        background=row.background,
        replaced_plan_id=row.replaced_plan_id,
        moved_bytes=row.moved_bytes,
        principal=row.principal,
        due_at=row.due_at,
    )
