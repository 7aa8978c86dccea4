"""What is forgotten after a while, and what never is, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from planner.store.daemons import list_daemons, save_daemon
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from planner.store.inventories import list_inventories
from planner.store.operations import OperationState, PlanOperation, add_operation, end_operation
from planner.store.paging import parse_page
from planner.store.purge import purge
from planner.store.request_ids import create_once
from planner.store.tables import InventoryDeviceRow, InventoryRow, PlanOperationRow, RequestIdRow
from tests.planner.store.records import (
    GRAPH_ID,
    NOW,
    daemon,
    deployment,
    fill,
    fill_plan,
    graph,
    inventory,
    later,
    placement,
    plan,
)

pytestmark = pytest.mark.services
NOTHING = {"request_ids": 0, "plan_operations": 0, "inventories": 0, "daemons": 0}


async def purged(database: Database, seconds: float) -> dict[str, int]:
    async with database.session() as session:
        return dict(await purge(session, later(seconds)))


async def add_ended(database: Database, operation_id: str, inventory_id: str) -> None:
    operation = PlanOperation(
        id=operation_id, graph_id=GRAPH_ID, inventory_id=inventory_id, options=plan().options, created_at=NOW
    )
    async with database.session() as session:
        await add_operation(session, operation)
        await end_operation(session, operation_id, OperationState.FAILED, later(5))


async def ids(database: Database, column: object) -> list[str]:
    async with database.reading() as session:
        return sorted(await session.scalars(select(column)))  # type: ignore[call-overload]


async def test_request_ids_are_forgotten(database: Database) -> None:
    for request_id, moment in (("old", NOW), ("new", later(10))):

        async def create(_: object) -> str:
            return "made"

        await create_once(database, "Deploy", request_id, "f", moment, create)
    assert await purged(database, 0) == NOTHING
    assert await purged(database, 5) == {**NOTHING, "request_ids": 1}
    assert await ids(database, RequestIdRow.request_id) == ["new"]


async def test_operations_without_a_plan_go_and_their_inventories_with_them(database: Database) -> None:
    unlisted = [replace(inventory(f"inv-{index}"), listed=False) for index in (1, 2, 3)]
    await fill(database, graph(), inventory("inv-named"), *unlisted)
    await fill_plan(database, "plan-1", plan())
    await add_ended(database, "plan-1", "inv-1")
    await add_ended(database, "plan-2", "inv-2")
    async with database.session() as session:
        waiting = PlanOperation(
            id="plan-3", graph_id=GRAPH_ID, inventory_id="inv-3", options=plan().options, created_at=NOW
        )
        await add_operation(session, waiting)
    assert await purged(database, 4) == NOTHING
    assert await purged(database, 6) == {**NOTHING, "plan_operations": 1, "inventories": 1}
    assert await ids(database, PlanOperationRow.id) == ["plan-1", "plan-3"]
    assert await ids(database, InventoryRow.id) == ["inv-1", "inv-3", "inv-named"]
    async with database.reading() as session:
        left = await session.scalar(select(func.count()).where(InventoryDeviceRow.inventory_id == "inv-2"))
        listed, _ = await list_inventories(session, parse_page("inventories", 0, ""))
    assert left == 0
    assert [record.id for record in listed] == ["inv-named"]


async def test_daemons_that_fell_silent_are_forgotten_unless_something_stands_on_them(database: Database) -> None:
    await fill(
        database,
        graph(),
        deployment("dep-1", stages=(placement(0, "used"),), state=DeploymentState.READY),
        deployment("dep-2", stages=(placement(0, "idle"),), state=DeploymentState.FAILED),
    )
    async with database.session() as session:
        for device_id, moment in (("used", 10), ("idle", 10), ("live", 20)):
            await save_daemon(session, daemon(device_id, lease_expires_at=later(moment)), NOW)
    assert await purged(database, 15) == {**NOTHING, "daemons": 1}
    async with database.reading() as session:
        assert [daemon.device.id for daemon in await list_daemons(session)] == ["live", "used"]
