"""The policy `replan`: which plan a deployment goes on by when devices are lost, made ahead or then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession

from planner.dispatch import placing
from planner.errors import DeviceGone, NotFound, PlannerError, ResourceExhausted, Unavailable
from planner.planning import make_replacement
from planner.store.database import Database
from planner.store.deployment_records import Deployment, DeploymentState, Failure, RecoveryPolicy
from planner.store.inventories import get_inventory
from planner.store.operations import OperationState, PlanOperation, claim_operation, end_operation, get_operation
from planner.store.paging import parse_page
from planner.store.plans import PlanFilter, add_plan, delete_plan, get_plan, list_plans
from planner.store.spare_plans import find_spare
from tests.contract.graphs import relu_chain
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.planner.dispatch.worlds import FIRST, SECOND, World, held, open_world
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services
REPLAN = RecoveryPolicy.REPLAN
FAILED, RECOVERING = DeploymentState.FAILED, DeploymentState.RECOVERING
THIRD = "node2/cpu"
DIED = Failure(reason="WORKER_DIED", message="killed")


@pytest_asyncio.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, tmp_path, num_devices=3) as world:
        world.dispatcher.start()
        yield world


@asynccontextmanager
async def planning(world: World) -> AsyncIterator[None]:
    """What is asked for is planned."""
    task = asyncio.create_task(plan_all(world.database))
    yield
    task.cancel()
    await asyncio.wait({task})


async def plan_all(database: Database) -> None:
    while True:
        async with database.session() as session:
            claim = await claim_operation(session, "test", 600.0, datetime.now(UTC))
        if claim is None:
            await asyncio.sleep(0.01)
            continue
        operation = claim.operation
        assert operation.replaced_plan_id is not None
        async with database.session() as session:
            replaced, _ = await get_plan(session, operation.replaced_plan_id)
            left = (await get_inventory(session, operation.inventory_id)).inventory
            try:
                plan, replacement = make_replacement(
                    relu_chain(4), operation.graph_id, left, operation.options, replaced
                )
            except PlannerError as error:
                failure = Failure(reason=error.reason, message=error.message)
                await end_operation(session, operation.id, OperationState.FAILED, datetime.now(UTC), failure)
                continue
            await end_operation(
                session,
                operation.id,
                OperationState.SUCCEEDED,
                datetime.now(UTC),
                fence=claim.fence,
                moved_bytes=replacement.moved_bytes,
            )
            await add_plan(session, operation.id, plan, operation.inventory_id, datetime.now(UTC))


async def spare(world: World, deployment: Deployment, *lost: str) -> PlanOperation:
    """The operation for that loss, once there is one and it has ended."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with world.database.reading() as session:
                operation = await find_spare(session, deployment, lost)
            if operation is not None and operation.state.ended:
                return operation
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not await condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.01)


async def has_hurried(world: World, deployment: Deployment) -> bool:
    """Whether somebody waits for the plan without the second device."""
    async with world.database.reading() as session:
        operation = await find_spare(session, deployment, [SECOND])
    return operation is not None and not operation.background


async def lose(world: World, deployment_id: str, *device_ids: str, generation: int = 1) -> None:
    """Nothing listens any more where the daemons were, and a neighbour has seen it."""
    for device_id in device_ids:
        await world.daemons[device_id].stop()
    edge = Failure(reason="EDGE_TIMEOUT", message="the other end is silent", metadata={"edge": "0"})
    [witness] = {FIRST, SECOND} - set(device_ids) or {FIRST}
    await world.beat(witness, held(deployment_id, generation=generation, failure=edge))


async def plan_ids(world: World) -> set[str]:
    async with world.database.reading() as session:
        plans, _ = await list_plans(session, parse_page("plans", 0, ""), PlanFilter())
    return {plan.id for plan in plans}


