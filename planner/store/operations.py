"""Plan operations: asked for, computed, ended. Each move is one guarded UPDATE, so that an ended one never changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import NotFound
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOperation:
    """`id` is the plan's too."""

    id: str
    graph_id: str
    inventory_id: str
    mode: str
    created_at: datetime
    state: OperationState = OperationState.PENDING
    failure: Failure | None = None
    ended_at: datetime | None = None


async def add_operation(session: AsyncSession, operation: PlanOperation) -> None:
    session.add(
        PlanOperationRow(
            id=operation.id,
            graph_id=operation.graph_id,
            inventory_id=operation.inventory_id,
            mode=operation.mode,
            state=operation.state.value,
            created_at=operation.created_at,
        )
    )
    await session.flush()


async def get_operation(session: AsyncSession, operation_id: str) -> PlanOperation:
    row = await session.get(PlanOperationRow, operation_id)
    if row is None:
        raise NotFound(f"no plan operation has the id {operation_id[:80]!r}; CreatePlan gives one")
    return PlanOperation(
        id=row.id,
        graph_id=row.graph_id,
        inventory_id=row.inventory_id,
        mode=row.mode,
        created_at=row.created_at,
        state=OperationState(row.state),
        failure=failure_from_row(row),
        ended_at=row.ended_at,
    )


async def count_open(session: AsyncSession) -> int:
    query = select(func.count()).where(PlanOperationRow.state.in_([state.value for state in _OPEN]))
    return (await session.execute(query)).scalar_one()


async def start_operation(session: AsyncSession, operation_id: str, now: datetime) -> bool:
    """False where it is not waiting any more."""
    return await _move(session, operation_id, (OperationState.PENDING,), state="running", started_at=now) == 1


async def end_operation(
    session: AsyncSession, operation_id: str, state: OperationState, now: datetime, failure: Failure | None = None
) -> bool:
    """False where it has ended already."""
    columns = failure_columns(failure) if failure else {}
    return await _move(session, operation_id, _OPEN, state=state.value, ended_at=now, **columns) == 1


async def fail_open_operations(session: AsyncSession, failure: Failure, now: datetime) -> int:
    """Ends all that a server which died left open; returns how many."""
    return await _move(session, None, _OPEN, state="failed", ended_at=now, **failure_columns(failure))


async def _move(
    session: AsyncSession, operation_id: str | None, before: tuple[OperationState, ...], **columns: Any
) -> int:
    statement = update(PlanOperationRow).where(PlanOperationRow.state.in_([state.value for state in before]))
    if operation_id is not None:
        statement = statement.where(PlanOperationRow.id == operation_id)
    statement = statement.values(**columns).execution_options(synchronize_session=False)
    result = await session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount
