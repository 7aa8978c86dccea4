"""What one caller may have at once, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from planner.errors import ResourceExhausted
from planner.store.database import Database
from planner.store.quotas import charge_upload, forget_upload, uploads_before
from planner.store.tables import UploadRow
from tests.planner.store.records import NOW, later

pytestmark = pytest.mark.services
FIRST, SECOND = b"1" * 32, b"2" * 32
MOST_BYTES = 10


async def upload(database: Database, caller: str, sha256: bytes, size_bytes: int) -> None:
    async with database.session() as session:
        await charge_upload(session, caller, sha256, size_bytes, MOST_BYTES, NOW)


async def rows(database: Database) -> set[tuple[str, bytes, int]]:
    async with database.reading() as session:
        uploads = await session.scalars(select(UploadRow))
        return {(row.principal, bytes.fromhex(row.sha256), row.size_bytes) for row in uploads}


async def test_a_caller_s_uploads_count_together_and_each_once(database: Database) -> None:
    await upload(database, "alice", FIRST, 6)
    with pytest.raises(ResourceExhausted) as refused:
        await upload(database, "alice", SECOND, 5)
    assert refused.value.message.startswith(
        "alice has uploads of 6 bytes beside this one of 5 bytes, and one caller may have 10 bytes "
        "(PLANNER_MAX_UPLOADED_BYTES_PER_CALLER): delete graphs and checkpoints"
    )
    await upload(database, "alice", FIRST, 6)
    await upload(database, "alice", SECOND, 4)
    await upload(database, "alice", FIRST, 5)
    await upload(database, "bob", FIRST, 10)
    assert await rows(database) == {("alice", FIRST, 5), ("alice", SECOND, 4), ("bob", FIRST, 10)}


async def test_callers_that_nobody_knows_are_not_counted(database: Database) -> None:
    await upload(database, "", FIRST, 2 * MOST_BYTES)
    assert await rows(database) == set()


async def test_what_is_gone_counts_for_nobody_and_what_was_saved_for_whoever_saved_it(database: Database) -> None:
    for caller in ("alice", "daemon"):
        await upload(database, caller, FIRST, 6)
    async with database.session() as session:
        await forget_upload(session, FIRST, keep_of="alice")
    assert await rows(database) == {("alice", FIRST, 6)}
    async with database.session() as session:
        await forget_upload(session, SECOND)
        await forget_upload(session, FIRST)
    assert await rows(database) == set()


async def test_uploads_are_as_old_as_their_last_beginning(database: Database) -> None:
    await upload(database, "alice", FIRST, 1)
    async with database.session() as session:
        await charge_upload(session, "alice", SECOND, 1, MOST_BYTES, later(-60))
        assert await uploads_before(session, NOW) == {SECOND}
    await upload(database, "alice", SECOND, 1)
    async with database.reading() as session:
        assert await uploads_before(session, NOW) == frozenset()


async def test_uploads_that_begin_together_do_not_each_take_what_is_left(database: Database) -> None:
    names = [bytes([number]) * 32 for number in range(8)]
    outcomes = await asyncio.gather(*(upload(database, "alice", sha256, 4) for sha256 in names), return_exceptions=True)
    assert [outcome for outcome in outcomes if outcome is None] == [None] * 2
    assert all(isinstance(outcome, ResourceExhausted) for outcome in outcomes if outcome is not None)
    assert len(await rows(database)) == 2
