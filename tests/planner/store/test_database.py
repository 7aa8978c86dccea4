"""The schema that the migrations make, on SQLite; tests/contract does the same on PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from planner.errors import InvalidArgument
from planner.store.database import Database, parse_url
from planner.store.tables import Row


def schema_differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), Row.metadata))


async def test_migrated_schema_is_the_tables(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'deep' / 'planner.db'}")
    await database.migrate()
    await database.migrate()
    async with database.session() as session:
        connection = await session.connection()
        assert await connection.run_sync(schema_differences) == []
    await database.close()


async def test_session_rolls_back_what_raises(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'planner.db'}")
    async with database.session() as session:
        await session.execute(text("CREATE TABLE t (x INTEGER)"))
    with pytest.raises(RuntimeError):
        await _insert_and_raise(database)
    async with database.session() as session:
        assert (await session.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0
    await database.close()


async def _insert_and_raise(database: Database) -> None:
    async with database.session() as session:
        await session.execute(text("INSERT INTO t VALUES (1)"))
        raise RuntimeError


async def test_a_caller_that_is_cancelled_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.store.database.BUSY_SECONDS", 2.0)
    database = Database(f"sqlite:///{tmp_path / 'planner.db'}")
    await database.migrate()

    async def read() -> None:
        async with database.session() as session:
            for _ in range(3):
                await session.execute(text("SELECT count(*) FROM deployments"))

    for steps in range(60):
        readers = [asyncio.create_task(read()) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for reader in readers:
            reader.cancel()
        ends = await asyncio.gather(*readers, return_exceptions=True)
        await read()
        del ends
    await database.close()


@pytest.mark.parametrize("url", ["", "mysql://host/name", "nonsense"])
def test_unknown_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"sqlite"):
        parse_url(url)
