"""The schema that the migrations make, and what a transaction promises on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
import pytest_asyncio
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import InvalidArgument, ResourceExhausted, Unavailable
from planner.store import migrations
from planner.store.database import POOL_SIZE, Database, parse_url
from planner.store.graphs import add_graph, get_graph
from planner.store.tables import GraphRow, Row
from tests.contract.databases import empty_database
from tests.contract.postgresql import postgresql
from tests.planner.store.records import GRAPH_ID, fill, fill_plan, graph, plan
from tests.waiting import eventually

Begin = Callable[[Database], AbstractAsyncContextManager[AsyncSession]]


@pytest_asyncio.fixture
async def on_postgresql(tmp_path: Path) -> AsyncIterator[Database]:
    with empty_database("postgresql", tmp_path) as url:
        database = Database(url)
        yield database
        await database.close()


async def backend(session: AsyncSession) -> int:
    """The process of the server that answers the session."""
    pid: int = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    return pid


def schema_differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), Row.metadata))


@pytest.mark.services
async def test_migrated_schema_is_the_tables(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'deep' / 'planner.db'}")
    await database.migrate()
    await database.migrate()
    async with database.session() as session:
        connection = await session.connection()
        assert await connection.run_sync(schema_differences) == []
    await database.close()


@pytest.mark.services
async def test_a_schema_that_is_taken_back_leaves_no_table(database: Database) -> None:
    def back(connection: Connection) -> list[str]:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        return inspect(connection).get_table_names()

    async with database.session() as session:
        assert await (await session.connection()).run_sync(back) == ["alembic_version"]
    await database.migrate()
    async with database.session() as session:
        assert await (await session.connection()).run_sync(schema_differences) == []


@pytest.mark.services
async def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    async def insert_and_raise() -> None:
        async with database.session() as session:
            await add_graph(session, graph())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await insert_and_raise()
    async with database.session() as session:
        assert (await session.execute(text("SELECT count(*) FROM graphs"))).scalar_one() == 0


@pytest.mark.services
@pytest.mark.parametrize("changes", [{"name": "a\0b"}, {"size_bytes": 2**63}, {"num_nodes": -(2**63) - 1}])
async def test_what_no_column_can_hold_is_the_callers_mistake(database: Database, changes: dict[str, object]) -> None:
    record = graph(**changes)
    if "name" in changes and database.url.get_backend_name() == "sqlite":
        await fill(database, record)
        return
    with pytest.raises(InvalidArgument, match="the database cannot hold a value"):
        await fill(database, record)
    await fill(database, graph())


@pytest.mark.services
async def test_a_row_of_nothing_is_refused(database: Database) -> None:
    """SQLite checks foreign keys only where it is told to."""
    with pytest.raises(IntegrityError):
        await fill_plan(database, "plan-1", plan())


@pytest.mark.services
async def test_transactions_that_read_and_then_write_wait_for_each_other(database: Database) -> None:
    await fill(database, graph(num_nodes=0))

    async def add_one() -> None:
        async with database.session() as session:
            row = await session.get_one(GraphRow, GRAPH_ID, with_for_update=True)
            await asyncio.sleep(0)
            row.num_nodes += 1

    await asyncio.gather(*(add_one() for _ in range(10)))
    async with database.session() as session:
        assert (await session.get_one(GraphRow, GRAPH_ID)).num_nodes == 10


@pytest.mark.services
async def test_readers_wait_for_no_writer(database: Database) -> None:
    await fill(database, graph(num_nodes=0))
    async with database.session() as writing:
        (await writing.get_one(GraphRow, GRAPH_ID)).num_nodes = 1
        await writing.flush()
        async with database.reading() as session:
            assert (await get_graph(session, GRAPH_ID)).num_nodes == 0
    async with database.reading() as session:
        assert (await get_graph(session, GRAPH_ID)).num_nodes == 1


@pytest.mark.services
async def test_a_writer_waits_for_no_reader(database: Database) -> None:
    async with database.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM graphs"))).scalar_one() == 0
        await fill(database, graph())
    async with database.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM graphs"))).scalar_one() == 1


@pytest.mark.services
async def test_who_only_reads_cannot_write(database: Database) -> None:
    async def write() -> None:
        async with database.reading() as session:
            await add_graph(session, graph())

    for _ in range(2):
        with pytest.raises(DBAPIError, match=r"read-?only"):
            await write()
    await fill(database, graph())


@pytest.mark.services
async def test_a_reader_leaves_no_transaction_open_between_its_statements(on_postgresql: Database) -> None:
    states = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
    async with on_postgresql.reading() as reading, on_postgresql.session() as session:
        pid = await backend(reading)
        assert (await session.execute(states, {"pid": pid})).scalar_one() == "idle"


@pytest.mark.services
@pytest.mark.parametrize("begin", [Database.reading, Database.session])
async def test_connections_to_postgresql_stay_open(on_postgresql: Database, begin: Begin) -> None:
    all_in = asyncio.Barrier(POOL_SIZE)

    async def ask() -> int:
        async with begin(on_postgresql) as session:
            pid = await backend(session)
            await all_in.wait()
            return pid

    first, second = [set(await asyncio.gather(*(ask() for _ in range(2 * POOL_SIZE)))) for _ in range(2)]
    assert len(first) == POOL_SIZE
    assert second == first


@pytest.mark.services
@pytest.mark.parametrize("begin", [Database.reading, Database.session])
async def test_connections_that_the_server_ended_are_made_anew(on_postgresql: Database, begin: Begin) -> None:
    async def ask(together: asyncio.Barrier) -> None:
        async with begin(on_postgresql) as session:
            await backend(session)
            await together.wait()

    name = str(on_postgresql.url.database)
    all_in = asyncio.Barrier(3)
    await asyncio.gather(*(ask(all_in) for _ in range(3)))
    with postgresql().refusing(name):
        await eventually(lambda: postgresql().num_connections(name) == 0, "connections to end")
    for _ in range(3):
        await ask(asyncio.Barrier(1))


@pytest.mark.services
async def test_closing_waits_for_what_is_under_way_and_refuses_what_comes(database: Database) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def write_slowly() -> None:
        async with database.session() as session:
            await add_graph(session, graph())
            entered.set()
            await leave.wait()

    writing = asyncio.create_task(write_slowly())
    await entered.wait()
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    with pytest.raises(Unavailable, match="stopping"):
        async with database.session():
            pass
    leave.set()
    await asyncio.gather(writing, closing)
    again = Database(database.url.render_as_string(hide_password=False))
    async with again.session() as session:
        assert (await get_graph(session, GRAPH_ID)).id == GRAPH_ID
    await again.close()


@pytest.mark.services
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


@pytest.mark.services
async def test_a_read_of_one_statement_on_sqlite_visits_the_connections_thread_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'planner.db'}")
    visits: list[str] = []
    visit = aiosqlite.Connection._execute

    async def counted(connection: aiosqlite.Connection, function: Callable[..., Any], *arguments: Any) -> Any:
        visits.append(arguments[2] if len(arguments) > 2 else function.__name__)
        return await visit(connection, function, *arguments)

    async def read() -> None:
        async with database.reading() as session:
            assert (await session.execute(text("SELECT 1 UNION SELECT 2"))).scalars().all() == [1, 2]

    # The first prepares the connection.
    await read()
    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    await read()
    await database.close()
    assert visits[0] == "SELECT 1 UNION SELECT 2"
    assert set(visits[1:]) <= {"close"}


@pytest.mark.services
async def test_a_database_that_is_away_is_unavailable_without_its_password() -> None:
    database = Database("postgresql://me:secret@127.0.0.1:1/planner")
    with pytest.raises(Unavailable, match="does not answer") as caught:
        async with database.session() as session:
            await session.execute(text("SELECT 1"))
    assert "secret" not in caught.value.message
    await database.close()


@pytest.mark.services
async def test_a_database_that_is_full_says_so_for_the_call_at_hand(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'planner.db'}")
    await database.migrate()
    async with database.session() as session:
        await session.execute(text("PRAGMA max_page_count = 1"))
    large = graph(name="x" * 1_000_000)
    with pytest.raises(ResourceExhausted, match="no room left") as refused:
        await fill(database, large)
    assert refused.value.metadata["retry_after_seconds"] == "30.0"
    await database.close()


@pytest.mark.services
async def test_a_database_that_takes_no_writes_yet_is_waited_for(
    on_postgresql: Database,
) -> None:
    """As a standby that is about to take the place of the server that was lost."""
    name = on_postgresql.url.database
    with psycopg.connect(postgresql().url(), autocommit=True) as elsewhere:
        elsewhere.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        with pytest.raises(Unavailable, match="takes no writes"):
            await fill(on_postgresql, graph())
        async with on_postgresql.reading() as session:
            assert await session.get(GraphRow, GRAPH_ID) is None
        persist = asyncio.create_task(on_postgresql.persist(lambda session: add_graph(session, graph())))
        await asyncio.wait({persist}, timeout=0.1)
        elsewhere.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    await persist
    async with on_postgresql.reading() as session:
        assert await session.get(GraphRow, GRAPH_ID) is not None


@pytest.mark.services
async def test_a_statement_that_is_wrong_is_no_outage(database: Database) -> None:
    with pytest.raises(DBAPIError, match="no_such_table"):
        async with database.session() as session:
            await session.execute(text("SELECT * FROM no_such_table"))


@pytest.mark.parametrize("url", ["", "mysql://host/name", "nonsense"])
def test_unknown_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"sqlite"):
        parse_url(url)


def test_a_url_that_cannot_be_read_is_told_without_its_password() -> None:
    with pytest.raises(InvalidArgument, match="cannot be read") as caught:
        parse_url("postgresql//me:hunter2@db")
    assert "hunter2" not in caught.value.message
    with pytest.raises(InvalidArgument, match="cannot be read") as caught:
        parse_url("postgresql://me:hunter2@db:port/planner")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("text_", "url"),
    [
        ("sqlite:////var/planner.db", "sqlite+aiosqlite:////var/planner.db"),
        ("sqlite+aiosqlite:///planner.db", "sqlite+aiosqlite:///planner.db"),
        (
            "postgresql://me:secret@host:5433/name?sslmode=require",
            "postgresql+psycopg://me:secret@host:5433/name?sslmode=require",
        ),
        ("postgres://host/name", "postgresql+psycopg://host/name"),
        ("postgresql+psycopg2://host/name", "postgresql+psycopg://host/name"),
    ],
)
def test_the_driver_is_the_asynchronous_one(text_: str, url: str) -> None:
    assert parse_url(text_).render_as_string(hide_password=False) == url
