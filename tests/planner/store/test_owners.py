"""Whose objects are."""

from __future__ import annotations

import asyncio

import pytest

from planner.store.database import Database
from planner.store.owners import add_owner, owners_of
from tests.planner.store.records import NOW

pytestmark = pytest.mark.services


async def test_of_the_same_request_sent_twice_at_once_both_make_its_caller_the_owner(database: Database) -> None:
    begun = asyncio.Event()

    async def add() -> None:
        async with database.session() as session:
            begun.set()
            await add_owner(session, "plan", "plan-1", "alice", NOW)

    async with database.session() as first:
        await add_owner(first, "plan", "plan-1", "alice", NOW)
        await first.flush()
        second = asyncio.create_task(add())
        # On SQLite it waits for the other to end.
        await asyncio.wait({asyncio.create_task(begun.wait())}, timeout=0.2)
        await asyncio.wait({second}, timeout=0.2)
    await second
    async with database.reading() as session:
        assert await owners_of(session, "plan", "plan-1") == {"alice"}
