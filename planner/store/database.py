"""One database, SQLite or PostgreSQL by its URL: transactions as blocks, migrations that ship in the package."""

from __future__ import annotations

import asyncio
import select
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    InternalError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from planner.errors import (
    FULL_DISK_RETRY_SECONDS,
    AwayForNow,
    Conflict,
    InvalidArgument,
    NotLeading,
    PlannerError,
    ResourceExhausted,
    Unavailable,
)
from planner.redaction import without_secrets
from planner.store.sqlite_cursor import OneVisitCursor

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
BUSY_SECONDS = 30.0
# How long transactions that are under way when the database is closed may take to end.
CLOSE_SECONDS = 10.0
POLL_SECONDS = 0.01
FIRST_PAUSE_SECONDS = 0.1
MOST_PAUSE_SECONDS = 2.0
# Of SQLite's transactions that only read.
ONLY_READS = "only_reads"
READ_ONLY: Mapping[str, bool] = {ONLY_READS: True}
# Connections to PostgreSQL for transactions that read, and as many for those that write. They stay open: a new one, and
# preparing its statements anew, takes longer than a read.
POOL_SIZE = 10
# Any number that nothing else in the database locks by.
MIGRATION_LOCK = 0x706C616E
# PostgreSQL's SQLSTATEs. A standby takes no writes before it has taken the place of the server that was lost.
DISK_FULL = "53100"
TAKES_NO_WRITES = "25006"
# A PostgreSQL host that vanished is noticed within half a minute, rather than after the hours that TCP would wait.
POSTGRESQL_ARGUMENTS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
Result = TypeVar("Result")

log = structlog.get_logger(__name__)


class Database:
    """`async with database.session()` is one transaction: committed where the block ends, rolled back if it raises.

    `reading()` only reads: it neither waits for those that write nor holds them up. Each statement in it is a
    transaction of its own, which saves BEGIN and COMMIT: what is read by several may have gone between two of them.
    """

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self._engine = _engine(self.url)
        self._reader = _reader(self.url, self._engine)
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)
        self._readers = async_sessionmaker(self._reader, expire_on_commit=False)
        self._closing = False

    @property
    def file(self) -> Path | None:
        """None unless it is SQLite."""
        return None if self.is_shared or self.url.database is None else Path(self.url.database).absolute()

    @property
    def is_shared(self) -> bool:
        """Whether other planners may be on it. On SQLite there is one."""
        return self.url.get_backend_name() != "sqlite"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        try:
            async with self._transaction(self._sessions) as session:
                yield session
        except InternalError as error:
            if not _takes_no_writes(error.orig):
                raise
            raise AwayForNow(f"the planner's database takes no writes now: {error.orig}; ask again") from error

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        async with self._transaction(self._readers) as session:
            yield session

    @asynccontextmanager
    async def _transaction(self, sessions: async_sessionmaker[AsyncSession]) -> AsyncIterator[AsyncSession]:
        if self._closing:
            raise AwayForNow("the server is stopping; ask again when it is back")
        try:
            async with sessions.begin() as session:
                yield session
        except (DataError, OverflowError) as error:
            # A text with a NUL character, an integer of more than 64 bits: what no column can hold.
            detail = error.orig if isinstance(error, DataError) else error
            raise InvalidArgument(f"the database cannot hold a value of the request: {detail}") from error
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise _outage(error) or error from error

    async def persist(self, write: Callable[[AsyncSession], Awaitable[Result]]) -> Result:
        """`write` in a transaction, again and again while the database is away or full: for what nobody will ask again.

        A connection that breaks during the commit leaves unknown whether it was made: `write` has to see that itself.
        """
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self.session() as session:
                    return await write(session)
            except (Unavailable, ResourceExhausted) as error:
                if self._closing or isinstance(error, NotLeading):
                    raise
                log.warning("cannot write now", message=error.message)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MOST_PAUSE_SECONDS)

    async def migrate(self) -> None:
        """Brings the schema to the newest revision; does nothing where it is there already.

        Raises Unavailable where it is no database, or none that answers, Conflict where a newer planner migrated it.
        """
        named = self.url.set(drivername=self.url.get_backend_name()).render_as_string()
        try:
            async with self._engine.begin() as connection:
                await connection.run_sync(_upgrade)
        except DBAPIError as error:
            raise Unavailable(f"cannot use the database {named}: {str(error.orig).strip()}") from error
        except CommandError as error:
            raise Conflict(
                f"a newer planner-server has migrated the database {named} ({error}): run that one, or restore a "
                "backup from before"
            ) from error

    async def close(self) -> None:
        """Refuses new transactions, lets those under way end, then lets go of the connections.

        A cancelled call still rolls back; were its connection closed under it, that would never end.
        """
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._num_in_use():  # noqa: ASYNC110  a pool tells nobody of what comes back
                    await asyncio.sleep(POLL_SECONDS)
        await asyncio.shield(self._dispose())

    async def _dispose(self) -> None:
        for engine in (self._engine, self._reader):
            await engine.dispose()

    def _num_in_use(self) -> int:
        pools = {self._engine.pool, self._reader.pool}
        return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))


