"""Plan operations, on both databases: each ends once, whoever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from sqlalchemy import update

from planner.errors import NotFound
from planner.plan.options import OptimalMode, PlanOptions
from planner.store.database import Database
from planner.store.deployment_records import Failure
from planner.store.operations import (
    OperationState,
    PlanOperation,
    add_operation,
    claim_operation,
    count_open,
    end_operation,
    get_operation,
    give_back_operations,
    hurry,
    list_ended,
    list_hurried,
    renew_operations,
)
from planner.store.tables import PlanOperationRow
from tests.planner.store.records import GRAPH_ID, NOW, fill, graph, inventory, later

pytestmark = pytest.mark.services
OPTIMAL = OptimalMode(num_stages=3)
CLAIM_SECONDS = 600.0
FAILURE = Failure(reason="INFEASIBLE", message="no room", stage=2, device_id="a", metadata={"needed_bytes": "7"})


def operation(operation_id: str = "plan-1") -> PlanOperation:
    return PlanOperation(
        id=operation_id,
        graph_id=GRAPH_ID,
        inventory_id="inv-1",
        options=PlanOptions(mode=OPTIMAL),
        created_at=NOW,
        due_at=NOW,
    )


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


async def end(
    database: Database,
    state: OperationState,
    failure: Failure | None = None,
    seconds: float = 1,
    fence: int | None = None,
) -> bool:
    async with database.session() as session:
        return await end_operation(session, "plan-1", state, later(seconds), failure, fence=fence)


async def claim(database: Database, planner_id: str = "first", seconds: float = 0.5) -> tuple[str, int] | None:
    """The id of what was claimed, and its fence."""
    async with database.session() as session:
        claimed = await claim_operation(session, planner_id, CLAIM_SECONDS, later(seconds))
    return claimed and (claimed.operation.id, claimed.fence)


async def fall_silent(database: Database, planner_id: str) -> None:
    """As if the planner had renewed nothing for longer than its claims last."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    async with database.session() as session:
        claimed = PlanOperationRow.claimed_by == planner_id
        await session.execute(update(PlanOperationRow).where(claimed).values(claimed_until=past))


async def renew(database: Database, planner_id: str) -> frozenset[str]:
    async with database.session() as session:
        return await renew_operations(session, planner_id, CLAIM_SECONDS)


async def open_ones(database: Database) -> int:
    async with database.session() as session:
        return await count_open(session)


async def test_an_operation_waits_runs_and_succeeds(operations: Database) -> None:
    assert await get(operations) == operation()
    assert await open_ones(operations) == 3
    assert await claim(operations) == ("plan-1", 1)
    assert await get(operations) == replace(operation(), state=OperationState.RUNNING)
    assert await open_ones(operations) == 3
    assert await end(operations, OperationState.SUCCEEDED)
    assert await get(operations) == replace(operation(), state=OperationState.SUCCEEDED, ended_at=later(1))
    assert await open_ones(operations) == 2
    async with operations.session() as session:
        assert (await session.get_one(PlanOperationRow, "plan-1")).started_at == later(0.5)
    assert await get(operations, "plan-2") == operation("plan-2")


async def test_those_in_the_background_come_last_and_count_for_nobody(operations: Database) -> None:
    ahead = replace(operation("plan-0"), background=True, replaced_plan_id="plan-9", due_at=later(-9))
    async with operations.session() as session:
        await add_operation(session, ahead)
    assert await get(operations, "plan-0") == ahead
    assert await open_ones(operations) == 3
    assert [await claim(operations) for _ in range(3)] == [("plan-1", 1), ("plan-2", 1), ("plan-3", 1)]
    async with operations.session() as session:
        assert await claim_operation(session, "first", CLAIM_SECONDS, later(1), background=False) is None
        assert await list_hurried(session, ["plan-0"]) == frozenset()
        await hurry(session, "plan-0")
        assert await list_hurried(session, ["plan-0", "plan-none"]) == {"plan-0"}
        claimed = await claim_operation(session, "first", CLAIM_SECONDS, later(1), background=False)
    assert claimed is not None
    assert claimed.operation == replace(ahead, state=OperationState.RUNNING, background=False)


async def test_who_has_the_fewest_at_work_comes_first_then_what_is_due_first(database: Database) -> None:
    await fill(database, graph(), inventory())
    operations = {"large": ("alice", 60), "small": ("alice", 2), "last": ("alice", 70), "bobs": ("bob", 90)}
    async with database.session() as session:
        for name, (principal, seconds) in operations.items():
            await add_operation(session, replace(operation(name), principal=principal, due_at=later(seconds)))
        assert [await count_open(session, who) for who in ("alice", "bob", "carol")] == [3, 1, 0]
    assert [await claim(database) for _ in range(4)] == [("small", 1), ("bobs", 1), ("large", 1), ("last", 1)]


