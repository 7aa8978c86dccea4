"""A planner on a database, with a plan over two daemons that do what a test tells them to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from planner.cost.inventory import Device
from planner.dispatch.dispatcher import Dispatcher, HeldDeployment
from planner.errors import Unavailable
from planner.store.blobs import BlobStore
from planner.store.daemons import find_daemon
from planner.store.database import Database
from planner.store.deployment_records import Daemon, Deployment, DeploymentEvent, DeploymentState, RecoveryPolicy
from planner.store.deployments import get_deployment, list_events
from planner.store.inventories import InventoryRecord
from planner.store.tables import DaemonRow
from planner.wire.graph import graph_to_bytes
from tests.builders.plans import inventory_of, plan_of
from tests.contract.graphs import relu_chain, sha256
from tests.contract.scripted_daemon import GIBIBYTE, ScriptedDaemon
from tests.planner.dispatch.conftest import PATIENT
from tests.planner.store.records import NOW, fill, fill_plan
from tests.planner.store.records import graph as graph_record
from tests.waiting import WAIT_SECONDS

FIRST, SECOND = "node0/cpu", "node1/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    lease_seconds: float
    recovery_seconds: float
    claim_seconds: float = 600.0
    daemon_identity: str = ""
    max_deployments_per_caller: int = 1


class World:
    """A planner whose plan-1 has one stage on each of two daemons."""

    def __init__(
        self, database: Database, blobs: BlobStore, daemons: dict[str, ScriptedDaemon], lease_seconds: float
    ) -> None:
        self.database = database
        self.lease_seconds = lease_seconds
        self.recovery_seconds = 600.0
        self.daemons = daemons
        self._blobs = blobs
        self._started: list[Dispatcher] = []
        self.dispatcher = self.start()

    def start(self) -> Dispatcher:
        """Another planner on the same database."""
        settings = LeaseSettings(lease_seconds=self.lease_seconds, recovery_seconds=self.recovery_seconds)
        self.dispatcher = Dispatcher(self.database, self._blobs, settings, PATIENT)
        self._started.append(self.dispatcher)
        return self.dispatcher

    async def close(self) -> None:
        for dispatcher in self._started:
            await dispatcher.close()

    async def register(self, device_id: str, *, incarnation: str = "first", memory_bytes: int = GIBIBYTE) -> float:
        device = Device(id=device_id, kind="cpu", host="node", memory_bytes=memory_bytes)
        return await self.dispatcher.register(device, self.daemons[device_id].address, "2.13.0", incarnation)

    async def restart(self, device_id: str) -> None:
        """The daemon as another start of it, "second", at the same address."""
        self.daemons[device_id].incarnation_id = "second"
        await self.register(device_id, incarnation="second")

    async def beat(
        self, device_id: str, *reported: HeldDeployment, incarnation: str = "first", leaving: bool = False
    ) -> tuple[str, ...]:
        seconds, ended = await self.dispatcher.heartbeat(device_id, incarnation, reported, leaving=leaving)
        assert seconds == self.lease_seconds
        return ended

    async def get(self, deployment_id: str) -> Deployment:
        async with self.database.session() as session:
            return await get_deployment(session, deployment_id)

    async def events(self, deployment_id: str) -> tuple[DeploymentEvent, ...]:
        async with self.database.session() as session:
            return await list_events(session, deployment_id, 0)

    async def find(self, device_id: str) -> Daemon:
        async with self.database.session() as session:
            daemon = await find_daemon(session, device_id)
        assert daemon is not None
        return daemon

    async def until(self, deployment_id: str, state: DeploymentState) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            async for event in self.dispatcher.watch(deployment_id, 0):
                if event.state is state:
                    return
        raise AssertionError(f"{deployment_id} ended otherwise")

    async def until_generation(self, deployment_id: str, generation: int) -> Deployment:
        """READY in that generation."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                deployment = await self.get(deployment_id)
                assert not deployment.state.ended, deployment.failure
                if (deployment.state, deployment.generation) == (DeploymentState.READY, generation):
                    return deployment
                await asyncio.sleep(0.01)

    async def ready(self, recovery: RecoveryPolicy = RecoveryPolicy.MANUAL) -> str:
        deployment_id = await self.dispatcher.deploy("plan-1", "", recovery=recovery)
        await self.until(deployment_id, DeploymentState.READY)
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


def break_after_commit(
    database: Database, monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[AsyncSession], Awaitable[bool]]
) -> None:
    """Of the first transaction that is meant nobody hears that it was committed."""
    whole, is_broken = database.session, False

    @contextlib.asynccontextmanager
    async def breaking() -> AsyncIterator[AsyncSession]:
        nonlocal is_broken
        async with whole() as session:
            yield session
            breaks = not is_broken and await is_meant(session)
        if breaks:
            is_broken = True
            raise Unavailable("the connection broke after the commit")

    monkeypatch.setattr(database, "session", breaking)


@contextlib.asynccontextmanager
async def open_world(
    database: Database, folder: Path, lease_seconds: float = 600.0, num_devices: int = 2
) -> AsyncIterator[World]:
    """`plan-1` may use all devices, and uses the first two."""
    graph = relu_chain(4)
    content = graph_to_bytes(graph)
    blobs = BlobStore((folder / "blobs").as_uri(), folder / "staging")
    blobs.put(content)
    plan = replace(plan_of(graph, [0, 0, 1, 1], inventory=inventory_of(num_devices)), graph_id=sha256(content).hex())
    inventory = InventoryRecord(id="inv-1", name="", inventory=plan.inventory, created_at=NOW)
    await fill(database, graph_record(plan.graph_id, not_deployable_reason=""), inventory)
    await fill_plan(database, "plan-1", plan)
    daemons = {device_id: ScriptedDaemon(device_id) for device_id in (device.id for device in plan.inventory.devices)}
    for daemon in daemons.values():
        await daemon.start()
    world = World(database, blobs, daemons, lease_seconds)
    for device_id in daemons:
        assert await world.register(device_id) == lease_seconds
    yield world
    await world.close()
    for daemon in daemons.values():
        daemon.resume.set()
        await daemon.stop()
