"""Writes down who did what: in the log at once, in the database as soon as it answers."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.identity import new_id
from planner.store.audit import AuditEntry, append_audit
from planner.store.database import Database

MOST_WAITING = 100_000
_MOST_AT_ONCE = 500
_MOST_SUBJECT_CHARACTERS = 200
_CLOSE_SECONDS = 5.0

log = structlog.get_logger(__name__)


class AuditTrail:
    """No call waits for it. What waits while the database is away is lost with the process; the log has it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[AuditEntry] = deque()
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._task = asyncio.create_task(self._write())

    def record(self, *, principal: str, method: str, subject: str, peer: str, outcome: str) -> None:
        entry = AuditEntry(
            id=new_id("audit"),
            created_at=datetime.now(UTC),
            principal=principal,
            method=method,
            # It came from the caller, and no column holds every character.
            subject="".join(filter(str.isprintable, subject))[:_MOST_SUBJECT_CHARACTERS],
            peer=peer,
            outcome=outcome,
        )
        log.info("audit", principal=principal, method=method, subject=entry.subject, peer=peer, outcome=outcome)
        if len(self._waiting) >= MOST_WAITING:
            log.error("audit entries are left out of the database, which is away", most_waiting=MOST_WAITING)
            return
        self._waiting.append(entry)
        self._written.clear()
        self._news.set()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._written.wait()
        except TimeoutError:
            log.error("audit entries were not written", num_entries=len(self._waiting))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                entries = list(self._waiting)[:_MOST_AT_ONCE]

                async def append(session: AsyncSession, entries: list[AuditEntry] = entries) -> None:
                    await append_audit(session, entries)

                await self._database.persist(append)
                for _ in entries:
                    self._waiting.popleft()
            self._written.set()
