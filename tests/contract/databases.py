"""Empty databases with the planner's tables, of each kind, made in milliseconds from one that was migrated once."""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from planner.store.database import Database
from tests.contract.postgresql import postgresql

KINDS = ("sqlite", "postgresql")
TEMPLATE = "migrated"


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a database that nobody else uses. `folder` must exist."""
    if kind == "sqlite":
        path = folder / "planner.db"
        path.write_bytes(_migrated_sqlite())
        yield f"sqlite:///{path}"
        return
    _migrated_postgresql()
    server, name = postgresql(), f"test_{uuid.uuid4().hex[:12]}"
    server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}" STRATEGY file_copy')
    yield server.url(name)
    server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@functools.cache
def _migrated_sqlite() -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="migrated"))
    try:
        _migrate(f"sqlite:///{folder / 'planner.db'}")
        return (folder / "planner.db").read_bytes()
    finally:
        shutil.rmtree(folder)


@functools.cache
def _migrated_postgresql() -> None:
    postgresql().execute(f'CREATE DATABASE "{TEMPLATE}"')
    _migrate(postgresql().url(TEMPLATE))


def _migrate(url: str) -> None:
    """In a thread: the one that asks may have an event loop that runs."""

    async def migrate() -> None:
        database = Database(url)
        await database.migrate()
        await database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrate()).result()
