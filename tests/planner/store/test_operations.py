"""Plan operations, on both databases: each ends once, whoever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from planner.errors import NotFound
from planner.store.database import Database
from planner.store.deployment_records import Failure
from planner.store.operations import (
    OperationState,
    PlanOperation,
    add_operation,
    count_open,
    end_operation,
    fail_open_operations,
    get_operation,
    start_operation,
)
from planner.store.tables import PlanOperationRow
from tests.planner.store.records import GRAPH_ID, NOW, fill, graph, inventory, later

pytestmark = pytest.mark.services
FAILURE = Failure(reason="INFEASIBLE", message="no room", stage=2, device_id="a", metadata={"needed_bytes": "7"})


def operation(operation_id: str = "plan-1") -> PlanOperation:
    return PlanOperation(id=operation_id, graph_id=GRAPH_ID, inventory_id="inv-1", mode="balanced", created_at=NOW)


@pytest_asyncio.fixture
async def operations(database: Database) -> AsyncIterator[Database]:
    """Three that wait: plan-1, plan-2 and plan-3."""
    await fill(database, graph(), inventory())
    async with database.session() as session:
        for index in (1, 2, 3):
            await add_operation(session, operation(f"plan-{index}"))
    yield database


async def get(database: Database, operation_id: str = "plan-1") -> PlanOperation:
    async with database.session() as session:
        return await get_operation(session, operation_id)


async def end(database: Database, state: OperationState, failure: Failure | None = None, seconds: float = 1) -> bool:
    async with database.session() as session:
        return await end_operation(session, "plan-1", state, later(seconds), failure)


async def start(database: Database, seconds: float = 0.5) -> bool:
    async with database.session() as session:
        return await start_operation(session, "plan-1", later(seconds))


async def open_ones(database: Database) -> int:
    async with database.session() as session:
        return await count_open(session)


async def test_an_operation_waits_runs_and_succeeds(operations: Database) -> None:
    assert await get(operations) == operation()
    assert await open_ones(operations) == 3
    assert await start(operations)
    assert await get(operations) == replace(operation(), state=OperationState.RUNNING)
    assert await open_ones(operations) == 3
    assert await end(operations, OperationState.SUCCEEDED)
    assert await get(operations) == replace(operation(), state=OperationState.SUCCEEDED, ended_at=later(1))
    assert await open_ones(operations) == 2
    async with operations.session() as session:
        assert (await session.get_one(PlanOperationRow, "plan-1")).started_at == later(0.5)
    assert await get(operations, "plan-2") == operation("plan-2")


@pytest.mark.parametrize("first", [OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED])
async def test_what_has_ended_stays_as_it_ended(operations: Database, first: OperationState) -> None:
    failure = FAILURE if first is OperationState.FAILED else None
    assert await end(operations, first, failure)
    before = await get(operations)
    assert (before.state, before.failure, before.ended_at) == (first, failure, later(1))
    for state in (OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED):
        assert not await end(operations, state, replace(FAILURE, reason="LATER"), 2)
    assert not await start(operations)
    assert await get(operations) == before


async def test_what_runs_is_not_started_again(operations: Database) -> None:
    assert await start(operations)
    assert not await start(operations, 7)
    async with operations.session() as session:
        assert (await session.get_one(PlanOperationRow, "plan-1")).started_at == later(0.5)


async def test_of_those_who_end_it_at_the_same_time_one_wins(operations: Database) -> None:
    states = [OperationState.SUCCEEDED, OperationState.CANCELLED, OperationState.FAILED] * 3
    won = await asyncio.gather(*(end(operations, state) for state in states))
    assert won.count(True) == 1
    assert (await get(operations)).state is states[won.index(True)]


async def test_a_restart_fails_all_that_is_open_and_nothing_else(operations: Database) -> None:
    await start(operations)
    await end(operations, OperationState.SUCCEEDED)
    done = await get(operations)
    async with operations.session() as session:
        await start_operation(session, "plan-2", later(1))
        assert await fail_open_operations(session, FAILURE, later(3)) == 2
        assert await fail_open_operations(session, FAILURE, later(4)) == 0
    assert await get(operations) == done
    for operation_id in ("plan-2", "plan-3"):
        failed = replace(operation(operation_id), state=OperationState.FAILED, ended_at=later(3), failure=FAILURE)
        assert await get(operations, operation_id) == failed
    assert await open_ones(operations) == 0


async def test_unknown_ids(operations: Database) -> None:
    with pytest.raises(NotFound, match=f"the id '{'x' * 80}'"):
        await get(operations, "x" * 1000)
    async with operations.session() as session:
        assert not await end_operation(session, "plan-9", OperationState.FAILED, NOW)
