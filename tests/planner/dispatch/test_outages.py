"""A planner that stands still, or whose database does: no healthy deployment ends, and one that lost a daemon does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from tests.contract.databases import empty_database
from tests.contract.postgresql import postgresql
from tests.planner.dispatch.worlds import FIRST, SECOND, World, held, open_world

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


@contextlib.contextmanager
def refusing(name: str) -> Iterator[None]:
    postgresql().execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    postgresql().execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        yield
    finally:
        postgresql().execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@contextlib.contextmanager
def stopped(name: str) -> Iterator[None]:
    """The postmaster too, so that new connections hang as those that are there do."""
    processes = postgresql().processes(name)
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("outage", [refusing, stopped])
async def test_a_database_that_is_away_ends_no_healthy_deployment(
    world: World, outage: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    name = world.database.url.database
    assert name is not None
    deployment_id = await world.ready()
    first, second = (asyncio.create_task(beat(world, device_id, deployment_id)) for device_id in (FIRST, SECOND))
    with outage(name):
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
