"""Inventories: kept as given, listed, refused where they make no sense."""

from __future__ import annotations

import asyncio

import pytest

from planner.wire.inventory import inventory_from_proto
from protos.v1 import inventory_pb2, planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, every_page, inventory_message, refused
from tests.contract.conftest import on_both

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]


async def create(
    planner: PlannerServiceStub, inventory: inventory_pb2.Inventory, name: str = "", request_id: str = ""
) -> planner_pb2.InventoryRecord:
    request = planner_pb2.CreateInventoryRequest(name=name, inventory=inventory, request_id=request_id)
    return await planner.CreateInventory(request, timeout=WAIT_SECONDS)


async def test_inventory_is_kept_as_given(planner: PlannerServiceStub) -> None:
    inventory = inventory_message(1 << 30, (1 << 62) + 1, 1)
    inventory.links.add(source="node/cpu0", target="node/cpu2", bytes_per_second=3.5e9, latency_seconds=1e-6)
    inventory.links.add(
        source="node/cpu1", target="node/cpu2", bytes_per_second=1e9, latency_seconds=0, bidirectional=True
    )
    inventory.default_link.bytes_per_second = 1.25e9
    inventory.default_link.latency_seconds = 0.1
    record = await create(planner, inventory, name="rack")
    assert record.id.startswith("inv-")
    assert record.name == "rack"
    assert inventory_from_proto(record.inventory) == inventory_from_proto(inventory)
    request = planner_pb2.GetInventoryRequest(inventory_id=record.id)
    assert await planner.GetInventory(request, timeout=WAIT_SECONDS) == record


async def test_unknown_inventory(planner: PlannerServiceStub) -> None:
    with refused("NOT_FOUND"):
        await planner.GetInventory(planner_pb2.GetInventoryRequest(inventory_id="inv-0"), timeout=WAIT_SECONDS)


@pytest.mark.parametrize(
    "devices",
    [
        [],
        [{"id": "", "memory_bytes": 1}],
        [{"id": "a", "memory_bytes": 0}],
        [{"id": "a", "memory_bytes": 1 << 63}],
        [{"id": "a", "memory_bytes": 1}, {"id": "a", "memory_bytes": 1}],
        [{"id": "a\0b", "memory_bytes": 1}],
        [{"id": "a", "memory_bytes": 1, "flops_per_second": float("nan")}],
    ],
)
async def test_unsound_inventory(planner: PlannerServiceStub, devices: list[dict[str, object]]) -> None:
    inventory = inventory_pb2.Inventory(devices=[inventory_pb2.Device(**device) for device in devices])
    with refused("INVALID_INVENTORY"):
        await create(planner, inventory)


@on_both
async def test_text_that_a_database_cannot_hold(planner: PlannerServiceStub) -> None:
    inventory = inventory_message(1)
    inventory.devices[0].kind = "a\0b"
    with refused("INVALID_INVENTORY"):
        await create(planner, inventory)


@on_both
async def test_request_id(planner: PlannerServiceStub, name: str) -> None:
    records = await asyncio.gather(*(create(planner, inventory_message(), request_id=name) for _ in range(5)))
    assert {record.id for record in records} == {records[0].id}
    with refused("REQUEST_ID_REUSED") as refusal:
        await create(planner, inventory_message(7), request_id=name)
    assert refusal.metadata["result_id"] == records[0].id
    assert (await create(planner, inventory_message())).id != records[0].id


@on_both
async def test_pages(planner: PlannerServiceStub) -> None:
    ids = [(await create(planner, inventory_message())).id for _ in range(3)]
    pages = await every_page(planner.ListInventories, planner_pb2.ListInventoriesRequest(), 2)
    assert all(len(page.inventories) == 2 for page in pages[:-1])
    listed = [record.id for page in pages for record in page.inventories]
    assert listed[:3] == ids[::-1]
    assert len(set(listed)) == len(listed)