async def test_a_principal_has_a_share_of_the_workers_at_most(database: Database) -> None:
    await fill(database, graph(), inventory())

    async def claim_share() -> str | None:
        async with database.session() as session:
            claim = await claim_operation(session, "first", CLAIM_SECONDS, later(1), most_of_one=1)
        return claim and claim.operation.id

    async with database.session() as session:
        for index, principal in enumerate(("alice", "alice", "", "")):
            due_at = later(index)
            await add_operation(session, replace(operation(f"plan-{index}"), principal=principal, due_at=due_at))
    assert [await claim_share() for _ in range(4)] == ["plan-0", "plan-2", "plan-3", None]
    async with database.session() as session:
        await end_operation(session, "plan-0", OperationState.SUCCEEDED, later(2))
    assert await claim_share() == "plan-1"


@pytest.mark.parametrize("first", [OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED])
async def test_what_has_ended_stays_as_it_ended(operations: Database, first: OperationState) -> None:
    failure = FAILURE if first is OperationState.FAILED else None
    assert await end(operations, first, failure)
    before = await get(operations)
    assert (before.state, before.failure, before.ended_at) == (first, failure, later(1))
    for state in (OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED):
        assert not await end(operations, state, replace(FAILURE, reason="LATER"), 2)
    assert await claim(operations) == ("plan-2", 1)
    assert await get(operations) == before


async def test_each_is_claimed_by_one_and_the_oldest_first(operations: Database) -> None:
    claimed = await asyncio.gather(*(claim(operations, f"planner-{index}") for index in range(5)))
    assert sorted(filter(None, claimed)) == [("plan-1", 1), ("plan-2", 1), ("plan-3", 1)]
    assert await claim(operations) is None


async def test_a_row_that_is_being_claimed_holds_up_nobody(operations: Database) -> None:
    if not operations.is_shared:
        pytest.skip("there is one planner, and transactions wait for each other")
    async with operations.session() as session:
        first = await claim_operation(session, "first", CLAIM_SECONDS, NOW)
        assert await claim(operations, "second") == ("plan-2", 1)
    assert first is not None
    assert first.operation.id == "plan-1"


async def test_what_a_silent_planner_left_is_claimed_again_and_its_own_end_is_refused(operations: Database) -> None:
    for planner_id in ("first", "second", "third"):
        await claim(operations, planner_id)
    await fall_silent(operations, "first")
    assert await claim(operations, "second", 7) == ("plan-1", 2)
    assert await claim(operations, "third") is None
    assert await renew(operations, "first") == frozenset()
    assert not await end(operations, OperationState.FAILED, FAILURE, fence=1)
    assert (await get(operations)).state is OperationState.RUNNING
    assert await end(operations, OperationState.SUCCEEDED, fence=2)
    async with operations.session() as session:
        assert (await session.get_one(PlanOperationRow, "plan-1")).started_at == later(0.5)


async def test_a_planner_that_was_silent_keeps_what_nobody_claimed(operations: Database) -> None:
    await claim(operations)
    await fall_silent(operations, "first")
    assert await renew(operations, "first") == {"plan-1"}
    assert await claim(operations, "second") == ("plan-2", 1)
    assert await end(operations, OperationState.SUCCEEDED, fence=1)
    assert await renew(operations, "first") == frozenset()


async def test_what_is_given_back_waits_again(operations: Database) -> None:
    for planner_id in ("first", "first", "second"):
        await claim(operations, planner_id)
    await end(operations, OperationState.SUCCEEDED)
    async with operations.session() as session:
        await give_back_operations(session, "first", ["plan-1", "plan-2", "plan-3"])
    assert await get(operations, "plan-2") == operation("plan-2")
    assert (await get(operations)).state is OperationState.SUCCEEDED
    assert await renew(operations, "second") == {"plan-3"}
    async with operations.session() as session:
        await give_back_operations(session, None)
        assert await list_ended(session, ["plan-1", "plan-2", "plan-3", "plan-9"]) == {"plan-1"}
    assert [await claim(operations, "third") for _ in range(3)] == [("plan-2", 2), ("plan-3", 2), None]


async def test_of_those_who_end_it_at_the_same_time_one_wins(operations: Database) -> None:
    states = [OperationState.SUCCEEDED, OperationState.CANCELLED, OperationState.FAILED] * 3
    won = await asyncio.gather(*(end(operations, state) for state in states))
    assert won.count(True) == 1
    assert (await get(operations)).state is states[won.index(True)]


async def test_unknown_ids(operations: Database) -> None:
    with pytest.raises(NotFound, match=f"the id '{'x' * 80}'"):
        await get(operations, "x" * 1000)
    async with operations.session() as session:
        assert not await end_operation(session, "plan-9", OperationState.FAILED, NOW)