def _outage(error: OperationalError | InterfaceError | PoolTimeout) -> PlannerError | None:
    """What to tell where the database is away or full; None where the statement itself is wrong."""
    cause = getattr(error, "orig", error)
    sqlite_code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if sqlite_code == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", "") == DISK_FULL:
        return ResourceExhausted(
            f"the planner's database has no room left: {cause}; free space there and ask again",
            retry_after_seconds=FULL_DISK_RETRY_SECONDS,
        )
    if sqlite_code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY):
        return None
    return AwayForNow(f"the planner's database does not answer: {cause}; ask again")


def parse_url(text: str) -> URL:
    """Adds the asynchronous driver where the URL names only the database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidArgument(
            f"database URL {without_secrets(text)!r} cannot be read; write sqlite:////path/to/file or postgresql://user@host/name"
        ) from None
    backend = url.get_backend_name()
    if backend not in DRIVERS:
        raise InvalidArgument(f"database {backend!r} is not known; use sqlite or postgresql")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidArgument(
            f"database URL {text!r} names no file, and a planner keeps what it is given; write sqlite:////path/to/file"
        )
    return url.set(drivername=DRIVERS[backend])


def _engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        engine = _postgresql_engine(url)
        event.listen(engine.sync_engine, "handle_error", _leave_standby)
        return engine
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    # What requests hold is nobody's business who reads the log.
    options = {"timeout": BUSY_SECONDS}
    engine = create_async_engine(url, hide_parameters=True, connect_args=options)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _reader(url: URL, writer: AsyncEngine) -> AsyncEngine:
    """On SQLite with the same connections."""
    if url.get_backend_name() == "sqlite":
        return writer.execution_options(**READ_ONLY)
    engine = _postgresql_engine(url, isolation_level="AUTOCOMMIT")
    event.listen(engine.sync_engine, "connect", _refuse_writes)
    return engine


def _postgresql_engine(url: URL, **options: str) -> AsyncEngine:
    # What the URL says itself counts.
    arguments = {name: limit for name, limit in POSTGRESQL_ARGUMENTS.items() if name not in url.query}
    engine = create_async_engine(
        url,
        hide_parameters=True,
        connect_args=arguments,
        pool_size=POOL_SIZE,
        max_overflow=0,
        # The one that was used last has its statements prepared.
        pool_use_lifo=True,
        **options,
    )
    event.listen(engine.sync_engine, "checkout", _refuse_ended)
    return engine


def _refuse_writes(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("SET default_transaction_read_only = on")
    cursor.close()


def _refuse_ended(connection: object, _entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection) -> None:
    """Has the pool make new connections where the server ended this one, without a question to the server.

    Nothing is there to be read from a connection at rest but its end.
    """
    driver = connection.driver_connection  # type: ignore[attr-defined]
    ready = select.poll()
    if not driver.closed:
        ready.register(driver.fileno(), select.POLLIN)
    if driver.closed or ready.poll(0):
        raise InvalidatePoolError("the server ended the connection")


def _takes_no_writes(error: BaseException | None) -> bool:
    return getattr(error, "sqlstate", "") == TAKES_NO_WRITES


def _leave_standby(context: ExceptionContext) -> None:
    """Has the pool make new connections, which may find the server that takes writes."""
    if _takes_no_writes(context.original_exception):
        context.is_disconnect = True


def _prepare_sqlite(connection: object, entry: ConnectionPoolEntry) -> None:
    driver = connection.driver_connection  # type: ignore[attr-defined]
    driver.cursor = partial(OneVisitCursor, driver)
    for name in ("commit", "rollback"):
        setattr(driver, name, partial(_end, entry.info, getattr(driver, name)))
    # The driver's own BEGIN comes too late for a transaction that reads before it writes: see _begin.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("foreign_keys=ON", "journal_mode=WAL", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # Taking the write lock at once makes read-then-write transactions wait for each other instead of failing. Readers
    # begin none: in WAL mode each statement sees the database as it was when it began.
    only_reads = connection.get_execution_options().keys() >= READ_ONLY.keys()
    if connection.info.get(ONLY_READS) != only_reads:
        # Until it is sure what holds: whoever is cancelled here may have changed it or not.
        connection.info.pop(ONLY_READS, None)
        connection.exec_driver_sql(f"PRAGMA query_only = {only_reads:d}")
        connection.info[ONLY_READS] = only_reads
    if not only_reads:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


async def _end(connection_info: Mapping[str, Any], end: Callable[[], Awaitable[None]]) -> None:
    """Commits or rolls back, where there may be something to: it takes a visit to the connection's thread.

    Whether a transaction is open cannot be asked: the BEGIN of a call that was cancelled may still be on its way.
    """
    if not connection_info.get(ONLY_READS):
        await end()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Planners that start together migrate one after the other; the lock goes with the transaction.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
