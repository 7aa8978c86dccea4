"""Deployments as the API promises them, on SQLite and on PostgreSQL, with daemons that do what each test needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
import pytest_asyncio
from sqlalchemy import text
from structlog.testing import capture_logs

from planner.settings import Settings
from planner.store.database import Database
from planner.store.tables import DaemonRow
from protos.v1 import planner_pb2, planner_pb2_grpc, stage_daemon_pb2
from tests.contract.calls import balanced, create_graph, refused, upload, wait_plan, weights_message
from tests.contract.conftest import LEASE_SECONDS, SharedServer, StartServer, on_both, open_channel
from tests.contract.graphs import chain_bytes, chain_weights
from tests.contract.scripted_daemon import GIBIBYTE, ScriptedDaemon, standing
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
READY, FAILED, STOPPED = (
    planner_pb2.DEPLOYMENT_STATE_READY,
    planner_pb2.DEPLOYMENT_STATE_FAILED,
    planner_pb2.DEPLOYMENT_STATE_STOPPED,
)


@dataclass
class World:
    """Two daemons, registered, and a plan with one stage on each."""

    planner: Any
    registry: Any
    first: ScriptedDaemon
    second: ScriptedDaemon
    plan_id: str

    async def deploy(self, request_id: str = "") -> str:
        request = planner_pb2.DeployRequest(plan_id=self.plan_id, request_id=request_id)
        return (await self.planner.Deploy(request, timeout=WAIT_SECONDS)).id

    async def deploy_until(self, state: int) -> str:
        deployment_id = await self.deploy()
        await self.wait(deployment_id, state)
        return deployment_id

    async def wait(self, deployment_id: str, state: int) -> list[planner_pb2.DeploymentEvent]:
        """The events up to the first with the state. Fails if the deployment ends otherwise."""
        events = []
        request = planner_pb2.WatchDeploymentRequest(deployment_id=deployment_id)
        async for event in self.planner.WatchDeployment(request, timeout=WAIT_SECONDS):
            events.append(event)
            if event.state == state:
                return events
        raise AssertionError(f"ended otherwise: {events}")

    async def get(self, deployment_id: str) -> planner_pb2.Deployment:
        return await self.planner.GetDeployment(
            planner_pb2.GetDeploymentRequest(deployment_id=deployment_id), timeout=WAIT_SECONDS
        )

    async def devices(self) -> list[planner_pb2.RegisteredDevice]:
        """Its own of those that are registered, in the order of the answer."""
        own = {self.first.device_id, self.second.device_id}
        answer = await self.planner.ListDevices(planner_pb2.ListDevicesRequest(), timeout=WAIT_SECONDS)
        return [device for device in answer.devices if device.device.id in own]

    async def stop(self, deployment_id: str) -> planner_pb2.Deployment:
        return await self.planner.StopDeployment(
            planner_pb2.StopDeploymentRequest(deployment_id=deployment_id), timeout=WAIT_SECONDS
        )


async def make_plan(planner: Any, content: bytes, weights: bytes | None, *device_ids: str) -> str:
    """A plan with one stage on each of the devices, whose daemons are registered."""
    graph = await create_graph(planner, content)
    if weights is not None:
        await upload(planner, weights)
        request = planner_pb2.AttachWeightsRequest(graph_id=graph.id, weights=weights_message(weights))
        await planner.AttachWeights(request, timeout=WAIT_SECONDS)
    request = planner_pb2.CreatePlanRequest(graph_id=graph.id, options=balanced(2))
    request.registered.device_ids.extend(device_ids)
    operation = await wait_plan(planner, (await planner.CreatePlan(request, timeout=WAIT_SECONDS)).id)
    assert operation.state == planner_pb2.OPERATION_STATE_SUCCEEDED, operation
    return operation.id


@pytest_asyncio.fixture(loop_scope="session")
async def daemons(name: str) -> AsyncIterator[tuple[ScriptedDaemon, ScriptedDaemon]]:
    """Two that run, for devices of the test's own."""
    pair = ScriptedDaemon(f"{name}/cpu0"), ScriptedDaemon(f"{name}/cpu1")
    for daemon in pair:
        await daemon.start()
    yield pair
    for daemon in pair:
        await daemon.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def world(channel: grpc.aio.Channel, daemons: tuple[ScriptedDaemon, ScriptedDaemon], name: str) -> World:
    return await join(channel, daemons, name)