async def test_a_deployment_goes_on_by_the_plan_that_was_made_ahead(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    before = await world.get(deployment_id)
    async with planning(world):
        ahead = await spare(world, before, SECOND)
        other = await spare(world, before, FIRST)
    assert (ahead.background, ahead.replaced_plan_id) == (True, "plan-1")
    assert await plan_ids(world) == {"plan-1"}
    await lose(world, deployment_id, SECOND)
    after = await world.until_generation(deployment_id, 2)
    assert (after.plan_id, after.asked_plan_id, after.recovery) == (ahead.id, "plan-1", REPLAN)
    assert after.plan_reason.startswith(
        f"without {SECOND}, planned ahead: 0 bytes of weights move, predicted throughput"
    )
    assert SECOND not in after.device_ids()
    assert any(after.plan_reason in event.message for event in await world.events(deployment_id))
    assert await plan_ids(world) == {"plan-1", ahead.id}
    async with planning(world):
        await asyncio.gather(*(spare(world, after, device_id) for device_id in after.device_ids()))
    async with world.database.reading() as session:
        assert await find_spare(session, before, [FIRST]) is None
        assert (await get_operation(session, other.id)).state is OperationState.SUCCEEDED
    assert await plan_ids(world) == {"plan-1", ahead.id}


async def test_where_there_is_no_plan_yet_it_is_made_then(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    before = await world.get(deployment_id)
    await lose(world, deployment_id, SECOND)
    await until(lambda: has_hurried(world, before))
    async with planning(world):
        after = await world.until_generation(deployment_id, 2)
    assert after.plan_reason.startswith(f"without {SECOND}, planned when it was needed: ")


async def test_a_database_without_room_keeps_nobody_from_recovering_once_there_is_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment_id = await world.ready(REPLAN)
    hurried, num_refused = placing.hurry, 0

    async def refuse(session: AsyncSession, operation_id: str) -> None:
        nonlocal num_refused
        num_refused += 1
        if num_refused == 1:
            raise ResourceExhausted("the planner's database has no room left")
        await hurried(session, operation_id)

    monkeypatch.setattr(placing, "hurry", refuse)
    await lose(world, deployment_id, SECOND)
    await eventually(lambda: num_refused > 0)
    async with planning(world):
        await world.until_generation(deployment_id, 2)


async def test_a_plan_that_was_deleted_is_made_again(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    async with planning(world):
        ahead = await spare(world, await world.get(deployment_id), SECOND)
        async with world.database.session() as session:
            await delete_plan(session, ahead.id)
        await lose(world, deployment_id, SECOND)
        after = await world.until_generation(deployment_id, 2)
    assert after.plan_id != ahead.id
    assert "planned when it was needed" in after.plan_reason


async def test_a_plan_that_has_no_room_any_more_is_made_again(world: World) -> None:
    """The daemon's own memory is less than when the plan was made."""
    deployment_id = await world.ready(REPLAN)
    before = await world.get(deployment_id)
    async with planning(world):
        ahead = await spare(world, before, SECOND)
        async with world.database.reading() as session:
            plan, _ = await get_plan(session, ahead.id)
        [used] = {stage.device_ids[0] for stage in plan.stages}
        await world.register(used, memory_bytes=plan.device_peak_bytes[used] - 1)
        await lose(world, deployment_id, SECOND)
        after = await world.until_generation(deployment_id, 2)
    assert after.plan_id != ahead.id
    assert after.plan_reason.startswith(f"without {SECOND}, planned when it was needed: ")


async def test_two_devices_that_are_lost_at_once_are_planned_for_then(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    async with planning(world):
        await spare(world, await world.get(deployment_id), SECOND)
        await lose(world, deployment_id, FIRST, SECOND)
        after = await world.until_generation(deployment_id, 2)
    assert after.device_ids() == (THIRD,)
    assert after.plan_reason.startswith(f"without {FIRST}, {SECOND}, planned when it was needed: ")


async def test_where_all_daemons_are_there_the_plan_stays(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    await world.beat(SECOND, held(deployment_id, failure=DIED))
    after = await world.until_generation(deployment_id, 2)
    assert (after.plan_id, after.plan_reason, after.device_ids()) == ("plan-1", "", (FIRST, SECOND))


@pytest.mark.parametrize("comes_back", [True, False])
async def test_where_nothing_fits_it_says_so_and_waits_for_a_device(
    database: Database, tmp_path: Path, comes_back: bool
) -> None:
    async with open_world(database, tmp_path) as world, planning(world):
        world.recovery_seconds = 600.0 if comes_back else 0.0
        world.start().start()
        deployment_id = await world.ready(REPLAN)
        await world.register(FIRST, memory_bytes=3)
        await lose(world, deployment_id, SECOND)
        says = f"without {SECOND} nothing fits on {FIRST} (3 bytes): mode optimal: no cut of the program fits"
        if not comes_back:
            await world.until(deployment_id, FAILED)
            failure = (await world.get(deployment_id)).failure
            assert failure is not None
            assert (failure.reason, failure.metadata["lost_device_ids"]) == ("INFEASIBLE", SECOND)
            assert failure.message.startswith(says), failure.message
            return
        await until_told(world, deployment_id, says)
        world.daemons[SECOND] = ScriptedDaemon(SECOND, "second")
        await world.daemons[SECOND].start()
        # In this order: the first alone, with its memory back, would be enough for all stages.
        await world.register(SECOND, incarnation="second")
        await world.register(FIRST)
        after = await world.until_generation(deployment_id, 2)
        assert (after.plan_id, after.device_ids()) == ("plan-1", (FIRST, SECOND))


async def test_time_without_a_database_is_none_of_the_time_to_recover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.recovery_seconds = 0.0
    world.start()
    deployment_id = await world.ready(RecoveryPolicy.RESTART)
    num_looks, reading = 0, world.database.reading

    @asynccontextmanager
    async def away() -> AsyncIterator[AsyncSession]:
        nonlocal num_looks
        num_looks += 1
        raise Unavailable("the planner's database does not answer")
        yield

    monkeypatch.setattr(world.database, "reading", away)
    await world.beat(FIRST, held(deployment_id, failure=DIED))
    await eventually(lambda: num_looks > 1)
    assert (await world.get(deployment_id)).state is RECOVERING
    monkeypatch.setattr(world.database, "reading", reading)
    await world.until_generation(deployment_id, 2)


async def until_told(world: World, deployment_id: str, says: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        async for event in world.dispatcher.watch(deployment_id, 0):
            if event.message.startswith(says):
                assert event.message.endswith("it waits for a device to come back")
                assert event.state is RECOVERING
                return


async def test_what_was_made_ahead_for_one_that_has_ended_is_forgotten(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    before = await world.get(deployment_id)
    async with planning(world):
        ahead = await spare(world, before, SECOND)
    await world.dispatcher.stop(deployment_id)

    async def is_forgotten() -> bool:
        async with world.database.reading() as session:
            return await find_spare(session, before, [SECOND]) is None

    await until(is_forgotten)
    assert await plan_ids(world) == {"plan-1"}
    with pytest.raises(NotFound):
        async with world.database.reading() as session:
            await get_plan(session, ahead.id)


async def test_other_policies_ask_for_no_plans(world: World) -> None:
    deployment_id = await world.ready(RecoveryPolicy.RESTART)
    await asyncio.sleep(0.3)
    async with world.database.session() as session:
        assert await claim_operation(session, "test", 600.0, datetime.now(UTC)) is None
    await world.dispatcher.stop(deployment_id)
    await eventually(lambda: not world.dispatcher._planned_ahead)


async def test_what_is_learned_of_an_earlier_generation_says_nothing_of_the_next(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    driver = world.dispatcher._drivers[deployment_id]
    await driver.handle(driver.broken(DIED, SECOND), generation=1)
    await world.until_generation(deployment_id, 2)
    await driver.handle(driver.broken(DIED, SECOND), generation=1)
    assert (await world.get(deployment_id)).generation == 2
    assert driver.rollout.state is DeploymentState.READY


@pytest.mark.parametrize("recovery", [REPLAN, RecoveryPolicy.RESTART])
async def test_a_daemon_that_shuts_down_is_left_once_what_is_in_flight_is_finished(
    world: World, recovery: RecoveryPolicy
) -> None:
    """With `restart` for its next start, with `replan` for other devices."""
    deployment_id = await world.ready(recovery)
    await world.beat(SECOND, held(deployment_id), leaving=True)
    await world.until(deployment_id, RECOVERING)
    if recovery is REPLAN:
        async with planning(world):
            after = await world.until_generation(deployment_id, 2)
        assert SECOND not in after.device_ids()
    else:
        await eventually(lambda: len(world.daemons[SECOND].releases) == 1)
        assert len(world.daemons[SECOND].loads) == 1
        await world.restart(SECOND)
        after = await world.until_generation(deployment_id, 2)
        assert after.stages[-1].incarnation_id == "second"
    for device_id in (FIRST, SECOND):
        assert [release.drain for release in world.daemons[device_id].releases] == [True]


async def test_nothing_is_deployed_on_a_daemon_that_shuts_down_until_it_is_started_again(world: World) -> None:
    deployment_id = await world.ready()
    await world.beat(SECOND, held(deployment_id), leaving=True)
    await world.until(deployment_id, DeploymentState.STOPPED)
    for _ in range(2):
        with pytest.raises(DeviceGone, match=f"device {SECOND}"):
            await world.ready()
        await world.dispatcher.close()
        world.start()
    await world.restart(SECOND)
    await world.ready()


async def test_a_rollout_begins_anew_elsewhere_where_a_daemon_shuts_down(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "", recovery=REPLAN)
    await world.until(deployment_id, DeploymentState.LOADING)
    await world.beat(SECOND, held(deployment_id), leaving=True)
    async with planning(world):
        after = await world.until_generation(deployment_id, 2)
    assert SECOND not in after.device_ids()


async def test_a_device_that_is_drained_is_left_by_what_can_leave(world: World) -> None:
    """Only once there is a plan for the devices left, and the others go on there."""
    moves, stays = await world.ready(REPLAN), await world.ready(RecoveryPolicy.RESTART)
    assert (await world.dispatcher.drain(SECOND))[moves] == ""
    assert (await world.get(moves)).state is DeploymentState.READY
    with pytest.raises(DeviceGone, match=f"device {SECOND}"):
        await world.ready()

    async def has_left() -> bool:
        return list(await world.dispatcher.drain(SECOND)) == [stays]

    async with planning(world):
        await until(has_left)
    after = await world.until_generation(moves, 2)
    assert (SECOND in after.device_ids(), after.plan_reason.startswith(f"without {SECOND}, ")) == (False, True)
    assert [release.drain for release in world.daemons[SECOND].releases] == [True]
    left = await world.dispatcher.drain(SECOND)
    assert left == {stays: "its recovery policy is restart; it goes on there until the daemon ends"}
    assert (await world.get(stays)).state is DeploymentState.READY
    assert (await world.dispatcher.drain(SECOND, undo=True)).keys() == {stays}
    await world.ready()


async def test_a_device_stays_drained_where_its_daemon_registers_once_more(world: World) -> None:
    """As it does whenever a heartbeat was not answered, and after each restart of the planner."""
    await world.dispatcher.drain(SECOND)
    await world.register(SECOND)
    assert (await world.find(SECOND)).draining
    await world.dispatcher.drain(SECOND, undo=True)
    await world.register(SECOND)
    assert not (await world.find(SECOND)).draining
    await world.dispatcher.drain(SECOND)
    await world.restart(SECOND)
    assert not (await world.find(SECOND)).draining


async def test_what_fits_nowhere_else_stays_on_a_device_that_is_drained(world: World) -> None:
    deployment_id = await world.ready(REPLAN)
    for device_id in (FIRST, THIRD):
        await world.register(device_id, memory_bytes=1)

    async def stays() -> bool:
        return "nothing fits on" in (await world.dispatcher.drain(SECOND)).get(deployment_id, "")

    async with planning(world):
        await until(stays)
    assert (await world.get(deployment_id)).state is DeploymentState.READY
    with pytest.raises(NotFound, match="node9"):
        await world.dispatcher.drain("node9/cpu")
