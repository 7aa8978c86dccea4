"""All deployments of a planner: who may deploy, what heartbeats tell, and what a lease that ends does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from planner.cost.inventory import Device
from planner.dispatch import dispatcher as dispatcher_module
from planner.dispatch.dispatcher import Dispatcher, HeldDeployment
from planner.errors import DeviceFull, DeviceGone, DeviceTaken, NotDeployable, NotFound, RequestIdReused
from planner.store.blobs import BlobStore
from planner.store.daemons import find_daemon
from planner.store.database import Database
from planner.store.deployment_records import Daemon, Deployment, DeploymentState, Failure
from planner.store.deployments import get_deployment, list_active_deployments
from planner.store.inventories import InventoryRecord
from planner.store.tables import DaemonRow, GraphRow
from planner.wire.graph import graph_to_bytes
from tests.builders.plans import plan_of
from tests.contract.graphs import relu_chain, sha256
from tests.contract.scripted_daemon import GIBIBYTE, ScriptedDaemon
from tests.planner.dispatch.conftest import PATIENT, WAIT_SECONDS, eventually
from tests.planner.store.records import NOW, fill, fill_plan
from tests.planner.store.records import graph as graph_record

pytestmark = pytest.mark.services
READY, FAILED, STOPPED = DeploymentState.READY, DeploymentState.FAILED, DeploymentState.STOPPED
FIRST, SECOND = "node0/cpu", "node1/cpu"
DIED = Failure(reason="WORKER_DIED", message="killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    lease_seconds: float


class World:
    """A planner whose plan-1 has one stage on each of two daemons."""

    def __init__(self, database: Database, blobs: BlobStore, daemons: dict[str, ScriptedDaemon]) -> None:
        self.database = database
        self.daemons = daemons
        self._blobs = blobs
        self._started: list[Dispatcher] = []
        self.dispatcher = self.start()

    def start(self, lease_seconds: float = 600.0) -> Dispatcher:
        """Another planner on the same database."""
        settings = LeaseSettings(lease_seconds=lease_seconds)
        self.dispatcher = Dispatcher(self.database, self._blobs, settings, PATIENT)
        self._started.append(self.dispatcher)
        return self.dispatcher

    async def close(self) -> None:
        for dispatcher in self._started:
            await dispatcher.close()

    async def register(self, device_id: str, *, incarnation: str = "first", memory_bytes: int = GIBIBYTE) -> float:
        device = Device(id=device_id, kind="cpu", host="node", memory_bytes=memory_bytes)
        return await self.dispatcher.register(device, self.daemons[device_id].address, "2.13.0", incarnation)

    async def beat(self, device_id: str, *held: HeldDeployment, incarnation: str = "first") -> tuple[str, ...]:
        seconds, ended = await self.dispatcher.heartbeat(device_id, incarnation, held)
        assert seconds == 600.0
        return ended

    async def get(self, deployment_id: str) -> Deployment:
        async with self.database.session() as session:
            return await get_deployment(session, deployment_id)

    async def find(self, device_id: str) -> Daemon:
        async with self.database.session() as session:
            found = await find_daemon(session, device_id)
        assert found is not None
        return found

    async def until(self, deployment_id: str, state: DeploymentState) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            async for event in self.dispatcher.watch(deployment_id, 0):
                if event.state is state:
                    return
        raise AssertionError(f"{deployment_id} ended otherwise")

    async def ready(self) -> str:
        deployment_id = await self.dispatcher.deploy("plan-1", "")
        await self.until(deployment_id, READY)
        return deployment_id

    def lose_blobs(self) -> None:
        for path in Path(self._blobs._root).rglob("*"):
            if path.is_file():
                path.unlink()

    async def expire(self, device_id: str, seconds_ago: float = 0.0) -> None:
        async with self.database.session() as session:
            row = await session.get_one(DaemonRow, device_id)
            row.lease_expires_at = datetime.now(UTC) - timedelta(seconds=seconds_ago)


def held(deployment_id: str, **changes: object) -> HeldDeployment:
    return HeldDeployment(deployment_id=deployment_id, **{"generation": 1, **changes})  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    graph = relu_chain(4)
    content = graph_to_bytes(graph)
    blobs = BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")
    blobs.put(content)
    plan = replace(plan_of(graph, [0, 0, 1, 1]), graph_id=sha256(content).hex())
    inventory = InventoryRecord(id="inv-1", name="", inventory=plan.inventory, created_at=NOW)
    await fill(database, graph_record(plan.graph_id, not_deployable_reason=""), inventory)
    await fill_plan(database, "plan-1", plan)
    daemons = {device_id: ScriptedDaemon(device_id) for device_id in (FIRST, SECOND)}
    for daemon in daemons.values():
        await daemon.start()
    world = World(database, blobs, daemons)
    for device_id in daemons:
        assert await world.register(device_id) == 600.0
    yield world
    await world.close()
    for daemon in daemons.values():
        daemon.resume.set()
        await daemon.stop()


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
    await world.register(SECOND, incarnation="second")
    with pytest.raises(DeviceTaken, match="--device-id"):
        await world.beat(SECOND)
    assert await world.beat(SECOND, incarnation="second") == ()


async def test_a_heartbeat_renews_the_lease(world: World) -> None:
    await world.expire(FIRST, seconds_ago=100)
    await world.beat(FIRST)
    assert (await world.find(FIRST)).lease_expires_at > datetime.now(UTC) + timedelta(seconds=300)


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
    assert failure.message == f"stage 1 on {SECOND}: its daemon no longer holds it"


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
    assert failure == Failure(reason="WORKER_DIED", message=f"stage 0 on {FIRST}: killed", stage=0, device_id=FIRST)


async def test_a_daemon_lets_go_of_what_has_ended_or_is_unknown(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.dispatcher.stop(first)
    assert await world.beat(FIRST, held(first), held("dep-unknown"), held(second)) == (first, "dep-unknown")


async def test_a_daemon_that_leaves_drains_once(world: World) -> None:
    deployment_id = await world.ready()
    world.daemons[FIRST].hold = "release"
    for _ in range(2):
        await world.beat(SECOND, held(deployment_id, leaving=True))
    await eventually(lambda: len(world.daemons[FIRST].releases) == 1)
    assert (await world.get(deployment_id)).state is DeploymentState.DRAINING
    world.daemons[FIRST].resume.set()
    await world.until(deployment_id, STOPPED)
    assert [len(daemon.releases) for daemon in world.daemons.values()] == [1, 1]


async def test_a_daemon_that_registers_anew_has_lost_what_the_one_before_held(world: World) -> None:
    deployment_id = await world.ready()
    await world.register(SECOND)
    assert (await world.get(deployment_id)).state is READY
    await world.register(SECOND, incarnation="second")
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.device_id) == ("DAEMON_RESTARTED", SECOND)


@pytest.mark.parametrize(("seconds_between_checks", "state"), [(299.0, FAILED), (301.0, READY)])
async def test_a_silent_daemon_is_gone_unless_the_planner_itself_stood_still(
    world: World, monkeypatch: pytest.MonkeyPatch, seconds_between_checks: float, state: DeploymentState
) -> None:
    """Leases are of 600 seconds; the clock is the test's."""
    deployment_id = await world.ready()
    ticks: list[None] = []

    def monotonic() -> float:
        ticks.append(None)
        return len(ticks) * seconds_between_checks

    monkeypatch.setattr(dispatcher_module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(dispatcher_module, "CHECKS_PER_LEASE", 60_000)
    for device_id in world.daemons:
        await world.expire(device_id)
    running = asyncio.create_task(world.dispatcher.run())
    await eventually(lambda: len(ticks) > 20)
    if state is FAILED:
        await world.until(deployment_id, FAILED)
    record = await world.get(deployment_id)
    live = (await world.find(SECOND)).live_at(datetime.now(UTC))
    running.cancel()
    await asyncio.wait({running})
    assert (record.state, live) == (state, state is READY)
    if state is FAILED:
        assert record.failure is not None
        assert (record.failure.reason, record.failure.device_id) == ("LEASE_EXPIRED", FIRST)


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


async def test_what_was_being_rolled_out_has_failed_at_the_restart(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    await eventually(lambda: "load" in world.daemons[SECOND].asked)
    await world.dispatcher.close()
    world.start()
    await asyncio.gather(*(world.beat(device_id) for device_id in world.daemons))
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert failure.reason == "PLANNER_RESTARTED"


async def test_deployments_that_have_ended_are_forgotten(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.beat(FIRST)
    await world.dispatcher.stop(first)
    await eventually(lambda: not world.dispatcher._drivers[first].is_busy)
    await world.register(FIRST)
    assert list(world.dispatcher._drivers) == [second]
    assert {deployment_id for deployment_id, _ in world.dispatcher._misses} <= {second}
