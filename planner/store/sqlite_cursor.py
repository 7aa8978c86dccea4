"""What SQLAlchemy runs statements with on SQLite: one visit to the connection's thread for each.

aiosqlite goes there and back to make a cursor, to run the statement, to read its rows and to close the cursor, each of
which takes longer than a small statement does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Self

import aiosqlite


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    description: Any
    rows: list[Any]
    rowcount: int
    lastrowid: int | None


_NOTHING = _Outcome(description=None, rows=[], rowcount=-1, lastrowid=None)


class OneVisitCursor(aiosqlite.Cursor):
    """As much of a cursor as SQLAlchemy uses: all rows are there once a statement has run."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._conn = connection
        self._outcome = _NOTHING

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> Self:
        self._outcome = await self._execute(_run, self._conn, "execute", sql, parameters or ())  # type: ignore[no-untyped-call]
        return self

    async def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> Self:
        self._outcome = await self._execute(_run, self._conn, "executemany", sql, parameters)  # type: ignore[no-untyped-call]
        return self

    async def fetchall(self) -> list[Any]:
        return self._outcome.rows

    async def close(self) -> None:
        """It was, in the thread."""

    @property
    def description(self) -> Any:
        return self._outcome.description

    @property
    def rowcount(self) -> int:
        return self._outcome.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._outcome.lastrowid


def _run(connection: aiosqlite.Connection, how: str, sql: str, parameters: Iterable[Any]) -> _Outcome:
    """In the connection's thread."""
    cursor: sqlite3.Cursor = connection._conn.cursor()
    try:
        getattr(cursor, how)(sql, parameters)
        description = cursor.description
        rows = cursor.fetchall() if description else []
        return _Outcome(description=description, rows=rows, rowcount=cursor.rowcount, lastrowid=cursor.lastrowid)
    finally:
        cursor.close()
