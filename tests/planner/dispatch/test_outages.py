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

from planner.errors import Unavailable
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from tests.contract.databases import empty_database
from tests.contract.postgresql import postgresql
from tests.planner.dispatch.conftest import eventually
from tests.planner.dispatch.worlds import FIRST, SECOND, World, held, open_world
from tests.planner.store.records import event

pytestmark = pytest.mark.services
LEASE_SECONDS = 1.5


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with empty_database("postgresql", tmp_path) as url:
        database = Database(url)
        async with open_world(database, tmp_path, LEASE_SECONDS) as world:
            world.dispatcher.start()
            yield world
        await database.close()


async def beat(world: World, device_id: str, deployment_id: str) -> None:
    while True:
        with contextlib.suppress(Exception):
            await world.beat(device_id, held(deployment_id))
        await asyncio.sleep(LEASE_SECONDS / 2)


@pytest.mark.parametrize("outage", ["refusing", "stopped"])
async def test_a_database_that_is_away_ends_no_healthy_deployment(world: World, outage: str) -> None:
    deployment_id = await world.ready()
    first, second = (asyncio.create_task(beat(world, device_id, deployment_id)) for device_id in (FIRST, SECOND))
    with getattr(postgresql(), outage)(world.database.url.database):
        await asyncio.sleep(2 * LEASE_SECONDS)
    await asyncio.sleep(LEASE_SECONDS)
    assert (await world.get(deployment_id)).state is DeploymentState.READY
    second.cancel()
    await world.until(deployment_id, DeploymentState.FAILED)
    failure = (await world.get(deployment_id)).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("LEASE_EXPIRED", 1, SECOND)
    first.cancel()
    await asyncio.wait({first, second})


async def test_a_planner_that_stood_still_blames_nobody_whoever_speaks_first(world: World) -> None:
    deployment_id = await world.ready()
    time.sleep(2 * LEASE_SECONDS)  # noqa: ASYNC251  the event loop stands still
    await world.register(FIRST)
    await world.beat(SECOND, held(deployment_id))
    await asyncio.sleep(LEASE_SECONDS / 2)
    assert (await world.get(deployment_id)).state is DeploymentState.READY


async def test_what_happens_while_the_database_is_away_is_written_when_it_is_back(world: World) -> None:
    world.daemons[SECOND].hold = "load"
    deployment_id = await world.dispatcher.deploy("plan-1", "")
    await eventually(lambda: "load" in world.daemons[SECOND].asked)
    with postgresql().refusing(world.database.url.database):
        world.daemons[SECOND].resume.set()
        await asyncio.sleep(LEASE_SECONDS / 2)
    beats = [asyncio.create_task(beat(world, device_id, deployment_id)) for device_id in (FIRST, SECOND)]
    await world.until(deployment_id, DeploymentState.READY)
    for task in beats:
        task.cancel()
    await asyncio.wait(beats)


async def test_an_event_whose_commit_was_not_confirmed_is_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment_id = await world.ready()
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