async def join(channel: grpc.aio.Channel, daemons: tuple[ScriptedDaemon, ScriptedDaemon], name: str) -> World:
    for daemon in daemons:
        await daemon.register(planner_pb2_grpc.DaemonRegistryServiceStub(channel))
    return await plan_for(channel, daemons, name)


async def plan_for(channel: grpc.aio.Channel, daemons: tuple[ScriptedDaemon, ScriptedDaemon], name: str) -> World:
    """With a plan onto the two, which are registered."""
    planner = planner_pb2_grpc.PlannerServiceStub(channel)
    registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
    device_ids = [daemon.device_id for daemon in daemons]
    plan_id = await make_plan(planner, chain_bytes(name=name), chain_weights(), *device_ids)
    plan = await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=plan_id), timeout=WAIT_SECONDS)
    assert [list(stage.device_ids) for stage in plan.stages] == [[device_id] for device_id in device_ids]
    return World(planner=planner, registry=registry, first=daemons[0], second=daemons[1], plan_id=plan_id)


@on_both
async def test_two_phases_then_ready(world: World) -> None:
    world.second.num_steps = 100
    deployment_id = await world.deploy()
    events = await world.wait(deployment_id, READY)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert world.first.asked == ["load", "rendezvous", "connect"]
    assert world.second.asked == ["load", "connect"]
    loaded_bytes = [event.loaded_bytes for event in events if event.total_bytes and event.stage == 1]
    assert loaded_bytes == sorted(loaded_bytes)
    assert (loaded_bytes[0], loaded_bytes[-1]) == (0, 100)
    assert len(loaded_bytes) < 30
    ready = await world.get(deployment_id)
    assert (ready.state, ready.input_address, ready.output_address) == (
        READY,
        world.first.address,
        world.second.address,
    )
    [load] = world.second.loads
    assert [state.name for state in load.stages[0].states] == ["layers.2.weight", "layers.3.weight"]
    [connect] = world.second.connects
    assert connect.rendezvous_address == "store:1"
    assert [(edge.source_stage, edge.target_stage) for edge in connect.edges] == [(0, 1)]
    kinds = [stage_daemon_pb2.ActionKind.Name(action.kind) for action in connect.lanes[0].actions]
    assert kinds == ["ACTION_KIND_RECEIVE", "ACTION_KIND_FORWARD", "ACTION_KIND_GIVE_OUTPUT"]
    assert ([value.name for value in connect.inputs], [value.name for value in connect.outputs]) == ([], ["y"])
    assert [value.name for value in world.first.connects[0].inputs] == ["x"]


async def test_what_workers_are_to_do_is_asked_for_and_what_they_do_is_told(world: World) -> None:
    world.first.num_threads, world.second.num_threads = 3, 5
    world.first.compiled_difference = 0.25
    request = planner_pb2.DeployRequest(plan_id=world.plan_id, num_threads=4, compile=True)
    deployment_id = (await world.planner.Deploy(request, timeout=WAIT_SECONDS)).id
    await world.wait(deployment_id, READY)
    for daemon in (world.first, world.second):
        # Both say that they are on the host "node".
        assert [(load.num_threads, load.compile, load.workers_on_host) for load in daemon.loads] == [(4, True, 2)]
    deployment = await world.get(deployment_id)
    assert (deployment.num_threads, [stage.num_threads for stage in deployment.stages]) == (4, [3, 5])
    differences = [
        stage.compiled_difference if stage.HasField("compiled_difference") else None for stage in deployment.stages
    ]
    assert (deployment.compile, differences) == (True, [0.25, None])
    with refused("INVALID_ARGUMENT"):
        request = planner_pb2.DeployRequest(plan_id=world.plan_id, num_threads=5000)
        await world.planner.Deploy(request, timeout=WAIT_SECONDS)


