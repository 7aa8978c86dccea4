"""The audit trail as rows that nothing changes: who did what, when, from where, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.paging import PageRequest
from planner.store.tables import AuditRow


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """`created_at` is when the call ended. `outcome` is "OK" or the reason of its error."""

    id: str
    created_at: datetime
    principal: str
    method: str
    subject: str
    peer: str
    outcome: str


async def append_audit(session: AsyncSession, entries: Iterable[AuditEntry]) -> None:
    """Idempotent."""
    for entry in entries:
        if await session.get(AuditRow, entry.id) is None:
            session.add(
                AuditRow(
                    id=entry.id,
                    occurred_at=entry.created_at,
                    principal=entry.principal,
                    method=entry.method,
                    subject=entry.subject,
                    peer=entry.peer,
                    outcome=entry.outcome,
                )
            )


async def list_audit(
    session: AsyncSession, page: PageRequest, *, principal: str = "", subject: str = ""
) -> tuple[tuple[AuditEntry, ...], str]:
    """Newest first; empty filters let everything through."""
    query = select(AuditRow)
    if principal:
        query = query.where(AuditRow.principal == principal)
    if subject:
        query = query.where(AuditRow.subject == subject)
    rows = await session.scalars(page.select(query, AuditRow.occurred_at, AuditRow.id))
    return page.cut([_record(row) for row in rows])


def _record(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        created_at=row.occurred_at,
        principal=row.principal,
        method=row.method,
        subject=row.subject,
        peer=row.peer,
        outcome=row.outcome,
    )
