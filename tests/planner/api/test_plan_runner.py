"""Plan operations from asked for to ended, whatever becomes of the computation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.api import plan_runner
from planner.api.computing import ComputationFailed, Computing, TimedOut, WorkerDied
from planner.api.identity import new_id
from planner.api.plan_calls import _head_start
from planner.api.plan_runner import BACKGROUND_NICENESS, MOST_CLAIMS, PlanRunner
from planner.api.principals import CALLER
from planner.api.service import PlannerService
from planner.errors import Infeasible, InvalidArgument, NotFound, PlannerError, ResourceExhausted
from planner.plan.options import BalancedMode, PlanOptions
from planner.settings import Settings
from planner.store.graphs import GraphRecord, add_graph
from planner.store.inventories import InventoryRecord, add_inventory
from planner.store.operations import (
    OperationState,
    PlanOperation,
    add_operation,
    claim_operation,
    end_operation,
    get_operation,
    hurry,
    list_hurried,
)
from planner.store.tables import PlanOperationRow
from planner.wire.inventory import inventory_from_proto
from protos.v1 import plan_pb2, planner_pb2
from tests.contract.calls import balanced, inventory_message
from tests.contract.graphs import chain_bytes
from tests.contract.postgresql import postgresql
from tests.planner.api.conftest import Planner, open_planner
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services
SUCCEEDED, FAILED, CANCELLED, PENDING, RUNNING = (
    planner_pb2.OPERATION_STATE_SUCCEEDED,
    planner_pb2.OPERATION_STATE_FAILED,
    planner_pb2.OPERATION_STATE_CANCELLED,
    planner_pb2.OPERATION_STATE_PENDING,
    planner_pb2.OPERATION_STATE_RUNNING,
)


class ScriptedComputing(Computing):
    """Computes in this process, on the event loop, once `go_on` is set; `error` is raised instead of a result.

    The first `num_starved` computations never get on.
    """

    def __init__(self, num_workers: int = 1) -> None:
        super().__init__(num_workers)
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.error: Exception | None = None
        self.num_running = 0
        self.num_begun = 0
        self.num_starved = 0

    async def run(self, timeout_seconds: float, call: Callable[..., Any], *args: Any, **_: Any) -> Any:
        self.num_running += 1
        self.num_begun += 1
        self.begun.set()
        try:
            if self.num_begun <= self.num_starved:
                await asyncio.Event().wait()
            await self.go_on.wait()
            if self.error is not None:
                raise self.error
            return call(*args)
        finally:
            self.num_running -= 1


class World:
    def __init__(self, planner: Planner, graph_id: str) -> None:
        self.planner = planner
        self.graph_id = graph_id
        self.computing = ScriptedComputing()
        self.runner = self.another_runner()
        self.service: PlannerService = planner.service(self.runner)

    def another_runner(self) -> PlanRunner:
        return PlanRunner(self.planner.database, self.computing, self.planner.settings)

    async def ask(self, **fields: Any) -> planner_pb2.PlanOperation:
        fields = {"graph_id": self.graph_id, "inventory": inventory_message(), "options": balanced(), **fields}
        return await self.service.CreatePlan(planner_pb2.CreatePlanRequest(**fields), None)

    async def wait(self, operation_id: str, seconds: float = WAIT_SECONDS) -> planner_pb2.PlanOperation:
        request = planner_pb2.WaitPlanOperationRequest(operation_id=operation_id, timeout_seconds=seconds)
        return await self.service.WaitPlanOperation(request, None)

    async def cancel(self, operation_id: str) -> planner_pb2.PlanOperation:
        request = planner_pb2.CancelPlanOperationRequest(operation_id=operation_id)
        return await self.service.CancelPlanOperation(request, None)

    async def state(self, operation_id: str) -> int:
        request = planner_pb2.GetPlanOperationRequest(operation_id=operation_id)
        return (await self.service.GetPlanOperation(request, None)).state

    async def plan(self, plan_id: str) -> Any:
        content = await self.service.GetPlan(planner_pb2.GetPlanRequest(plan_id=plan_id), None)
        return plan_pb2.Plan.FromString(content)

    async def running(self) -> planner_pb2.PlanOperation:
        """An operation whose computation has begun."""
        operation = await self.ask()
        await asyncio.wait_for(self.computing.begun.wait(), WAIT_SECONDS)
        return operation


async def add_waiting(world: World, session: AsyncSession, replaced_plan_id: str | None = None) -> PlanOperation:
    """An operation that no runner was woken for; of a plan in the place of another, in the background."""
    inventory = InventoryRecord(
        id=new_id("inv"), name="", inventory=inventory_from_proto(inventory_message()), created_at=datetime.now(UTC)
    )
    await add_inventory(session, inventory)
    operation = PlanOperation(
        id=new_id("plan"),
        graph_id=world.graph_id,
        inventory_id=inventory.id,
        options=PlanOptions(mode=BalancedMode(num_stages=2)),
        created_at=datetime.now(UTC),
        background=replaced_plan_id is not None,
        replaced_plan_id=replaced_plan_id,
    )
    await add_operation(session, operation)
    return operation


@pytest_asyncio.fixture
async def world(planner: Planner) -> AsyncIterator[World]:
    async with open_world(planner) as world:
        yield world


@asynccontextmanager
async def open_world(planner: Planner) -> AsyncIterator[World]:
    content = chain_bytes()
    sha256 = planner.blobs.put(content)
    record = GraphRecord(
        id=sha256.hex(),
        name="chain",
        torch_version="2.13.0",
        size_bytes=len(content),
        num_nodes=4,
        num_states=4,
        state_bytes=0,
        weights=(),
        not_deployable_reason="",
        created_at=datetime.now(UTC),
    )
    async with planner.database.session() as session:
        await add_graph(session, record)
    world = World(planner, record.id)
    await world.runner.start()
    yield world
    await world.runner.close()


async def test_an_operation_that_is_computed_has_its_plan(world: World) -> None:
    operation = await world.running()
    assert await world.state(operation.id) == RUNNING
    with pytest.raises(NotFound, match="is running; WaitPlanOperation tells when it is done"):
        await world.plan(operation.id)
    world.computing.go_on.set()
    ended = await world.wait(operation.id)
    assert (ended.state, ended.HasField("failure"), ended.HasField("ended_at")) == (SUCCEEDED, False, True)
    plan = await world.plan(operation.id)
    assert plan.graph_id == world.graph_id
    assert [len(stage.device_ids) for stage in plan.stages] == [1, 1]


@pytest.mark.parametrize("error", [None, Infeasible("no")])
async def test_a_plan_that_ends_while_the_database_is_away_is_written_when_it_is_back(
    settings: Settings, tmp_path: Path, error: Exception | None
) -> None:
    async with open_planner("postgresql", settings, tmp_path) as planner, open_world(planner) as world:
        operation = await world.running()
        world.computing.error = error
        with postgresql().refusing(str(planner.database.url.database)):
            world.computing.go_on.set()
            await asyncio.sleep(0.5)
        assert (await world.wait(operation.id)).state == (FAILED if error else SUCCEEDED)


async def test_what_only_reads_is_answered_while_somebody_writes(world: World) -> None:
    operation = await world.running()
    async with world.planner.database.session() as session:
        await session.execute(update(PlanOperationRow).values(mode="changed"))
        assert await world.state(operation.id) == RUNNING
        assert (await world.wait(operation.id, 0)).state == RUNNING


async def test_waiting_for_what_nobody_here_computes_takes_its_time_and_sees_the_end(world: World) -> None:
    operation = await world.running()
    other = world.another_runner()
    running = asyncio.create_task(other.run())
    asked_at = time.monotonic()
    assert (await other.wait(operation.id, 0.2)).state is OperationState.RUNNING
    assert time.monotonic() - asked_at >= 0.2
    waiting = asyncio.create_task(other.wait(operation.id, WAIT_SECONDS))
    world.computing.go_on.set()
    assert (await waiting).state is OperationState.SUCCEEDED
    running.cancel()
    await asyncio.wait({running})


async def test_waiting_ends_with_its_seconds_and_leaves_the_computation_alone(world: World) -> None:
    operation = await world.running()
    assert (await world.wait(operation.id, 0.01)).state == RUNNING
    assert (await world.wait(operation.id, 0)).state == RUNNING
    assert world.computing.num_running == 1
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="needs 0 to 60"):
            await world.wait(operation.id, seconds)


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (Infeasible("no room", stage=1, device="a"), "INFEASIBLE", "no room"),
        (TimedOut("it took longer"), "TIMEOUT", "it took longer"),
        (WorkerDied("its process was ended by SIGKILL"), "WORKER_DIED", "SIGKILL"),
        (ComputationFailed("KeyError: 'secret'", details="traceback"), "INTERNAL", "internal error incident-"),
        (KeyError("secret"), "INTERNAL", "internal error incident-"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_goes_wrong_is_kept_and_the_next_is_computed(
    world: World, error: Exception, reason: str, says: str
) -> None:
    world.computing.error = error
    world.computing.go_on.set()
    ended = await world.wait((await world.ask()).id)
    assert (ended.state, ended.failure.reason) == (FAILED, reason)
    assert says in ended.failure.message
    assert "secret" not in str(ended.failure)
    if reason == "INTERNAL":
        assert ended.failure.metadata["incident_id"] in ended.failure.message
    if reason == "INFEASIBLE":
        assert (ended.failure.stage, ended.failure.device_id) == (1, "a")
    with pytest.raises(NotFound, match="failed: "):
        await world.plan(ended.id)
    world.computing.error = None
    assert (await world.wait((await world.ask()).id)).state == SUCCEEDED


async def test_cancelling_ends_what_runs_and_what_waits(world: World) -> None:
    running = await world.running()
    waiting = await world.ask()
    assert await world.state(waiting.id) == PENDING
    assert (await world.cancel(waiting.id)).state == CANCELLED
    assert world.computing.num_running == 1
    cancelled = await world.cancel(running.id)
    assert (cancelled.state, cancelled.HasField("failure")) == (CANCELLED, False)
    assert world.computing.num_running == 0
    assert await world.cancel(running.id) == cancelled
    with pytest.raises(NotFound, match="is cancelled"):
        await world.plan(running.id)
    with pytest.raises(NotFound):
        await world.cancel("plan-none")
    world.computing.go_on.set()
    assert (await world.wait((await world.ask()).id)).state == SUCCEEDED
    assert world.computing.num_begun == 2


async def test_what_was_cancelled_elsewhere_before_its_turn_is_not_computed(world: World) -> None:
    running = await world.running()
    waiting = await world.ask()
    async with world.planner.database.session() as session:
        assert await end_operation(session, waiting.id, OperationState.CANCELLED, datetime.now(UTC))
    world.computing.go_on.set()
    assert (await world.wait(running.id)).state == SUCCEEDED
    assert (await world.wait(waiting.id)).state == CANCELLED
    assert world.computing.num_begun == 1


async def test_what_was_ended_while_it_ran_leaves_no_plan(world: World) -> None:
    operation = await world.running()
    async with world.planner.database.session() as session:
        assert await end_operation(session, operation.id, OperationState.CANCELLED, datetime.now(UTC))
    world.computing.go_on.set()
    await eventually(lambda: not world.runner._tasks)
    assert await world.state(operation.id) == CANCELLED
    with pytest.raises(NotFound):
        await world.plan(operation.id)


async def test_what_is_cancelled_at_another_planner_is_killed_here(world: World) -> None:
    operation = await world.running()
    assert (await world.another_runner().cancel(operation.id)).state is OperationState.CANCELLED
    await eventually(lambda: world.computing.num_running == 0)
    assert world.runner._tasks == {}


async def test_what_another_planner_claimed_is_killed_here_and_leaves_no_plan(world: World) -> None:
    operation = await world.running()
    async with world.planner.database.session() as session:
        row = await session.get_one(PlanOperationRow, operation.id)
        row.claimed_by, row.fence = "another", row.fence + 1
    await eventually(lambda: world.computing.num_running == 0)
    assert await world.state(operation.id) == RUNNING


async def test_a_claim_that_nobody_knows_of_is_given_back(world: World) -> None:
    """As where a connection breaks while the claim is committed."""
    world.computing.go_on.set()
    async with world.planner.database.session() as session:
        await world.runner.close()
        operation_id = (await add_waiting(world, session)).id
        assert await claim_operation(session, world.runner.planner_id, 600.0, datetime.now(UTC)) is not None
    running = asyncio.create_task(world.runner.run())
    assert (await world.wait(operation_id)).state == SUCCEEDED
    running.cancel()
    await asyncio.wait({running})


async def test_a_plan_at_which_planner_after_planner_ends_is_given_up(world: World) -> None:
    async with world.planner.database.session() as session:
        operation_id = (await add_waiting(world, session)).id
        (await session.get_one(PlanOperationRow, operation_id)).fence = MOST_CLAIMS
    ended = await world.wait(operation_id)
    assert (ended.state, ended.failure.reason) == (FAILED, "PLANNERS_DIED")
    assert world.computing.num_begun == 0


async def test_only_so_many_may_wait(world: World) -> None:
    operations = [await world.running(), await world.ask(), await world.ask()]
    with pytest.raises(ResourceExhausted, match="3 plans are waiting already"):
        await world.ask()
    await world.cancel(operations[-1].id)
    await world.ask()


async def test_what_is_not_computed_when_a_planner_closes_is_computed_by_the_next(world: World) -> None:
    world.computing.go_on.set()
    done = await world.wait((await world.ask()).id)
    world.computing.go_on.clear()
    world.computing.begun.clear()
    open_ones = [await world.running(), await world.ask()]
    await world.runner.close()
    assert world.computing.num_running == 0
    assert [await world.state(operation.id) for operation in open_ones] == [PENDING, PENDING]
    world.computing.go_on.set()
    await start_another(world)
    for operation in open_ones:
        assert (await world.wait(operation.id)).state == SUCCEEDED
    assert await world.wait(done.id) == done


async def test_what_a_planner_left_that_died_is_computed_at_the_next_start(world: World) -> None:
    operation = await world.running()
    for task in (world.runner._running, *world.runner._tasks.values()):
        assert task is not None
        task.cancel()
    assert await world.state(operation.id) == RUNNING
    world.computing.go_on.set()
    await start_another(world)
    assert (await world.wait(operation.id)).state == SUCCEEDED


async def start_another(world: World) -> None:
    world.runner = world.another_runner()
    world.service = world.planner.service(world.runner)
    await world.runner.start()


async def test_plans_made_ahead_leave_a_worker_to_those_that_somebody_waits_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two workers; they yield the processor, too, and the plan is one in the place of another."""
    niceness: list[int] = []
    monkeypatch.setattr("os.nice", niceness.append)
    world.computing.num_workers = 2
    world.computing.go_on.set()
    replaced = await world.wait((await world.ask()).id)
    world.computing.go_on.clear()
    async with world.planner.database.session() as session:
        ahead = [await add_waiting(world, session, replaced_plan_id=replaced.id) for _ in range(2)]
    world.runner.wake()
    await eventually(lambda: world.computing.num_begun == 2)
    asked = await world.ask()
    await eventually(lambda: world.computing.num_begun == 3)
    assert await world.state(ahead[1].id) == PENDING
    assert await world.state(asked.id) == RUNNING
    world.computing.go_on.set()
    for operation in ahead:
        assert (await world.wait(operation.id)).state == SUCCEEDED
        async with world.planner.database.reading() as session:
            assert (await get_operation(session, operation.id)).moved_bytes == 512
        assert (await world.plan(operation.id)).options.WhichOneof("mode") == "optimal"
    assert niceness == [BACKGROUND_NICENESS] * 2