async def test_the_stage_graphs_are_blobs_that_daemons_can_read(world: World) -> None:
    await world.deploy_until(READY)
    module = world.first.loads[0].stages[0]
    request = planner_pb2.ReadBlobRequest(sha256=module.graph_sha256)
    content = b"".join([part.chunk async for part in world.planner.ReadBlob(request, timeout=WAIT_SECONDS)])
    assert len(content) > 0


@pytest.mark.parametrize("call", ["load", "connect"])
async def test_a_failure_anywhere_lets_everyone_go(world: World, call: str) -> None:
    world.second.fail_on = call
    deployment_id = await world.deploy_until(FAILED)
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage, failure.device_id) == ("SHAPE_MISMATCH", 1, world.second.device_id)
    assert failure.message == f"{call} went wrong"
    await eventually(lambda: bool(world.first.releases and world.second.releases))
    assert not world.first.releases[0].drain
    # Where the second fails at once, the first may not have been asked yet.
    assert ("connect" in (*world.first.asked, *world.second.asked)) == (call == "connect")


async def test_a_daemon_that_cannot_be_reached_fails_the_rollout(world: World) -> None:
    await world.second.stop()
    deployment_id = await world.deploy_until(FAILED)
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage, failure.device_id) == ("DAEMON_UNREACHABLE", 1, world.second.device_id)
    assert world.second.address in failure.message


async def test_a_graph_without_weights_is_refused(world: World) -> None:
    ids = (world.first.device_id, world.second.device_id)
    world.plan_id = await make_plan(world.planner, chain_bytes(name=f"bare {ids[0]}"), None, *ids)
    with refused("NOT_DEPLOYABLE") as refusal:
        await world.deploy()
    assert "weights" in refusal.message


async def test_a_plan_for_a_device_that_is_gone_names_it_and_those_that_live(
    world: World, shared: SharedServer
) -> None:
    await expire(shared.settings, world.second)
    with refused("DEVICE_GONE") as refusal:
        await world.deploy()
    assert f"device {world.second.device_id}, planned for stage 1" in refusal.message
    live = refusal.message.partition("live devices: ")[2].partition(". ")[0]
    assert world.first.device_id in live
    assert world.second.device_id not in live


async def expire(settings: Settings, daemon: ScriptedDaemon) -> None:
    """What a silence as long as its lease comes to, without the wait."""
    database = Database(settings.database)
    async with database.session() as session:
        (await session.get_one(DaemonRow, daemon.device_id)).lease_expires_at = datetime.now(UTC)
    await database.close()


@on_both
async def test_memory_is_promised_once(world: World) -> None:
    plan = await world.planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=world.plan_id), timeout=WAIT_SECONDS)
    needed = plan.stages[1].memory.peak_bytes
    await world.second.register(world.registry, memory_bytes=needed * 2 - 1)
    holder = await world.deploy_until(READY)
    with refused("DEVICE_FULL") as refusal:
        await world.deploy()
    assert holder in refusal.message
    assert refusal.metadata["device_id"] == world.second.device_id
    await world.stop(holder)
    await world.deploy_until(READY)
    await world.second.register(world.registry, memory_bytes=needed - 1)
    with refused("DEVICE_FULL") as refusal:
        await world.deploy()
    assert "less memory than when the plan was made" in refusal.message


async def test_two_deployments_share_devices_that_hold_both(world: World) -> None:
    first, second = await world.deploy_until(READY), await world.deploy_until(READY)
    devices = await world.devices()
    assert [device.device.id for device in devices] == [world.first.device_id, world.second.device_id]
    assert all(set(device.deployment_ids) == {first, second} for device in devices)


@on_both
async def test_deploy_is_idempotent(world: World) -> None:
    request_id = f"once on {world.first.device_id}"
    once, twice = await asyncio.gather(world.deploy(request_id), world.deploy(request_id))
    assert once == twice
    await world.wait(once, READY)
    assert len(world.first.loads) == 1
    with refused("REQUEST_ID_REUSED"):
        request = planner_pb2.DeployRequest(plan_id="plan-other", request_id=request_id)
        await world.planner.Deploy(request, timeout=WAIT_SECONDS)


