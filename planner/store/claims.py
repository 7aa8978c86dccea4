"""Work that one planner at a time does: its row says who claimed it, until when, and how often it was claimed.

A planner renews its claims again and again. One that is silent for longer than a claim lasts loses its rows to whoever
claims next, and what it still writes under its old number, the fence, is refused. Claims end by the database's clock:
no planner's own counts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.tables import ClaimColumns

ClaimedRow = TypeVar("ClaimedRow", bound=ClaimColumns)


async def claim_next(
    session: AsyncSession,
    rows: type[ClaimedRow],
    planner_id: str,
    claim_seconds: float,
    is_open: ColumnElement[bool],
    *order: ColumnElement[Any],
) -> ClaimedRow | None:
    """The first open row that nobody works on, claimed until the claim ends or is renewed. None where there is none."""
    now = await database_now(session)
    is_free = or_(
        rows.claimed_by.is_(None),
        and_(rows.claimed_by != planner_id, rows.claimed_until < now),
    )
    query = select(rows).where(is_open, is_free).order_by(*order).limit(1).with_for_update(skip_locked=True)
    row: ClaimedRow | None = await session.scalar(query, execution_options={"populate_existing": True})
    if row is not None:
        row.claimed_by = planner_id
        row.claimed_until = now + timedelta(seconds=claim_seconds)
        row.fence += 1
        await session.flush()
    return row


async def renew_claims(
    session: AsyncSession,
    rows: type[ClaimedRow],
    planner_id: str,
    claim_seconds: float,
    is_open: ColumnElement[bool],
) -> frozenset[str]:
    """The ids of all open rows that are still this planner's."""
    until = await database_now(session) + timedelta(seconds=claim_seconds)
    renewed = await session.scalars(
        update(rows)
        .where(rows.claimed_by == planner_id, is_open)
        .values(claimed_until=until)
        .returning(rows.id)
        .execution_options(synchronize_session=False)
    )
    return frozenset(renewed)


async def give_back(
    session: AsyncSession, rows: type[ClaimedRow], of_whom: ColumnElement[bool], **columns: object
) -> None:
    """Whoever claims next has the rows; `columns` are set besides."""
    await session.execute(
        update(rows)
        .where(rows.claimed_by.is_not(None), of_whom)
        .values(claimed_by=None, claimed_until=None, **columns)
        .execution_options(synchronize_session=False)
    )


async def database_now(session: AsyncSession) -> datetime:
    """SQLite has no other planner and no clock of its own."""
    if session.get_bind().dialect.name == "sqlite":
        return datetime.now(UTC)
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return now
