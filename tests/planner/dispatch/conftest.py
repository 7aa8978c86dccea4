"""Daemons that do what a test tells them to, and a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from planner.dispatch.daemon_client import CallDeadlines
from planner.store.database import Database
from tests.contract.databases import empty_database
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.waiting import WAIT_SECONDS

# Nothing is late only because the machine is slow.
PATIENT = CallDeadlines(
    rendezvous_seconds=WAIT_SECONDS,
    connect_seconds=WAIT_SECONDS,
    status_seconds=WAIT_SECONDS,
    release_seconds=WAIT_SECONDS,
)


@pytest_asyncio.fixture
async def daemons() -> AsyncIterator[dict[str, ScriptedDaemon]]:
    """Running ones for the devices "a" and "b"."""
    running = {device_id: ScriptedDaemon(device_id) for device_id in "ab"}
    for daemon in running.values():
        await daemon.start()
    yield running
    for daemon in running.values():
        daemon.resume.set()
        await daemon.stop()


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    with empty_database("sqlite", tmp_path) as url:
        database = Database(url)
        yield database
        await database.close()