async def test_unknown_ids_are_not_found(world: World) -> None:
    watch = world.planner.WatchDeployment(
        planner_pb2.WatchDeploymentRequest(deployment_id="dep-none"), timeout=WAIT_SECONDS
    )
    cases: list[Callable[[], Awaitable[object]]] = [
        lambda: world.get("dep-none"),
        lambda: world.stop("dep-none"),
        lambda: anext(aiter(watch)),
        lambda: world.planner.Deploy(planner_pb2.DeployRequest(plan_id="plan-none"), timeout=WAIT_SECONDS),
    ]
    for call in cases:
        with refused("NOT_FOUND"):
            await call()
    with refused("INVALID_ARGUMENT") as refusal:
        await world.planner.Deploy(planner_pb2.DeployRequest(), timeout=WAIT_SECONDS)
    assert "plan_id is empty" in refusal.message


async def test_stop_drains_every_daemon_and_is_idempotent(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    assert (await world.stop(deployment_id)).state == STOPPED
    assert [release.drain for release in (*world.first.releases, *world.second.releases)] == [True, True]
    assert (await world.stop(deployment_id)).state == STOPPED
    stopped = await world.get(deployment_id)
    assert stopped.ended_at.seconds
    assert (stopped.input_address, stopped.output_address) == ("", "")


async def test_stop_while_loading(world: World) -> None:
    world.second.hold = "load"
    deployment_id = await world.deploy()
    await eventually(lambda: "load" in world.second.asked)
    assert (await world.stop(deployment_id)).state == STOPPED
    assert not any(release.drain for release in world.second.releases)
    assert not world.second.connects


async def test_a_dead_worker_is_reported_by_the_heartbeat_that_tells_of_it(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    answer = await world.second.beat(world.registry, standing(deployment_id, reason="WORKER_DIED"))
    assert list(answer.release_deployment_ids) == [deployment_id]
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage, failure.device_id) == ("WORKER_DIED", 1, world.second.device_id)
    assert failure.message == "killed"
    await eventually(lambda: bool(world.first.releases))
    answer = await world.first.beat(world.registry, standing(deployment_id), standing("dep-unknown"))
    assert set(answer.release_deployment_ids) == {deployment_id, "dep-unknown"}


async def test_the_neighbour_that_noticed_is_not_blamed(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    world.second.standing = [standing(deployment_id, reason="WORKER_DIED")]
    lost = standing(deployment_id, reason="EDGE_TIMEOUT", message="edge 0 to stage 1 broke", edge="0")
    await world.first.beat(world.registry, lost)
    await world.wait(deployment_id, FAILED)
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage, failure.device_id) == ("WORKER_DIED", 1, world.second.device_id)


async def test_a_witness_is_believed_where_nobody_else_stands_out(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    lost = standing(deployment_id, reason="EDGE_TIMEOUT", message="edge 0 to stage 1 broke", edge="0")
    await world.first.beat(world.registry, lost)
    await world.wait(deployment_id, FAILED)
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage, failure.metadata["edge"]) == ("EDGE_TIMEOUT", 0, "0")


async def test_a_stage_that_its_daemon_lost_fails_the_deployment(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    await world.first.beat(world.registry)
    assert (await world.get(deployment_id)).state == READY
    await world.first.beat(world.registry)
    failure = (await world.get(deployment_id)).failure
    assert (failure.reason, failure.stage) == ("STAGE_LOST", 0)


async def test_a_daemon_that_leaves_stops_its_deployments(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    await world.second.beat(world.registry, standing(deployment_id), leaving=True)
    events = await world.wait(deployment_id, STOPPED)
    assert any(f"the daemon of {world.second.device_id} is shutting down" in event.message for event in events)
    assert world.first.releases[0].drain


async def test_a_silent_daemon_fails_its_deployments_and_the_next_works(
    start_server: StartServer, daemons: tuple[ScriptedDaemon, ScriptedDaemon], name: str
) -> None:
    # Long enough for a loaded machine to beat in time.
    server = await start_server(lease_seconds=8.0)
    async with open_channel(server.address) as channel:
        registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
        for daemon in daemons:
            await daemon.register(registry)
        beating, falling_silent = (asyncio.create_task(beat_forever(channel, daemon)) for daemon in daemons)
        world = await plan_for(channel, daemons, name)
        deployment_id = await world.deploy_until(READY)
        falling_silent.cancel()
        await asyncio.wait({falling_silent})
        await world.wait(deployment_id, FAILED)
        failure = (await world.get(deployment_id)).failure
        assert (failure.reason, failure.stage, failure.device_id) == ("LEASE_EXPIRED", 1, world.second.device_id)
        await eventually(lambda: bool(world.first.releases))
        await world.second.register(registry)
        back = asyncio.create_task(beat_forever(channel, world.second))
        await world.deploy_until(READY)
        for task in (beating, back):
            task.cancel()
        await asyncio.wait({beating, back})


async def beat_forever(channel: grpc.aio.Channel, daemon: ScriptedDaemon) -> None:
    planner = planner_pb2_grpc.PlannerServiceStub(channel)
    registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
    while True:
        active = planner_pb2.ListDeploymentsRequest(active_only=True)
        listed = (await planner.ListDeployments(active, timeout=WAIT_SECONDS)).deployments
        await daemon.beat(registry, *(standing(deployment.id) for deployment in listed))
        await asyncio.sleep(1.0)


async def test_a_daemon_that_was_started_anew_does_not_hold_what_the_old_one_held(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    await world.second.register(world.registry)
    assert (await world.get(deployment_id)).state == READY
    anew = ScriptedDaemon(world.second.device_id, incarnation_id="second")
    anew.address = world.second.address
    with refused("DEVICE_TAKEN") as refusal:
        await anew.register(world.registry)
    assert "wait for up to" in refusal.message
    await world.second.stop()
    await anew.register(world.registry)
    await world.wait(deployment_id, FAILED)
    failure = (await world.get(deployment_id)).failure
    # Whichever is noticed first: that it has ended, or that another start of it is there.
    assert failure.reason in ("DAEMON_UNREACHABLE", "DAEMON_RESTARTED")
    assert (failure.stage, failure.device_id) == (1, world.second.device_id)
    with refused("DEVICE_TAKEN") as refusal:
        await world.second.beat(world.registry)
    assert "--device-id" in refusal.message
    with refused("NOT_FOUND"):
        await ScriptedDaemon(f"{world.first.device_id}9").beat(world.registry)


@pytest.mark.parametrize("address", ["", "nowhere", "node:", ":1", "node:0", "node:x", "node:-1", "node:65536"])
async def test_a_daemon_without_an_address_is_refused(channel: grpc.aio.Channel, name: str, address: str) -> None:
    daemon = ScriptedDaemon(name)
    daemon.address = address
    with refused("INVALID_ARGUMENT"):
        await daemon.register(planner_pb2_grpc.DaemonRegistryServiceStub(channel))


async def test_a_daemon_says_which_start_of_it_this_is(channel: grpc.aio.Channel, name: str) -> None:
    registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
    daemon = ScriptedDaemon(name, incarnation_id="")
    daemon.address = "node:65535"
    with refused("INVALID_ARGUMENT") as refusal:
        await daemon.register(registry)
    assert "incarnation_id is empty" in refusal.message
    daemon.incarnation_id = "first"
    assert (await daemon.register(registry)).lease_seconds == LEASE_SECONDS
    assert (await daemon.beat(registry)).lease_seconds == LEASE_SECONDS


@on_both
async def test_a_planner_that_starts_again(
    start_server: StartServer, daemons: tuple[ScriptedDaemon, ScriptedDaemon], name: str
) -> None:
    first_server = await start_server()
    async with open_channel(first_server.address) as channel:
        world = await join(channel, daemons, name)
        ready = await world.deploy_until(READY)
        world.second.hold = "load"
        loading = await world.deploy()
        await eventually(lambda: world.second.asked.count("load") == 2)
    await first_server.stop(0.0)
    world.second.hold = ""
    async with open_channel((await start_server()).address) as channel:
        world.planner = planner_pb2_grpc.PlannerServiceStub(channel)
        world.registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
        await world.wait(loading, READY)
        assert (await world.get(loading)).generation == 2
        assert (await world.get(ready)).state == READY
        for daemon in daemons:
            answer = await daemon.beat(world.registry, standing(ready), standing(loading))
            assert list(answer.release_deployment_ids) == [loading]
        assert (await world.stop(ready)).state == STOPPED


async def test_watching_from_a_sequence_on_and_after_the_end(world: World) -> None:
    deployment_id = await world.deploy_until(READY)
    await world.stop(deployment_id)

    async def watch(after: int) -> list[int]:
        request = planner_pb2.WatchDeploymentRequest(deployment_id=deployment_id, after_sequence=after)
        return [event.sequence async for event in world.planner.WatchDeployment(request, timeout=WAIT_SECONDS)]

    whole = await watch(0)
    assert await watch(3) == whole[3:]
    assert await watch(whole[-1]) == []


@on_both
async def test_list_filters_and_pages(world: World) -> None:
    ids = [await world.deploy_until(READY) for _ in range(3)]
    await world.stop(ids[0])

    async def listed(**options: Any) -> tuple[list[str], str]:
        answer = await world.planner.ListDeployments(
            planner_pb2.ListDeploymentsRequest(**options), timeout=WAIT_SECONDS
        )
        return [deployment.id for deployment in answer.deployments], answer.next_page_token

    assert (await listed())[0][:3] == ids[::-1]
    assert (await listed(active_only=True))[0][:2] == ids[:0:-1]
    own = world.plan_id
    assert (await listed(plan_id=own))[0] == ids[::-1]
    assert (await listed(plan_id=own, active_only=True))[0] == ids[:0:-1]
    assert (await listed(plan_id="plan-other"))[0] == []
    page, token = await listed(plan_id=own, page_size=2)
    assert (page, await listed(plan_id=own, page_size=2, page_token=token)) == (ids[:0:-1], (ids[:1], ""))
    for other in ({"active_only": True, "plan_id": own}, {}):
        with refused("INVALID_ARGUMENT"):
            await listed(page_token=token, **other)


@on_both
async def test_rows_that_a_person_can_query(world: World, shared: SharedServer) -> None:
    world.second.fail_on = "load"
    deployment_id = await world.deploy_until(FAILED)
    database = Database(shared.settings.database)
    async with database.session() as session:
        rows = await session.execute(
            text(
                "SELECT d.state, d.failure_reason, s.device_id, e.sequence FROM deployments d "
                "JOIN deployment_stages s ON s.deployment_id = d.id AND s.stage = d.failure_stage "
                "JOIN deployment_events e ON e.deployment_id = d.id AND e.failure_reason IS NOT NULL WHERE d.id = :id"
            ),
            {"id": deployment_id},
        )
        [(state, reason, device_id, sequence)] = rows.all()
        count = await session.scalar(
            text("SELECT count(*) FROM deployment_events WHERE deployment_id = :id"), {"id": deployment_id}
        )
    await database.close()
    assert (state, reason, device_id, sequence) == ("failed", "SHAPE_MISMATCH", world.second.device_id, count)


async def test_a_daemon_with_other_memory_is_what_it_says_last(world: World) -> None:
    await world.first.register(world.registry, memory_bytes=2 * GIBIBYTE)
    devices = await world.devices()
    assert devices[0].device.memory_bytes == 2 * GIBIBYTE


async def test_what_succeeds_is_logged_with_its_ids_and_seconds(world: World) -> None:
    with capture_logs() as lines:
        plan_id = await make_plan(
            world.planner, chain_bytes(), chain_weights(), world.first.device_id, world.second.device_id
        )
        deployment_id = await world.deploy_until(READY)
        await world.stop(deployment_id)
    event_lines = [line for line in lines if line["event"] in ("done", "plan made", "deployment")]
    assert all(line["seconds"] >= 0 for line in event_lines)
    done = [(line["method"], line["id"]) for line in event_lines if line["event"] == "done"]
    for expected in (("CreatePlan", plan_id), ("Deploy", deployment_id), ("StopDeployment", deployment_id)):
        assert expected in done
    assert not any(method.startswith(("Get", "List", "Wait", "Watch")) for method, _ in done)
    assert [line["id"] for line in event_lines if line["event"] == "plan made"] == [plan_id]
    states = [line["state"] for line in event_lines if line["event"] == "deployment" and line["id"] == deployment_id]
    assert states == ["loading", "connecting", "ready", "draining", "stopped"]
