"""Plans for devices that may be lost, on both databases: which there are, who sees them, and when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from planner.errors import Conflict, NotFound
from planner.store.database import Database
from planner.store.deployment_records import Deployment, DeploymentState
from planner.store.deployments import begin_generation, get_deployment
from planner.store.operations import OperationState, PlanOperation, end_operation, get_operation
from planner.store.owners import add_owner, owners_of
from planner.store.paging import parse_page
from planner.store.plans import PlanFilter, delete_plan, get_plan, list_plans
from planner.store.purge import purge
from planner.store.spare_plans import add_spare, drop_obsolete_spares, find_spare, list_spares, lock_spares
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
HELD = deployment(state=DeploymentState.READY)


def operation(operation_id: str) -> PlanOperation:
    return PlanOperation(
        id=operation_id,
        graph_id=GRAPH_ID,
        inventory_id=f"inv-of-{operation_id}",
        options=plan().options,
        created_at=NOW,
        due_at=NOW,
        background=True,
        replaced_plan_id="plan-1",
    )


async def add(database: Database, operation_id: str, *lost: str, deployment: Deployment = HELD) -> None:
    async with database.session() as session:
        plan_operation = operation(operation_id)
        await add_spare(session, deployment, lost, plan_operation, inventory(plan_operation.inventory_id, listed=False))


async def succeed(database: Database, operation_id: str) -> None:
    async with database.session() as session:
        assert await end_operation(session, operation_id, OperationState.SUCCEEDED, later(1), moved_bytes=7)
    await fill_plan(database, operation_id, plan())


async def listed(database: Database) -> set[str]:
    async with database.reading() as session:
        return {one.id for one in (await list_plans(session, parse_page("plans", 0, ""), PlanFilter()))[0]}


async def plan_is_there(database: Database, plan_id: str) -> bool:
    async with database.reading() as session:
        try:
            await get_plan(session, plan_id)
        except NotFound:
            return False
    return True


async def state(database: Database, operation_id: str) -> OperationState:
    async with database.reading() as session:
        return (await get_operation(session, operation_id)).state


@pytest_asyncio.fixture
async def spares(database: Database) -> AsyncIterator[Database]:
    """A deployment with a plan for the loss of "a", and an operation that still makes one for the loss of both."""
    await fill(database, graph(), inventory())
    await fill_plan(database, "plan-1", plan())
    await fill(database, HELD)
    await add(database, "spare-a", "a")
    await add(database, "spare-ab", "b", "a")
    await succeed(database, "spare-a")
    yield database


async def test_each_set_of_lost_devices_has_its_operation(spares: Database) -> None:
    async with spares.reading() as session:
        assert await list_spares(session, HELD) == {frozenset("a"), frozenset("ab")}
        spare = await find_spare(session, HELD, ["a", "b", "a"])
        assert spare == operation("spare-ab")
        ended = await find_spare(session, HELD, ["a"])
        assert ended is not None
        assert (ended.state, ended.moved_bytes) == (OperationState.SUCCEEDED, 7)
        assert await find_spare(session, HELD, ["b"]) is None
        assert await find_spare(session, replace(HELD, generation=2), ["a"]) is None
        assert await list_spares(session, replace(HELD, generation=2)) == frozenset()


async def test_who_looks_while_another_asks_waits_and_finds_what_that_one_asked_for(spares: Database) -> None:
    """As a device is lost while plans for that are still being asked for: one of the two would fail."""
    has_asked, may_commit = asyncio.Event(), asyncio.Event()

    async def ask() -> None:
        async with spares.session() as session:
            await lock_spares(session, HELD)
            await add_spare(session, HELD, ["b"], operation("spare-b"), inventory("inv-of-spare-b", listed=False))
            has_asked.set()
            await may_commit.wait()

    async def look() -> PlanOperation | None:
        async with spares.session() as session:
            await lock_spares(session, HELD)
            return await find_spare(session, HELD, ["b"])

    asking = asyncio.create_task(ask())
    await has_asked.wait()
    looking = asyncio.create_task(look())
    # Long enough for one that does not wait.
    await asyncio.wait({looking}, timeout=0.5)
    may_commit.set()
    await asking
    assert await looking == operation("spare-b")


async def test_plans_made_ahead_are_listed_once_they_are_in_use_and_belong_to_the_deployments_owners(
    spares: Database,
) -> None:
    assert await listed(spares) == {"plan-1"}
    after = replace(HELD, generation=2, plan_id="spare-a", plan_reason="without a")
    async with spares.session() as session:
        await add_owner(session, "deployment", HELD.id, "ada", NOW)
        await begin_generation(session, after)
    assert await listed(spares) == {"plan-1", "spare-a"}
    async with spares.session() as session:
        assert await get_deployment(session, HELD.id) == after
        assert after.asked_plan_id == "plan-1"
        assert await owners_of(session, "plan", "spare-a") == {"ada"}
        await drop_obsolete_spares(session, later(2))
        for plan_id in ("plan-1", "spare-a"):
            with pytest.raises(Conflict, match=f"plan {plan_id} is needed by deployment dep-1"):
                await delete_plan(session, plan_id)
    assert await plan_is_there(spares, "spare-a")
    assert await state(spares, "spare-ab") is OperationState.CANCELLED


@pytest.mark.parametrize("ends", [True, False])
async def test_what_no_generation_needs_any_more_is_dropped(spares: Database, ends: bool) -> None:
    async with spares.session() as session:
        await drop_obsolete_spares(session, later(2))
    assert await plan_is_there(spares, "spare-a")
    if ends:
        await append(spares, HELD.id, event(DeploymentState.STOPPED))
    else:
        async with spares.session() as session:
            await begin_generation(session, replace(HELD, generation=2))
        await add(spares, "spare-b", "b", deployment=replace(HELD, generation=2))
    async with spares.session() as session:
        await drop_obsolete_spares(session, later(2))
    assert not await plan_is_there(spares, "spare-a")
    assert await plan_is_there(spares, "plan-1")
    assert await state(spares, "spare-ab") is OperationState.CANCELLED
    async with spares.reading() as session:
        left = {frozenset("b")} if not ends else frozenset()
        assert await list_spares(session, replace(HELD, generation=2)) == left


async def test_a_later_operation_takes_the_place_of_an_earlier_one(spares: Database) -> None:
    for operation_id, lost in (("again-a", "a"), ("again-ab", "ab")):
        await add(spares, operation_id, *lost)
    assert not await plan_is_there(spares, "spare-a")
    assert await state(spares, "spare-ab") is OperationState.CANCELLED
    async with spares.reading() as session:
        assert await find_spare(session, HELD, "ab") == operation("again-ab")


async def test_an_operation_that_found_no_plan_is_not_purged_while_it_says_so(spares: Database) -> None:
    async with spares.session() as session:
        await end_operation(session, "spare-ab", OperationState.FAILED, later(1))
        assert (await purge(session, later(100)))["plan_operations"] == 0
        assert await find_spare(session, HELD, "ab") is not None
