"""Purges the database and collects blobs every hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import structlog

from planner.api.blob_collection import BlobCollection
from planner.errors import PlannerError
from planner.store.database import Database
from planner.store.purge import purge

PERIOD_SECONDS = 3600.0

log = structlog.get_logger(__name__)


class Housekeeping:
    """Planners on one database may each do it: what one has purged or collected the next does not find."""

    def __init__(self, database: Database, keep_days: float, collection: BlobCollection) -> None:
        self._database = database
        self._keep = timedelta(days=keep_days)
        self._collection = collection
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Runs in the background until `close`."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        while True:
            await _attempt("purge", self._purge)
            await _attempt("collect blobs", self._collect)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _purge(self) -> None:
        async with self._database.session() as session:
            purged = await purge(session, datetime.now(UTC) - self._keep)
        if any(purged.values()):
            log.info("purged", **purged)

    async def _collect(self) -> None:
        collected = await self._collection.run()
        if collected.num_blobs:
            log.info("collected blobs", **asdict(collected))


async def _attempt(chore: str, do: Callable[[], Awaitable[None]]) -> None:
    """One that fails keeps no other from being done."""
    try:
        await do()
    except PlannerError as error:
        log.warning("not done now", chore=chore, message=error.message)
    except Exception:
        log.exception("not done", chore=chore)
