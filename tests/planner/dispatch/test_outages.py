"""A planner that stands still, or whose database does: no healthy deployment ends, and one that lost a daemon does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession

from planner.dispatch.dispatcher import HeldDeployment
from planner.errors import Unavailable
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from tests.contract.databases import empty_database
from tests.contract.postgresql import postgresql
from tests.planner.dispatch.worlds import FIRST, SECOND, World, held, open_world
from tests.planner.store.records import event
from tests.waiting import eventually

pytestmark = pytest.mark.services
LEASE_SECONDS = 3.0
# Often, since a busy machine delays some: a daemon is silent only where all of a lease's are lost.
BEAT_SECONDS = LEASE_SECONDS / 12


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with empty_database("postgresql", tmp_path) as url:
        database = Database(url)
        async with open_world(database, tmp_path, LEASE_SECONDS) as world:
            world.dispatcher.start()
            yield world
        await database.close()


@contextlib.asynccontextmanager
async def beating(world: World, device_id: str, *deployments: HeldDeployment) -> AsyncIterator[None]:
    """A daemon that is heard, until the block ends."""

    async def beat() -> None:
        while True:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LEASE_SECONDS):
                    await world.beat(device_id, *deployments)
            await asyncio.sleep(BEAT_SECONDS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def ready(world: World) -> str:
    """A deployment that got there, however long the machine took."""
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    async with beating(world, FIRST, held(deployment_id)), beating(world, SECOND, held(deployment_id)):
        await world.until(deployment_id, DeploymentState.READY)
    return deployment_id


@pytest.mark.parametrize("outage", ["refusing", "stopped"])
async def test_a_database_that_is_away_ends_no_healthy_deployment(world: World, outage: str) -> None:
    deployment_id = await ready(world)
    async with beating(world, FIRST, held(deployment_id)):
        async with beating(world, SECOND, held(deployment_id)):
            with getattr(postgresql(), outage)(world.database.url.database):
                await asyncio.sleep(1.5 * LEASE_SECONDS)
            await asyncio.sleep(LEASE_SECONDS)
            assert (await world.get(deployment_id)).state is DeploymentState.READY
        await world.until(deployment_id, DeploymentState.FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("LEASE_EXPIRED", 1, SECOND)


async def test_a_planner_that_stood_still_blames_nobody_whoever_speaks_first(world: World) -> None:
    deployment_id = await ready(world)
    time.sleep(1.5 * LEASE_SECONDS)  # noqa: ASYNC251  the event loop stands still
    await world.register(FIRST)
    await world.beat(SECOND, held(deployment_id))
    assert (await world.get(deployment_id)).state is DeploymentState.READY


async def test_what_happens_while_the_database_is_away_is_written_when_it_is_back(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    async with beating(world, FIRST, held(deployment_id)), beating(world, SECOND, held(deployment_id)):
        await eventually(lambda: "load" in world.daemons[SECOND].asked)
        with postgresql().refusing(world.database.url.database):
            world.daemons[SECOND].resume.set()
            await asyncio.sleep(LEASE_SECONDS / 2)
        await world.until(deployment_id, DeploymentState.READY)


async def test_an_event_whose_commit_was_not_confirmed_is_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment_id = await ready(world)
    whole, num_broken = world.database.session, 0

    @contextlib.asynccontextmanager
    async def breaking() -> AsyncIterator[AsyncSession]:
        nonlocal num_broken
        async with whole() as session:
            yield session
        if num_broken == 0:
            num_broken += 1
            raise Unavailable("the connection broke after the commit")

    before = await world.events(deployment_id)
    monkeypatch.setattr(world.database, "session", breaking)
    await world.dispatcher._ledger.append(deployment_id, event(DeploymentState.READY))
    assert (len(await world.events(deployment_id)), num_broken) == (len(before) + 1, 1)


async def test_a_daemon_that_hangs_is_gone_once_its_lease_has_run_out(world: World) -> None:
    """It takes connections and answers none of the questions that a late daemon is asked."""
    deployment_id = await ready(world)
    world.daemons[SECOND].hold = "status"
    async with beating(world, FIRST, held(deployment_id)):
        await world.until(deployment_id, DeploymentState.FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("LEASE_EXPIRED", 1, SECOND)
