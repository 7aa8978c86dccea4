"""Rows by the hundred thousand, written and read a few at a time: others have turns on the event loop in between.

Those to write are columns by name: objects that a session follows take ten times as long. They are inserted into the
table itself, which takes half as long as through the class that is mapped to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any, cast

from sqlalchemy import Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.tables import Row

# To write them is a millisecond's work on SQLite, five on PostgreSQL.
ROWS_AT_ONCE = 128

# The table, and what its columns hold.
TableRow = tuple[type[Row], dict[str, Any]]


async def add_rows(session: AsyncSession, rows: Iterable[TableRow]) -> None:
    """Of each table in their order. Among the few of one time, tables come in the order of their first rows."""
    remaining = iter(rows)
    while some := tuple(islice(remaining, ROWS_AT_ONCE)):
        by_table: dict[type[Row], list[dict[str, Any]]] = defaultdict(list)
        for table, columns in some:
            by_table[table].append(columns)
        for table, several in by_table.items():
            await session.execute(insert(cast(Table, table.__table__)), several)
        # A database that answers at once lets nobody else in.
        await asyncio.sleep(0)
