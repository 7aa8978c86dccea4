"""A deployment that is driven through its rollout by real calls to daemons that do what a test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from planner.dispatch.daemon_client import DaemonClient
from planner.dispatch.driver import Driver, Placement
from planner.dispatch.leadership import Leadership
from planner.dispatch.ledger import Ledger
from planner.dispatch.rollout import Broken, Started, StopAsked, TakenUp
from planner.dispatch.stage_modules import StageRequests
from planner.errors import NotLeading
from planner.store.database import Database
from planner.store.deployment_records import Deployment, DeploymentEvent, DeploymentState, Failure, RecoveryPolicy
from planner.store.deployments import get_deployment
from protos.v1 import stage_daemon_pb2
from tests.contract.scripted_daemon import ScriptedDaemon, standing
from tests.planner.dispatch.conftest import PATIENT
from tests.planner.store.records import deployment, fill, graph, placement
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services
READY, FAILED, STOPPED = DeploymentState.READY, DeploymentState.FAILED, DeploymentState.STOPPED
# Device "a" has the stages 0 and 2, device "b" stage 1.
STAGES = {"a": (0, 2), "b": (1,)}


class World:
    driver: Driver

    def __init__(
        self,
        ledger: Ledger,
        database: Database,
        daemons: dict[str, ScriptedDaemon],
        clients: dict[str, DaemonClient],
    ) -> None:
        self.ledger = ledger
        self.clients = clients
        self.database = database
        self.first, self.second = daemons["a"], daemons["b"]

    async def place(self, deployment: Deployment, _tell: Callable[[str], Awaitable[None]]) -> Placement:
        """Where it was."""
        placed = replace(deployment, generation=deployment.generation + 1)
        return Placement(deployment=placed, clients=self.clients, requests=requests(placed.generation))

    async def until(self, state: DeploymentState) -> list[DeploymentEvent]:
        """The events up to the first with the state."""
        events = []
        async with asyncio.timeout(WAIT_SECONDS):
            async for event in self.ledger.watch("dep-1", 0):
                events.append(event)
                if event.state is state:
                    return events
        raise AssertionError(f"ended otherwise: {events}")

    async def start(self, until: DeploymentState) -> list[DeploymentEvent]:
        await self.driver.handle(Started())
        return await self.until(until)

    async def row(self) -> Deployment:
        async with self.database.session() as session:
            return await get_deployment(session, "dep-1")


def requests(generation: int = 1) -> StageRequests:
    return StageRequests(
        load={
            device_id: stage_daemon_pb2.LoadStagesRequest(
                deployment_id="dep-1",
                generation=generation,
                stages=[stage_daemon_pb2.StageModule(stage=stage) for stage in stages],
            )
            for device_id, stages in STAGES.items()
        },
        connect={device_id: stage_daemon_pb2.ConnectStagesRequest(deployment_id="dep-1") for device_id in STAGES},
    )


@pytest_asyncio.fixture
async def world(daemons: dict[str, ScriptedDaemon], database: Database) -> AsyncIterator[World]:
    record = deployment(stages=(placement(0, "a"), placement(1, "b"), placement(2, "a")))
    await fill(database, graph(), record)
    clients = {name: DaemonClient(name, daemon.address, PATIENT) for name, daemon in daemons.items()}
    ledger = Ledger(database, Leadership(database, 600.0))
    world = World(ledger, database, daemons, clients)
    driver = world.driver = Driver(record, clients, ledger, world.place)
    driver.requests = requests()
    yield world
    await driver.close()
    for client in clients.values():
        await client.close()


async def test_all_is_loaded_connected_and_written_down(world: World) -> None:
    events = await world.start(READY)
    assert [event.message for event in events if event.message != "loading"] == [
        "loading on 2 devices",
        *[event.message for event in events if event.message == "loaded"],
        "loaded on 2 devices; connecting",
        "ready",
    ]
    assert (world.first.asked, world.second.asked) == (["load", "rendezvous", "connect"], ["load", "connect"])
    for daemon in (world.first, world.second):
        [connect] = daemon.connects
        assert (connect.deployment_id, connect.rendezvous_address) == ("dep-1", "store:1")
    assert world.driver.requests == requests()
    progress = {event.stage: event.loaded_bytes for event in events if event.message == "loading"}
    assert progress == {0: 2, 1: 2, 2: 2}
    assert (await world.row()).state is READY
    assert not world.driver.ended.is_set()
    await eventually(lambda: not world.driver.is_busy)


async def test_progress_of_each_stage_is_told_in_twentieths_by_itself(world: World) -> None:
    world.first.num_steps = world.second.num_steps = 40
    events = await world.start(READY)
    for stage in (0, 1, 2):
        loaded_bytes = [event.loaded_bytes for event in events if event.message == "loading" and event.stage == stage]
        assert loaded_bytes == list(range(0, 41, 2))
        assert all(event.total_bytes == 40 for event in events if event.message == "loading")
    assert {event.device_id for event in events if event.stage == 2} == {"a"}


async def test_the_next_generation_tells_its_progress_from_the_start(world: World) -> None:
    record = replace(world.driver.deployment, recovery=RecoveryPolicy.RESTART)
    world.driver = Driver(record, world.clients, world.ledger, world.place)
    world.driver.requests = requests()
    before = await world.start(READY)
    lost = Failure(reason="LOST", message="the worker is gone", stage=1, device_id="b")
    await world.driver.handle(Broken(lost))
    loaded_bytes: dict[int | None, list[int]] = {}
    async with asyncio.timeout(WAIT_SECONDS):
        async for event in world.ledger.watch("dep-1", before[-1].sequence):
            if event.message == "loading":
                loaded_bytes.setdefault(event.stage, []).append(event.loaded_bytes)
            if event.state is READY:
                break
    assert loaded_bytes == {stage: [0, 1, 2] for stage in (0, 1, 2)}
    await world.driver.close()


@pytest.mark.parametrize("call", ["load", "connect"])
async def test_a_failure_names_the_stage_and_the_device_and_all_let_go(world: World, call: str) -> None:
    world.second.fail_on = call
    last = (await world.start(FAILED))[-1]
    assert last.failure == Failure(reason="SHAPE_MISMATCH", message=f"{call} went wrong", stage=1, device_id="b")
    assert (last.stage, last.device_id, last.message) == (1, "b", last.failure.message)
    assert world.driver.ended.is_set()
    await eventually(lambda: bool(world.first.releases and world.second.releases))
    assert not any(release.drain for release in (*world.first.releases, *world.second.releases))


async def test_what_is_still_loading_when_another_fails_is_called_off(world: World) -> None:
    world.first.hold = "load"
    world.second.fail_on = "load"
    await world.start(FAILED)
    await eventually(lambda: world.first.cancelled == ["load"] or not world.first.asked)
    assert "connect" not in world.first.asked


async def test_stopping_calls_off_the_loading_and_ends(world: World) -> None:
    world.first.hold = "load"
    await world.driver.handle(Started())
    await eventually(lambda: "load" in world.first.asked)
    await world.driver.handle(StopAsked())
    events = await world.until(STOPPED)
    await eventually(lambda: world.first.cancelled == ["load"])
    assert events[-1].failure is None
    assert world.driver.ended.is_set()


async def test_a_daemon_that_does_not_let_go_keeps_nobody_from_stopping(world: World) -> None:
    await world.start(READY)
    world.second.fail_on = "release"
    await world.driver.handle(StopAsked())
    events = await world.until(STOPPED)
    assert [event.message for event in events[-2:]] == ["finishing what is in flight", "stopped"]
    assert all(release.drain for release in (*world.first.releases, *world.second.releases))


async def test_a_witness_is_looked_into(world: World) -> None:
    await world.start(READY)
    world.second.standing = [standing("dep-1", reason="WORKER_DIED")]
    lost = Failure(reason="EDGE_TIMEOUT", message="edge 0 broke", device_id="a")
    await world.driver.handle(Broken(lost))
    failure = (await world.until(FAILED))[-1].failure
    assert failure == Failure(reason="WORKER_DIED", message="killed", stage=1, device_id="b")


async def test_a_defect_of_the_planner_fails_the_deployment(world: World) -> None:
    world.driver.requests = replace(requests(), connect={})
    failure = (await world.start(FAILED))[-1].failure
    assert failure is not None
    assert failure.reason == "INTERNAL"
    await eventually(lambda: bool(world.first.releases and world.second.releases))


async def test_a_drain_is_taken_up_after_a_restart(world: World, database: Database) -> None:
    await world.start(READY)
    record = replace(await world.row(), state=DeploymentState.DRAINING)
    driver = Driver(record, world.driver._clients, world.ledger, world.place)
    await driver.handle(TakenUp())
    await asyncio.wait_for(driver.ended.wait(), WAIT_SECONDS)
    assert (await world.row()).state is STOPPED
    await driver.close()


async def test_closing_calls_off_what_is_under_way_and_leaves_the_deployment(world: World) -> None:
    world.first.hold = "load"
    await world.driver.handle(Started())
    await eventually(lambda: "load" in world.first.asked)
    await world.driver.close()
    await eventually(lambda: world.first.cancelled == ["load"])
    assert (await world.row()).state is DeploymentState.LOADING
    assert not world.driver.is_busy


async def test_once_closed_nothing_is_written_any_more_or_acted_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the event that is being written."""
    append, is_writing, goes_on = world.ledger.append, asyncio.Event(), asyncio.Event()

    async def slowly(*given: Any) -> None:
        is_writing.set()
        await goes_on.wait()
        await append(*given)

    monkeypatch.setattr(world.ledger, "append", slowly)
    starting = asyncio.create_task(world.driver.handle(Started()))
    await asyncio.wait_for(is_writing.wait(), WAIT_SECONDS)
    stopping = asyncio.create_task(world.driver.handle(StopAsked()))
    # It comes to wait for its turn.
    await asyncio.sleep(0)
    await world.driver.close()
    goes_on.set()
    await asyncio.wait_for(starting, WAIT_SECONDS)
    with pytest.raises(NotLeading, match="has let go of dep-1"):
        await asyncio.wait_for(stopping, WAIT_SECONDS)
    assert (await world.row()).state is DeploymentState.LOADING
    assert not world.driver.is_busy
    assert not world.first.asked


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (Failure(reason="R", message="killed", stage=1, device_id="b"), (1, "b")),
        (Failure(reason="R", message="killed", device_id="b"), (1, "b")),
        (Failure(reason="R", message="killed", stage=1), (1, "b")),
        (Failure(reason="R", message="killed"), (0, "a")),
        (Failure(reason="R", message="stage 1 on b: killed"), (0, "a")),
        (Failure(reason="R", message="killed", stage=2), (2, "a")),
        (Failure(reason="R", message="killed", stage=7), (7, "a")),
        (Failure(reason="R", message="killed", stage=7, device_id="z"), (7, "z")),
        (Failure(reason="R", message="killed", device_id="z"), (None, "z")),
    ],
)
async def test_a_failure_is_where_it_says_and_else_where_it_was_reported(
    world: World, given: Failure, place: tuple[int | None, str]
) -> None:
    """Device "a" reports it and runs the stages 0 and 2."""
    stage, device_id = place
    assert world.driver.broken(given, "a") == Broken(replace(given, stage=stage, device_id=device_id), "a")


async def test_the_copy_of_a_stage_is_told_whoever_reports(world: World) -> None:
    world.driver.deployment = replace(world.driver.deployment, stages=(placement(0, "a"), placement(0, "b")))
    silent = Failure(reason="LEASE_EXPIRED", message="silent", stage=0, device_id="b", metadata={"seconds": "10"})
    assert world.driver.broken(replace(silent, stage=None), "b").failure.metadata == {"seconds": "10", "copy": "1"}
    await world.driver.handle(Broken(silent))
    failure = (await world.until(FAILED))[-1].failure
    assert failure is not None
    assert failure.metadata == {"seconds": "10", "copy": "1"}


async def test_a_stage_without_copies_has_none_to_tell(world: World) -> None:
    two = (placement(0, "a"), placement(0, "b"), placement(1, "c"))
    world.driver.deployment = replace(world.driver.deployment, stages=two)
    died = Failure(reason="WORKER_DIED", message="killed")
    told = [world.driver.broken(died, device).failure for device in ("a", "b", "c")]
    assert [failure.metadata.get("copy") for failure in told] == ["0", "1", None]
