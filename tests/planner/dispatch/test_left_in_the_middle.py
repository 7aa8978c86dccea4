"""Callers that leave, and commits that are not confirmed: what was begun is gone on with, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import Unavailable
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState, Failure, RecoveryPolicy
from tests.planner.dispatch.worlds import FIRST, SECOND, World, break_after_commit, held, open_world
from tests.waiting import eventually, leave

pytestmark = pytest.mark.services
DIED = Failure(reason="WORKER_DIED", message="killed")


@pytest_asyncio.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, tmp_path) as world:
        yield world


class Commits:
    """From `hold` on, `after` so many more, a write that was committed returns only after `resume`."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_held = self._num_free = 0
        self._persist = database.persist
        self._resumed: asyncio.Event | None = None
        monkeypatch.setattr(database, "persist", self._held)

    def hold(self, after: int = 0) -> None:
        self._num_free = after
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        assert self._resumed is not None
        self._resumed.set()
        self._resumed = None

    async def _held(self, write: Callable[[AsyncSession], Awaitable[Any]]) -> Any:
        result = await self._persist(write)
        self._num_free -= 1
        if self._resumed is not None and self._num_free < 0:
            self.num_held += 1
            await self._resumed.wait()
        return result


async def test_what_a_daemon_reports_is_acted_on_where_it_leaves_once_that_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment_id = await world.ready(RecoveryPolicy.RESTART)
    commits = Commits(world.database, monkeypatch)
    commits.hold()
    beat = asyncio.create_task(world.beat(SECOND, held(deployment_id, failure=DIED)))
    await eventually(lambda: commits.num_held > 0)
    await leave(beat)
    commits.resume()
    await world.until_generation(deployment_id, 2)
    messages = [event.message for event in await world.events(deployment_id)]
    assert messages.count("killed; it recovers") == 1


async def test_a_planner_that_starts_takes_each_deployment_up_once_whoever_leaves_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.daemons[SECOND].hold = "load"
    ids = [await world.dispatcher.deploy("plan-1", "") for _ in range(3)]
    await eventually(lambda: world.daemons[SECOND].asked.count("load") == len(ids))
    await world.dispatcher.close()
    world.daemons[SECOND].hold = ""
    commits = Commits(world.database, monkeypatch)
    world.start()
    commits.hold(after=1)
    beat = asyncio.create_task(world.beat(FIRST))
    await eventually(lambda: commits.num_held > 0)
    await leave(beat)
    commits.resume()
    await world.beat(SECOND)
    for deployment_id in ids:
        await world.until_generation(deployment_id, 2)
    for daemon in world.daemons.values():
        releases = [(release.deployment_id, release.generation) for release in daemon.releases]
        assert sorted(releases) == sorted((deployment_id, 1) for deployment_id in ids)


async def test_a_daemon_that_leaves_once_it_was_added_has_its_device(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, committed, resumed = world.database.session, asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def slow() -> AsyncIterator[AsyncSession]:
        async with whole() as session:
            yield session
        committed.set()
        await resumed.wait()

    await world.daemons[SECOND].stop()
    monkeypatch.setattr(world.database, "session", slow)
    first = asyncio.create_task(world.register(SECOND, incarnation="second"))
    await committed.wait()
    await leave(first)
    resumed.set()
    await world.register(SECOND, incarnation="second")
    assert await world.beat(SECOND, incarnation="second") == ()


async def test_a_deployment_whose_commit_was_not_confirmed_is_rolled_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def is_first(_: AsyncSession) -> bool:
        return True

    break_after_commit(world.database, monkeypatch, is_first)
    with pytest.raises(Unavailable):
        await world.dispatcher.deploy("plan-1", "one", "f")
    deployment_id = await world.dispatcher.deploy("plan-1", "one", "f")
    await world.until(deployment_id, DeploymentState.READY)
    assert len(world.daemons[FIRST].loads) == 1
