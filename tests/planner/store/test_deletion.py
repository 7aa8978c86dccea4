"""Graphs, inventories and deployments as they are deleted, and what keeps them, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import Conflict, NotFound
from planner.graph.ir import WeightFile
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from planner.store.deployments import delete_deployment, get_deployment, list_events
from planner.store.graphs import delete_graph, get_graph
from planner.store.inventories import delete_inventory, get_inventory
from planner.store.operations import OperationState, PlanOperation, add_operation, end_operation, get_operation
from planner.store.owners import add_owner, owners_of
from planner.store.plans import delete_plan
from tests.planner.store.records import (
    GRAPH_ID,
    NOW,
    append,
    deployment,
    event,
    fill,
    fill_plan,
    graph,
    inventory,
    later,
    plan,
)

pytestmark = pytest.mark.services
WEIGHTS = (WeightFile(sha256=b"\x01" * 32, size_bytes=8),)
Delete = Callable[[AsyncSession, str], Awaitable[None]]


async def delete(database: Database, how: Delete, object_id: str) -> None:
    async with database.session() as session:
        await how(session, object_id)


async def refusal(database: Database, how: Delete, object_id: str) -> dict[str, str]:
    with pytest.raises(Conflict) as caught:
        await delete(database, how, object_id)
    assert all(ids in caught.value.message for ids in caught.value.metadata.values())
    return caught.value.metadata


async def add_pending(database: Database, operation_id: str) -> None:
    operation = PlanOperation(
        id=operation_id, graph_id=GRAPH_ID, inventory_id="inv-1", options=plan().options, created_at=NOW
    )
    async with database.session() as session:
        await add_operation(session, operation)


async def test_a_graph_is_kept_while_anything_is_of_it(database: Database) -> None:
    await fill(database, graph(weights=WEIGHTS), graph("0" * 64), inventory(), deployment(state=DeploymentState.FAILED))
    await fill_plan(database, "plan-1", plan())
    await add_pending(database, "plan-2")
    assert await refusal(database, delete_graph, GRAPH_ID) == {
        "plan": "plan-1",
        "plan operation": "plan-2",
        "deployment": "dep-1",
    }
    await delete(database, delete_plan, "plan-1")
    await delete(database, delete_deployment, "dep-1")
    assert await refusal(database, delete_graph, GRAPH_ID) == {"plan operation": "plan-2"}
    async with database.session() as session:
        await end_operation(session, "plan-2", OperationState.CANCELLED, later(1))
    await delete(database, delete_graph, GRAPH_ID)
    async with database.reading() as session:
        for find, object_id in ((get_graph, GRAPH_ID), (get_operation, "plan-2")):
            with pytest.raises(NotFound):
                await find(session, object_id)
        await get_graph(session, "0" * 64)
    await fill(database, graph())
    async with database.reading() as session:
        assert (await get_graph(session, GRAPH_ID)).weights == ()


async def test_only_some_of_many_are_named(database: Database) -> None:
    await fill(database, graph(), *(deployment(f"dep-{index}") for index in range(7)))
    named = await refusal(database, delete_graph, GRAPH_ID)
    assert named == {"deployment": "dep-0, dep-1, dep-2, dep-3, dep-4 and 2 more"}


async def test_an_inventory_is_kept_while_a_plan_is_over_it(database: Database) -> None:
    await fill(database, graph(), inventory(), inventory("inv-2"))
    await fill_plan(database, "plan-1", plan())
    await add_pending(database, "plan-2")
    assert await refusal(database, delete_inventory, "inv-1") == {"plan": "plan-1", "plan operation": "plan-2"}
    await delete(database, delete_plan, "plan-1")
    async with database.session() as session:
        await end_operation(session, "plan-2", OperationState.FAILED, later(1))
    await delete(database, delete_inventory, "inv-1")
    async with database.reading() as session:
        await get_inventory(session, "inv-2")
        with pytest.raises(NotFound):
            await get_inventory(session, "inv-1")


async def test_a_deployment_is_kept_until_it_has_ended(database: Database) -> None:
    await fill(database, graph(), deployment(), deployment("dep-2"))
    for state in DeploymentState:
        await append(database, "dep-2", event(state))
        if not state.ended:
            await append(database, "dep-1", event(state))
            assert await refusal(database, delete_deployment, "dep-1") == {"state": state.value}
    await append(database, "dep-1", event(DeploymentState.STOPPED))
    await delete(database, delete_deployment, "dep-1")
    async with database.reading() as session:
        assert await list_events(session, "dep-1", 0) == ()
        assert len(await list_events(session, "dep-2", 0)) == len(DeploymentState)
        with pytest.raises(NotFound):
            await get_deployment(session, "dep-1")


@pytest.mark.parametrize("how", [delete_graph, delete_inventory, delete_deployment])
async def test_what_is_not_there_cannot_be_deleted(database: Database, how: Delete) -> None:
    with pytest.raises(NotFound):
        await delete(database, how, GRAPH_ID)


async def test_who_makes_it_anew_owns_it_alone(database: Database) -> None:
    await fill(database, graph())
    async with database.session() as session:
        await add_owner(session, "graph", GRAPH_ID, "alice", NOW)
        await add_owner(session, "graph", "0" * 64, "alice", NOW)
        await delete_graph(session, GRAPH_ID)
    async with database.reading() as session:
        assert await owners_of(session, "graph", GRAPH_ID) == frozenset()
        assert await owners_of(session, "graph", "0" * 64) == {"alice"}


async def test_what_begins_to_need_a_graph_waits_for_its_deletion(database: Database) -> None:
    """Or the deletion for that: never is there a plan of no graph."""
    await fill(database, graph(), inventory())
    outcomes = await asyncio.gather(
        delete(database, delete_graph, GRAPH_ID), add_pending(database, "plan-1"), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
