"""Several planners on one PostgreSQL: one rolls out, the others say so, and one takes over where it falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner.dispatch import dispatcher, placing
from planner.dispatch.dispatcher import Dispatcher
from planner.errors import NotLeading, Unavailable
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from planner.store.deployments import list_active_deployments
from planner.store.tables import RoleRow
from tests.contract.databases import empty_database
from tests.planner.dispatch.worlds import FIRST, SECOND, World, break_after_commit, held, open_world
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services
READY = DeploymentState.READY


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with empty_database("postgresql", tmp_path) as url:
        database = Database(url)
        async with open_world(database, tmp_path) as world:
            yield world
        await database.close()


async def fall_silent(world: World) -> None:
    """As if the planner that leads had renewed nothing for longer than its claim lasts."""
    async with world.database.session() as session:
        await session.execute(update(RoleRow).values(claimed_until=datetime(2020, 1, 1, tzinfo=UTC)))


async def num_active(world: World) -> int:
    async with world.database.reading() as session:
        return len(await list_active_deployments(session))


async def until(watched: Dispatcher, deployment_id: str, state: DeploymentState) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        async for event in watched.watch(deployment_id, 0):
            if event.state is state:
                return
    raise AssertionError(f"{deployment_id} ended otherwise")


async def test_one_leads_and_the_others_only_watch(world: World) -> None:
    leader, follower = world.dispatcher, world.start()
    for call in (
        world.register(FIRST),
        world.beat(FIRST),
        follower.deploy("plan-1", ""),
        follower.stop("dep-1"),
    ):
        with pytest.raises(NotLeading, match="addresses of all planners"):
            await call
    deployment_id = await leader.deploy("plan-1", "")
    await until(follower, deployment_id, READY)
    assert await num_active(world) == 1


async def test_what_a_planner_that_closes_was_rolling_out_another_begins_anew(world: World) -> None:
    leader = world.dispatcher
    world.daemons[SECOND].hold = "load"
    deployment_id = await leader.deploy("plan-1", "")
    await eventually(lambda: "load" in world.daemons[SECOND].asked)
    await leader.close()
    world.daemons[SECOND].hold = ""
    world.start().start()
    await world.until_generation(deployment_id, 2)
    assert await world.beat(FIRST, held(deployment_id, generation=2)) == ()


async def test_a_planner_that_fell_silent_can_write_nothing_more(world: World) -> None:
    silent = world.dispatcher
    deployment_id = await world.ready()
    await fall_silent(world)
    successor = world.start()
    assert await world.beat(FIRST, held(deployment_id)) == ()
    for call in (silent.deploy("plan-1", ""), silent.stop(deployment_id)):
        with pytest.raises(NotLeading):
            await call
    assert (await num_active(world), (await world.get(deployment_id)).state) == (1, READY)
    assert [len(daemon.releases) for daemon in world.daemons.values()] == [0, 0]
    await successor.stop(deployment_id)
    assert (await world.get(deployment_id)).state is DeploymentState.STOPPED


async def test_a_planner_that_fell_silent_steps_down_and_leads_again_once_it_has_to(world: World) -> None:
    silent = world.dispatcher
    silent._leadership.claim_seconds = 0.4
    deployment_id = await world.ready()
    world.daemons[SECOND].hold = "release"
    stopping = asyncio.create_task(silent.stop(deployment_id))
    await eventually(lambda: "release" in world.daemons[SECOND].asked)
    await fall_silent(world)
    successor = world.start()
    await world.beat(FIRST, held(deployment_id))
    silent.start()
    with pytest.raises(NotLeading, match="stops"):
        await stopping
    assert silent._drivers == {}
    world.daemons[SECOND].resume.set()
    await until(successor, deployment_id, DeploymentState.STOPPED)
    await successor.close()
    await eventually(lambda: silent._resumed)
    world.dispatcher = silent
    await world.ready()


async def test_a_planner_that_was_silent_leads_on_where_no_other_took_over(world: World) -> None:
    deployment_id = await world.ready()
    await fall_silent(world)
    assert await world.dispatcher._leadership.renew()
    await world.dispatcher.stop(deployment_id)
    assert (await world.get(deployment_id)).state is DeploymentState.STOPPED


async def test_a_planner_whose_claim_was_not_confirmed_leads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other would: the database has it that this one does."""
    await world.dispatcher.close()
    world.start()

    async def is_claim(session: AsyncSession) -> bool:
        return bool(await session.scalar(select(RoleRow.claimed_by)))

    break_after_commit(world.database, monkeypatch, is_claim)
    with pytest.raises(Unavailable):
        await world.beat(FIRST)
    await world.beat(FIRST)


class Ahead(datetime):
    """The clock of another host, which is a day ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Ahead:
        return super().now(tz) + timedelta(days=1)


async def test_a_planner_whose_clock_is_ahead_finds_the_daemons_that_another_heard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dispatcher, placing):
        monkeypatch.setattr(module, "datetime", Ahead)
    await world.ready()
    await world.dispatcher.drain(SECOND, undo=True)
