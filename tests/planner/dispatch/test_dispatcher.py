"""All deployments of a planner: who may deploy, what heartbeats tell, and what a planner that starts takes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from planner.dispatch import dispatcher, driver, lease
from planner.errors import (
    DeviceFull,
    DeviceGone,
    DeviceTaken,
    NotDeployable,
    NotFound,
    RequestIdReused,
    ResourceExhausted,
)
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState, Failure, RecoveryPolicy
from planner.store.deployments import list_active_deployments
from planner.store.tables import GraphRow
from planner.wire.graph import graph_to_bytes
from tests.contract.graphs import relu_chain, sha256
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.planner.dispatch.worlds import FIRST, SECOND, World, held, open_world
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services
RESTART = RecoveryPolicy.RESTART
READY, FAILED, STOPPED = DeploymentState.READY, DeploymentState.FAILED, DeploymentState.STOPPED
DIED = Failure(reason="WORKER_DIED", message="killed")


@pytest_asyncio.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, tmp_path) as world:
        yield world


async def test_a_plan_is_deployed_and_stopped(world: World) -> None:
    deployment_id = await world.ready()
    record = await world.get(deployment_id)
    assert (record.plan_id, record.generation, record.device_ids()) == ("plan-1", 1, (FIRST, SECOND))
    assert [stage.incarnation_id for stage in record.stages] == ["first", "first"]
    await world.dispatcher.stop(deployment_id)
    assert (await world.get(deployment_id)).state is STOPPED
    await world.dispatcher.stop(deployment_id)
    with pytest.raises(NotFound):
        await world.dispatcher.stop("dep-none")


async def test_the_same_request_deploys_once_and_another_is_refused(world: World) -> None:
    ids = await asyncio.gather(*(world.dispatcher.deploy("plan-1", "one", "f") for _ in range(4)))
    assert len(set(ids)) == 1
    await world.until(ids[0], READY)
    assert len(world.daemons[FIRST].loads) == 1
    with pytest.raises(RequestIdReused):
        await world.dispatcher.deploy("plan-1", "one", "g")


async def test_what_may_not_be_deployed(world: World) -> None:
    with pytest.raises(NotFound):
        await world.dispatcher.deploy("plan-none", "")
    await world.register(SECOND, memory_bytes=1)
    with pytest.raises(DeviceFull):
        await world.dispatcher.deploy("plan-1", "")
    await world.expire(SECOND)
    with pytest.raises(DeviceGone):
        await world.dispatcher.deploy("plan-1", "")
    graph_id = sha256(graph_to_bytes(relu_chain(4))).hex()
    async with world.database.session() as session:
        (await session.get_one(GraphRow, graph_id)).not_deployable_reason = "node 3 reads a file"
    with pytest.raises(NotDeployable, match="node 3 reads a file") as caught:
        await world.dispatcher.deploy("plan-1", "")
    assert caught.value.metadata == {"graph_id": graph_id}
    async with world.database.session() as session:
        assert await list_active_deployments(session) == ()


async def test_a_caller_has_so_many_deployments_that_have_not_ended(world: World) -> None:
    first = await world.dispatcher.deploy("plan-1", "one", "f", caller="alice")
    assert await world.dispatcher.deploy("plan-1", "one", "f", caller="alice") == first
    with pytest.raises(ResourceExhausted, match=r"alice has 1 deployments .*: stop one of them") as refused:
        await world.dispatcher.deploy("plan-1", "", caller="alice")
    assert "retry_after_seconds" not in refused.value.metadata
    await world.dispatcher.deploy("plan-1", "", caller="bob")
    for _ in range(2):
        await world.dispatcher.deploy("plan-1", "")
    await world.until(first, READY)
    await world.dispatcher.stop(first)
    await world.dispatcher.deploy("plan-1", "", caller="alice")


async def test_a_graph_whose_bytes_are_gone_fails_the_deployment(world: World) -> None:
    world.lose_blobs()
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    await world.until(deployment_id, FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert failure.reason == "NOT_FOUND"


async def test_a_daemon_that_is_not_known_or_no_longer_the_one_is_told(world: World) -> None:
    with pytest.raises(NotFound, match="no daemon has registered device 'node9/cpu'; register"):
        await world.beat("node9/cpu")
    deployment_id = await world.ready()
    await world.restart(SECOND)
    await world.until(deployment_id, FAILED)
    with pytest.raises(DeviceTaken, match="--device-id") as caught:
        await world.beat(SECOND, held(deployment_id))
    assert caught.value.metadata["release_deployment_ids"] == deployment_id
    assert await world.beat(SECOND, incarnation="second") == ()


async def test_a_device_is_not_taken_over_while_its_daemon_lives(world: World) -> None:
    deployment_id = await world.ready()
    for device_id in (FIRST, SECOND):
        with pytest.raises(DeviceTaken, match=f"device {device_id} is that of another daemon") as caught:
            await world.register(device_id, incarnation="second")
        assert caught.value.metadata["lease_seconds"] == "600.0"
        assert await world.beat(device_id, held(deployment_id)) == ()
    assert (await world.get(deployment_id)).state is READY


@pytest.mark.parametrize("address", ["127.0.0.1:1", "another start answers"])
async def test_a_device_whose_daemon_has_ended_is_taken_over_at_once(world: World, address: str) -> None:
    holder = world.daemons[SECOND]
    if address == "127.0.0.1:1":
        await holder.stop()
    else:
        holder.incarnation_id = "second"
    await world.register(SECOND, incarnation="second")
    with pytest.raises(DeviceTaken):
        await world.beat(SECOND)


@pytest.mark.parametrize("is_taken_up", [False, True])
async def test_what_runs_on_a_daemon_that_ends_breaks_with_its_connection(world: World, is_taken_up: bool) -> None:
    """Nobody reports it, no heartbeat is missed yet and no lease runs out; also where another planner rolled it out."""
    deployment_id = await world.ready()
    if is_taken_up:
        await world.dispatcher.close()
        world.start()
        await world.register(FIRST)
    await world.daemons[SECOND].stop()
    await world.until(deployment_id, DeploymentState.FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("DAEMON_UNREACHABLE", 1, SECOND)


async def test_what_runs_on_a_daemon_that_has_ended_breaks_before_the_lease_runs_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its connection did not break, as that of a host that lost its power."""
    monkeypatch.setattr(driver, "until_ended", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(lease, "LATE_SHARE", 0.0)
    deployment_id = await world.ready()
    await world.dispatcher._end_refusing()
    assert (await world.get(deployment_id)).state is READY
    await world.daemons[SECOND].stop()
    await world.dispatcher._end_refusing()
    await world.until(deployment_id, DeploymentState.FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("DAEMON_UNREACHABLE", 1, SECOND)


async def test_of_two_that_would_succeed_one_does(world: World) -> None:
    await world.daemons[SECOND].stop()
    ends = await asyncio.gather(
        *(world.register(SECOND, incarnation=name) for name in ("second", "third")), return_exceptions=True
    )
    assert sorted(type(end) for end in ends if end != 600.0) == [DeviceTaken]


async def test_a_heartbeat_renews_the_lease_with_the_next_check(world: World) -> None:
    for device_id in world.daemons:
        await world.expire(device_id, seconds_ago=100)
    await world.beat(FIRST)
    world.dispatcher.start()
    ends = await world.find(FIRST)
    async with asyncio.timeout(WAIT_SECONDS):
        while not ends.live_at(datetime.now(UTC) + timedelta(seconds=300)):
            await asyncio.sleep(0.01)
            ends = await world.find(FIRST)
    assert ends.lease_expires_at < datetime.now(UTC) + timedelta(seconds=600)


async def test_a_stage_is_lost_when_two_heartbeats_in_a_row_lack_it(world: World) -> None:
    deployment_id = await world.ready()
    for _ in range(3):
        await world.beat(FIRST)
        await world.beat(SECOND, held(deployment_id))
        await world.beat(FIRST, held(deployment_id))
    assert (await world.get(deployment_id)).state is READY
    await world.beat(FIRST)
    await world.beat(SECOND)
    assert (await world.get(deployment_id)).state is READY
    await world.beat(SECOND)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("STAGE_LOST", 1, SECOND)
    assert failure.message == f"the daemon of {SECOND} no longer holds the deployment"


async def test_heartbeats_during_the_rollout_may_lack_it(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    await eventually(lambda: "load" in world.daemons[SECOND].asked)
    for _ in range(3):
        assert await world.beat(FIRST) == ()
    world.daemons[SECOND].resume.set()
    await world.until(deployment_id, READY)
    await world.beat(FIRST)
    assert (await world.get(deployment_id)).state is READY


async def test_what_is_reported_of_another_generation_is_not_believed(world: World) -> None:
    deployment_id = await world.ready()
    assert await world.beat(FIRST, held(deployment_id, generation=2, failure=DIED)) == ()
    assert (await world.get(deployment_id)).state is READY
    assert await world.beat(FIRST, held(deployment_id, failure=DIED)) == (deployment_id,)
    failure = (await world.get(deployment_id)).failure
    assert failure == Failure(reason="WORKER_DIED", message="killed", stage=0, device_id=FIRST)


async def test_a_witness_is_not_blamed_for_the_peer_that_it_names(world: World) -> None:
    deployment_id = await world.ready()
    saw = Failure(reason="EDGE_TIMEOUT", message="nothing came", stage=1, device_id=SECOND, metadata={"edge": "0"})
    await world.beat(FIRST, held(deployment_id, failure=saw))
    await world.until(deployment_id, FAILED)
    assert (await world.get(deployment_id)).failure == saw


async def test_a_daemon_lets_go_of_what_has_ended_or_is_unknown(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.dispatcher.stop(first)
    assert await world.beat(FIRST, held(first), held("dep-unknown"), held(second)) == (first, "dep-unknown")


async def test_a_daemon_that_leaves_drains_once(world: World) -> None:
    deployment_id = await world.ready()
    world.daemons[FIRST].hold = "release"
    for _ in range(2):
        await world.beat(SECOND, held(deployment_id), leaving=True)
    await eventually(lambda: len(world.daemons[FIRST].releases) == 1)
    assert (await world.get(deployment_id)).state is DeploymentState.DRAINING
    world.daemons[FIRST].resume.set()
    await world.until(deployment_id, STOPPED)
    assert [len(daemon.releases) for daemon in world.daemons.values()] == [1, 1]


async def test_a_daemon_that_registers_anew_has_lost_what_the_one_before_held(world: World) -> None:
    deployment_id = await world.ready()
    await world.register(SECOND)
    assert (await world.get(deployment_id)).state is READY
    await world.restart(SECOND)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.device_id) == ("DAEMON_RESTARTED", SECOND)


async def test_a_planner_that_starts_gives_daemons_in_use_a_lease_more(world: World) -> None:
    deployment_id = await world.ready()
    await world.dispatcher.close()
    for device_id in world.daemons:
        await world.expire(device_id, seconds_ago=1000)
    world.start()
    await world.beat(FIRST, held(deployment_id))
    assert (await world.get(deployment_id)).state is READY
    assert (await world.find(SECOND)).lease_expires_at > datetime.now(UTC) + timedelta(seconds=300)
    await world.register(FIRST)
    assert (await world.get(deployment_id)).state is READY


async def test_what_was_being_rolled_out_begins_anew_at_the_restart(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    await eventually(lambda: all("load" in daemon.asked for daemon in world.daemons.values()))
    await world.dispatcher.close()
    world.daemons[SECOND].hold = ""
    world.start()
    await asyncio.gather(*(world.beat(device_id) for device_id in world.daemons))
    await world.until_generation(deployment_id, 2)
    for daemon in world.daemons.values():
        assert [load.generation for load in daemon.loads] == [1, 2]
        assert [release.generation for release in daemon.releases] == [1]
        assert daemon.connects[-1].generation == 2


async def test_one_that_restarts_comes_back_where_it_was(world: World) -> None:
    deployment_id = await world.ready(RESTART)
    before = await world.get(deployment_id)
    assert await world.beat(SECOND, held(deployment_id, failure=DIED)) == ()
    after = await world.until_generation(deployment_id, 2)
    assert after == replace(before, generation=2)
    messages = [event.message for event in await world.events(deployment_id)]
    assert "killed; it recovers" in messages
    assert await world.beat(SECOND, held(deployment_id, failure=DIED)) == (deployment_id,)
    assert await world.beat(SECOND, held(deployment_id, generation=2)) == ()
    await world.dispatcher.stop(deployment_id)
    assert [release.generation for release in world.daemons[SECOND].releases] == [1, 2]
    assert [release.keep_states for release in world.daemons[SECOND].releases] == [True, False]


async def test_one_that_restarts_waits_for_a_daemon_that_is_started_again(world: World) -> None:
    deployment_id = await world.ready(RESTART)
    await world.daemons[SECOND].stop()
    lost = Failure(reason="DAEMON_UNREACHABLE", message="gone", device_id=SECOND)
    await world.beat(FIRST, held(deployment_id, failure=lost))
    await eventually(lambda: bool(world.daemons[FIRST].releases))
    assert (await world.get(deployment_id)).state is DeploymentState.RECOVERING
    again = world.daemons[SECOND] = ScriptedDaemon(SECOND, incarnation_id="second")
    await again.start()
    await world.register(SECOND, incarnation="second")
    deployment = await world.until_generation(deployment_id, 2)
    assert deployment.stages[1].daemon_address == again.address
    assert deployment.stages[1].incarnation_id == "second"
    assert await world.beat(SECOND, held(deployment_id, generation=2), incarnation="second") == ()


async def test_a_place_that_is_not_there_in_time_fails_the_deployment(world: World) -> None:
    world.recovery_seconds = 0.0
    world.start()
    deployment_id = await world.ready(RESTART)
    await world.daemons[SECOND].stop()
    lost = Failure(reason="DAEMON_UNREACHABLE", message="gone", device_id=SECOND)
    await world.beat(FIRST, held(deployment_id, failure=lost))
    await world.until(deployment_id, FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.device_id) == ("DEVICE_GONE", SECOND)


async def test_one_that_restarts_can_be_stopped_meanwhile(world: World) -> None:
    deployment_id = await world.ready(RESTART)
    await world.daemons[SECOND].stop()
    lost = Failure(reason="DAEMON_UNREACHABLE", message="gone", device_id=SECOND)
    await world.beat(FIRST, held(deployment_id, failure=lost))
    await world.dispatcher.stop(deployment_id)
    assert (await world.get(deployment_id)).state is STOPPED


async def test_deployments_that_have_ended_are_forgotten(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.beat(FIRST)
    await world.dispatcher.stop(first)
    await eventually(lambda: not world.dispatcher._drivers[first].is_busy)
    await world.register(FIRST)
    assert list(world.dispatcher._drivers) == [second]
    assert {deployment_id for deployment_id, _ in world.dispatcher._misses} <= {second}


async def test_channels_to_daemons_on_which_nothing_runs_are_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.daemons[SECOND].stop()
    again = world.daemons[SECOND] = ScriptedDaemon(SECOND, incarnation_id="second")
    await again.start()
    # Asks at the address of the one before whether it has ended.
    await world.register(SECOND, incarnation="second")
    deployment_id = await world.ready()
    clients = world.dispatcher._clients
    assert len(clients) == 3
    await world.dispatcher._check_leases()
    assert len(clients) == 3
    monkeypatch.setattr(dispatcher, "UNUSED_SECONDS", -1.0)
    await world.dispatcher._check_leases()
    assert sorted(clients) == [(name, world.daemons[name].address) for name in (FIRST, SECOND)]
    await world.dispatcher.stop(deployment_id)
    await eventually(lambda: not world.dispatcher._drivers[deployment_id].is_busy)
    await world.dispatcher._check_leases()
    assert not clients
    await world.ready()
