"""Calls that are sent twice, or by several at once, create one thing, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import InvalidArgument, NotFound, RequestIdReused
from planner.store.database import Database
from planner.store.inventories import add_inventory, get_inventory
from planner.store.request_ids import ATTEMPTS, create_once, find_result
from planner.store.tables import RequestIdRow
from tests.planner.store.records import NOW, fill, inventory

pytestmark = pytest.mark.services


async def create(
    database: Database, result_id: str, request_id: str = "one", fingerprint: str = "f", method: str = "Create"
) -> tuple[str, bool]:
    async def add(session: AsyncSession) -> str:
        await add_inventory(session, inventory(result_id))
        return result_id

    return await create_once(database, method, request_id, fingerprint, NOW, add)


async def exists(database: Database, inventory_id: str) -> bool:
    async with database.session() as session:
        try:
            await get_inventory(session, inventory_id)
        except NotFound:
            return False
    return True


async def test_the_second_call_finds_what_the_first_created(database: Database) -> None:
    assert await create(database, "inv-1") == ("inv-1", True)
    assert await create(database, "inv-2") == ("inv-1", False)
    assert not await exists(database, "inv-2")
    async with database.session() as session:
        assert await find_result(session, "Create", "one", "f") == "inv-1"
        assert await find_result(session, "Create", "two", "f") is None
        assert (await session.get_one(RequestIdRow, ("Create", "one"))).created_at == NOW


async def test_the_same_id_belongs_to_each_method_by_itself(database: Database) -> None:
    assert await create(database, "inv-1", method="CreatePlan") == ("inv-1", True)
    assert await create(database, "inv-2", method="CreateGraph") == ("inv-2", True)


async def test_another_request_under_the_same_id_is_refused(database: Database) -> None:
    await create(database, "inv-1")
    with pytest.raises(RequestIdReused, match="'one' was used for another Create") as caught:
        await create(database, "inv-2", fingerprint="g")
    assert caught.value.metadata == {"result_id": "inv-1"}
    assert not await exists(database, "inv-2")


async def test_calls_without_an_id_create_each_time(database: Database) -> None:
    assert await create(database, "inv-1", request_id="") == ("inv-1", True)
    assert await create(database, "inv-2", request_id="") == ("inv-2", True)


async def test_an_id_of_two_hundred_characters_and_no_more(database: Database) -> None:
    assert await create(database, "inv-1", request_id="é" * 200) == ("inv-1", True)
    with pytest.raises(InvalidArgument, match="201 characters, at most 200"):
        await create(database, "inv-2", request_id="x" * 201)


async def test_of_calls_at_the_same_time_one_creates_and_all_find_it(database: Database) -> None:
    answers = await asyncio.gather(*(create(database, f"inv-{index}") for index in range(8)))
    assert len({result_id for result_id, _ in answers}) == 1
    assert [is_new for _, is_new in answers].count(True) == 1
    there = [await exists(database, f"inv-{index}") for index in range(8)]
    assert there.count(True) == 1
    assert there[int(answers[0][0].removeprefix("inv-"))]


async def test_what_fails_leaves_its_id_free(database: Database) -> None:
    async def fail(session: AsyncSession) -> str:
        await add_inventory(session, inventory("inv-1"))
        raise NotFound("no such graph")

    with pytest.raises(NotFound):
        await create_once(database, "Create", "one", "f", NOW, fail)
    assert not await exists(database, "inv-1")
    assert await create(database, "inv-2") == ("inv-2", True)


async def test_rows_that_never_fit_are_given_up(database: Database) -> None:
    await fill(database, inventory())
    attempts = 0

    async def collide(session: AsyncSession) -> str:
        nonlocal attempts
        attempts += 1
        await add_inventory(session, inventory())
        return "inv-1"

    with pytest.raises(IntegrityError):
        await create_once(database, "Create", "one", "f", NOW, collide)
    assert attempts == ATTEMPTS