async def test_a_plan_made_ahead_that_gets_no_processor_is_overtaken_once_somebody_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    niceness: list[int] = []
    monkeypatch.setattr("os.nice", niceness.append)
    world.computing.go_on.set()
    replaced = await world.wait((await world.ask()).id)
    world.computing.num_starved = 2
    async with world.planner.database.session() as session:
        ahead = await add_waiting(world, session, replaced_plan_id=replaced.id)
    world.runner.wake()
    await eventually(lambda: world.computing.num_begun == 2)
    assert await world.state(ahead.id) == RUNNING
    async with world.planner.database.session() as session:
        await hurry(session, ahead.id)
    world.runner.wake()
    assert (await world.wait(ahead.id)).state == SUCCEEDED
    # The one that got no processor is ended, and the other did not yield it.
    assert (niceness, world.computing.num_running) == ([0], 0)


@pytest.mark.parametrize("error", [TimedOut("too long"), WorkerDied("killed")])
async def test_what_ends_a_plan_made_ahead_does_not_end_the_one_that_overtakes_it(
    world: World, monkeypatch: pytest.MonkeyPatch, error: PlannerError
) -> None:
    world.computing.go_on.set()
    replaced = await world.wait((await world.ask()).id)
    overtaken, ended = asyncio.Event(), asyncio.Event()

    async def run(_: float, call: Callable[..., Any], *args: Any) -> Any:
        if args[-1] == BACKGROUND_NICENESS:
            world.computing.begun.set()
            await overtaken.wait()
            ended.set()
            raise error
        overtaken.set()
        await ended.wait()
        await asyncio.sleep(0.05)
        return call(*args)

    async def with_one_that_is_gone(session: AsyncSession, operation_ids: Iterable[str]) -> tuple[str, ...]:
        return "plan-gone", *await list_hurried(session, operation_ids)

    monkeypatch.setattr(world.computing, "run", run)
    monkeypatch.setattr(plan_runner, "list_hurried", with_one_that_is_gone)
    world.computing.begun.clear()
    async with world.planner.database.session() as session:
        ahead = await add_waiting(world, session, replaced_plan_id=replaced.id)
    world.runner.wake()
    await asyncio.wait_for(world.computing.begun.wait(), WAIT_SECONDS)
    async with world.planner.database.session() as session:
        await hurry(session, ahead.id)
    world.runner.wake()
    assert (await world.wait(ahead.id)).state == SUCCEEDED


