"""Purges the database every hour."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import structlog

from planner.errors import PlannerError
from planner.store.database import Database
from planner.store.purge import purge

PERIOD_SECONDS = 3600.0

log = structlog.get_logger(__name__)


class Housekeeping:
    """Planners on one database may each do it: what one has purged the next does not find."""

    def __init__(self, database: Database, keep_days: float) -> None:
        self._database = database
        self._keep = timedelta(days=keep_days)
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
            try:
                async with self._database.session() as session:
                    purged = await purge(session, datetime.now(UTC) - self._keep)
                if any(purged.values()):
                    log.info("purged", **purged)
            except PlannerError as error:
                log.warning("nothing is purged now", message=error.message)
            except Exception:
                log.exception("purging")
            await asyncio.sleep(PERIOD_SECONDS)
