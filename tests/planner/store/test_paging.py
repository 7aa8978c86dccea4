"""Pages: the size and the token that a request may give, and that pages together are the list, on both databases."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from planner.errors import InvalidArgument
from planner.store.database import Database
from planner.store.graphs import list_graphs
from planner.store.inventories import list_inventories
from planner.store.owners import add_owner
from planner.store.paging import parse_page
from tests.planner.store.records import NOW, fill, graph, inventory, later


@pytest.mark.parametrize(("asked", "size"), [(0, 50), (1, 1), (50, 50), (1000, 1000), (1001, 1000), (2**32 - 1, 1000)])
def test_page_sizes(asked: int, size: int) -> None:
    page = parse_page("graphs", asked, "")
    assert (page.size, page.after, page.scope) == (size, None, "graphs")


def test_a_page_that_holds_all_has_no_next() -> None:
    records = [graph(f"{index:064x}") for index in range(3)]
    page = parse_page("graphs", 3, "")
    assert page.cut(records) == (tuple(records), "")
    assert page.cut([]) == ((), "")


def test_a_token_leads_to_what_follows_the_last_of_its_page() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 1, tzinfo=timezone(timedelta(hours=-7)))
    records = [graph(f"{index:064x}", created_at=moment) for index in range(3)]
    first_page, token = parse_page("graphs", 2, "").cut(records)
    assert first_page == tuple(records[:2])
    page = parse_page("graphs", 7, token)
    assert (page.after, page.size) == ((moment, records[1].id), 7)


def token(*content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "é",
        "====",
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        token("graphs"),
        token("graphs", NOW.isoformat(), "id", "more"),
        token("graphs", 7, "id"),
        token("graphs", "yesterday", "id"),
        token("plans", NOW.isoformat(), "id"),
        token("graphs", NOW.replace(tzinfo=None).isoformat(), "id"),
    ],
)
def test_a_token_that_this_list_did_not_give_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="page_token"):
        parse_page("graphs", 1, text)


@pytest.mark.services
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
async def test_pages_together_are_the_list_newest_first_and_the_last_id_first_among_equals(
    database: Database, size: int
) -> None:
    moments = [NOW, NOW, later(1e-6), NOW, later(-1), later(1e-6), NOW]
    records = [inventory(f"inv-{index}", created_at=moment) for index, moment in enumerate(moments)]
    await fill(database, *records)
    expected = sorted(((record.created_at, record.id) for record in records), reverse=True)
    listed, page_token, pages = [], "", 0
    while not pages or page_token:
        async with database.session() as session:
            page, page_token = await list_inventories(session, parse_page("inventories", size, page_token))
        listed += [(record.created_at, record.id) for record in page]
        pages += 1
    assert listed == expected
    assert pages == -(-len(records) // size)


@pytest.mark.services
async def test_new_rows_do_not_shift_the_pages_that_follow(database: Database) -> None:
    ids = [f"{index:064x}" for index in range(4)]
    await fill(database, *(graph(id_, created_at=later(index)) for index, id_ in enumerate(ids)))
    async with database.session() as session:
        first, page_token = await list_graphs(session, parse_page("graphs", 2, ""))
    await fill(database, graph("f" * 64, created_at=later(9)))
    async with database.session() as session:
        second, end = await list_graphs(session, parse_page("graphs", 2, page_token))
    assert [record.id for record in (*first, *second)] == ids[::-1]
    assert end == ""


@pytest.mark.services
async def test_moments_come_back_in_utc_to_the_microsecond(database: Database) -> None:
    there = datetime(2030, 1, 2, 23, 4, 5, 678901, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    await fill(database, graph(created_at=there))
    async with database.session() as session:
        [record], _ = await list_graphs(session, parse_page("graphs", 0, ""))
    assert record.created_at == there
    assert record.created_at.tzinfo is UTC


@pytest.mark.services
async def test_a_list_can_be_narrowed_to_an_owner_and_to_what_is_newer(database: Database) -> None:
    records = [inventory(f"inv-{index}", created_at=later(index)) for index in range(6)]
    await fill(database, *records)
    async with database.session() as session:
        for index in (0, 2, 4, 5):
            await add_owner(session, "inventory", f"inv-{index}", "alice" if index else "bob", NOW)
        await add_owner(session, "graph", "inv-3", "alice", NOW)

    async def listed(page_token: str = "", **narrow: Any) -> tuple[list[str], str]:
        page = parse_page("inventory", 2, page_token, kind="inventory", **narrow)
        async with database.reading() as session:
            records, next_token = await list_inventories(session, page)
        return [record.id for record in records], next_token

    first, next_token = await listed(owner="alice")
    assert (first, await listed(next_token, owner="alice")) == (["inv-5", "inv-4"], (["inv-2"], ""))
    assert await listed(owner="alice", created_since=later(4.5)) == (["inv-5"], "")
    assert await listed(created_since=later(5)) == (["inv-5"], "")
    assert await listed(owner="carol") == ([], "")
    for other in ({"owner": "bob"}, {"owner": "alice", "created_since": NOW}, {}):
        with pytest.raises(InvalidArgument, match="other filters"):
            await listed(next_token, **other)