async def test_the_same_request_is_computed_once(world: World) -> None:
    request_id = new_id("request")
    operations = await asyncio.gather(*(world.ask(request_id=request_id) for _ in range(5)))
    assert len({operation.id for operation in operations}) == 1
    world.computing.go_on.set()
    assert (await world.wait(operations[0].id)).state == SUCCEEDED
    assert world.computing.num_begun == 1


async def test_one_caller_does_not_fill_the_queue_and_learns_when_to_ask_again(world: World) -> None:
    world.service._settings = world.planner.settings.model_copy(update={"max_pending_plans_per_caller": 1})
    alice = CALLER.set("alice")
    first = await world.ask()
    with pytest.raises(ResourceExhausted, match="alice has 1 plans that are waiting") as refused:
        await world.ask()
    assert refused.value.metadata["retry_after_seconds"] == "5.0"
    await world.cancel(first.id)
    await world.ask()
    CALLER.reset(alice)
    await world.ask()


async def test_a_small_problem_is_due_before_a_large_one(world: World) -> None:
    async with world.planner.database.session() as session:
        waits = await get_operation(session, (await world.ask()).id)
    assert waits.due_at is not None
    assert timedelta() < waits.due_at - waits.created_at < timedelta(seconds=1)
    assert _head_start(10**6, 1000) == timedelta(seconds=60)
