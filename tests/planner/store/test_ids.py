"""Prefixes of ids, on both databases."""

from __future__ import annotations

import pytest

from planner.errors import InvalidArgument
from planner.store.database import Database
from planner.store.ids import whole_id
from tests.planner.store.records import deployment, fill, fill_plan, graph, inventory, plan

pytestmark = pytest.mark.services


async def whole(database: Database, kind: str, text: str) -> str:
    async with database.reading() as session:
        return await whole_id(session, kind, text)


async def test_a_prefix_that_fits_one_object_is_its_id(database: Database) -> None:
    inventories = [inventory(f"inv-abcdef{index}00000") for index in range(2)]
    await fill(database, graph(), inventory(), *inventories, deployment("dep-abcdef000000"))
    await fill_plan(database, "plan-abcdef000000", plan())
    assert await whole(database, "graph", "ab" * 3) == "ab" * 32
    assert await whole(database, "inventory", "inv-abcdef1") == "inv-abcdef100000"
    assert await whole(database, "deployment", "dep-abcdef") == "dep-abcdef000000"
    assert await whole(database, "plan", "plan-abcdef0") == "plan-abcdef000000"


async def test_a_prefix_that_fits_several_is_refused_with_their_ids(database: Database) -> None:
    ids = [f"inv-abcdef{index}00000" for index in range(7)]
    await fill(database, *map(inventory, ids[:5]))
    with pytest.raises(InvalidArgument, match=f"^inventory id inv-abcdef fits {', '.join(ids[:5])}; give more digits$"):
        await whole(database, "inventory", "inv-abcdef")
    await fill(database, *map(inventory, ids[5:]))
    with pytest.raises(InvalidArgument, match=f"{ids[4]} and more;"):
        await whole(database, "inventory", "inv-abcdef")


@pytest.mark.parametrize(
    "text", ["", "inv-", "inv-abcde", "abcdef", "INV-abcdef", "inv-abcde%", "inv-abcde_", "dep-abcdef", "inv-abcdef\n"]
)
async def test_what_is_too_short_or_no_id_stays_as_it_is(database: Database, text: str) -> None:
    await fill(database, inventory("inv-abcdef000000"))
    assert await whole(database, "inventory", text) == text


async def test_a_prefix_of_nothing_stays_as_it_is(database: Database) -> None:
    await fill(database, inventory("inv-abcdef000000"))
    assert await whole(database, "inventory", "inv-abcdef1") == "inv-abcdef1"
