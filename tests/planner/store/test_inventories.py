"""Inventories, on both databases."""

from __future__ import annotations

import pytest

from planner.cost.inventory import Inventory, LinkSpeed
from planner.errors import NotFound
from planner.store import inventories, many_rows
from planner.store.database import Database
from planner.store.inventories import get_inventory, list_inventories
from planner.store.paging import parse_page
from tests.planner.store.records import MOST, device, fill, inventory, later

pytestmark = pytest.mark.services
NUMBERS = {"memory_bytes": MOST, "flops_per_second": 1e24 / 3, "memory_bytes_per_second": 0.001, "shares_cores": True}


async def test_devices_links_and_numbers_are_kept_in_order_and_exactly(database: Database) -> None:
    speeds = [
        LinkSpeed(bytes_per_second=1e9 / 3, latency_seconds=1e-7),
        LinkSpeed(bytes_per_second=1, latency_seconds=0),
    ]
    content = Inventory(
        devices=(device("z", kind="H200", host="größe", **NUMBERS), device("a"), device("m", kind="")),
        links={("z", "a"): speeds[0], ("a", "z"): speeds[1], ("a", "m"): speeds[0]},
        default_link=LinkSpeed(bytes_per_second=2e9 / 7, latency_seconds=1e9),
    )
    await fill(database, inventory(inventory=content), inventory("inv-2"))
    async with database.session() as session:
        loaded = await get_inventory(session, "inv-1")
    assert loaded == inventory(inventory=content)
    assert list(loaded.inventory.links) == list(content.links)


def speed(index: int) -> LinkSpeed:
    return LinkSpeed(bytes_per_second=index + 1, latency_seconds=0)


async def test_links_are_read_in_pages(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inventories, many_rows):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    devices = tuple(device(name) for name in "zam")
    pairs = [(source.id, target.id) for source in devices for target in devices if source != target]
    contents = [
        Inventory(devices=devices, links={pair: speed(index) for index, pair in enumerate(some)})
        for some in (pairs, pairs[:2], pairs[::-1])
    ]
    records = [inventory(f"inv-{index}", inventory=content) for index, content in enumerate(contents)]
    await fill(database, *records)
    async with database.reading() as session:
        listed, _ = await list_inventories(session, parse_page("inventories", 9, ""))
    by_id = {record.id: list(record.inventory.links.items()) for record in listed}
    assert by_id == {record.id: list(record.inventory.links.items()) for record in records}


async def test_one_without_devices_is_kept_too(database: Database) -> None:
    await fill(database, inventory(inventory=Inventory(devices=())))
    async with database.session() as session:
        assert (await get_inventory(session, "inv-1")).inventory == Inventory(devices=())


async def test_lists_leave_out_what_came_inside_of_a_request(database: Database) -> None:
    listed = [inventory(f"inv-{index}", created_at=later(index)) for index in range(2)]
    unlisted = inventory("inv-9", created_at=later(9), listed=False)
    await fill(database, *listed, unlisted)
    async with database.session() as session:
        page, token = await list_inventories(session, parse_page("inventories", 2, ""))
        assert await get_inventory(session, "inv-9") == unlisted
    assert (page, token) == (tuple(listed[::-1]), "")


async def test_an_unknown_id_is_told_in_short(database: Database) -> None:
    async with database.session() as session:
        with pytest.raises(NotFound, match=f"the id '{'x' * 80}'"):
            await get_inventory(session, "x" * 1000)
