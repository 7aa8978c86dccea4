"""Who made what: the objects that only their owners, or an operator, may change."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.tables import OwnerRow


async def add_owner(session: AsyncSession, kind: str, object_id: str, principal: str, now: datetime) -> None:
    """Idempotent, also beside another transaction that does the same."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    row = insert(OwnerRow).values(kind=kind, object_id=object_id, principal=principal, created_at=now)
    await session.execute(row.on_conflict_do_nothing())


async def forget_owners(session: AsyncSession, kind: str, object_id: str) -> None:
    """Of an object that is deleted: one that is made anew belongs to whoever makes it."""
    await session.execute(delete(OwnerRow).where(OwnerRow.kind == kind, OwnerRow.object_id == object_id))


async def owners_of(session: AsyncSession, kind: str, object_id: str) -> frozenset[str]:
    query = select(OwnerRow.principal).where(OwnerRow.kind == kind, OwnerRow.object_id == object_id)
    return frozenset(await session.scalars(query))
