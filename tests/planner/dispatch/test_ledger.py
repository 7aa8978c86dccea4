"""Watching a deployment: history first, then each event as it is written, to its end; on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from planner.dispatch.leadership import Leadership
from planner.dispatch.ledger import Ledger
from planner.errors import NotFound
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from tests.contract.databases import KINDS, empty_database
from tests.planner.store.records import deployment, event, fill, graph

pytestmark = pytest.mark.services
LOADING, CONNECTING, FAILED = DeploymentState.LOADING, DeploymentState.CONNECTING, DeploymentState.FAILED


@pytest_asyncio.fixture(params=KINDS)
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    """With the deployments dep-1 and dep-2."""
    with empty_database(request.param, tmp_path) as url:
        database = Database(url)
        await fill(database, graph(), deployment(), deployment("dep-2"))
        leadership = Leadership(database, 600.0)
        await leadership.take()
        yield Ledger(database, leadership)
        await database.close()


async def watched(ledger: Ledger, after: int = 0) -> list[int]:
    return [one.sequence async for one in ledger.watch("dep-1", after)]


async def test_history_then_each_event_until_the_end(ledger: Ledger) -> None:
    await ledger.append("dep-1", event(LOADING))
    events = ledger.watch("dep-1", 0)
    async with asyncio.timeout(120):
        assert (await anext(events)).state is LOADING
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        assert not coming.done()
        await ledger.append("dep-2", event(LOADING))
        await ledger.append("dep-1", event(CONNECTING))
        assert (await coming).sequence == 2
        await ledger.append("dep-1", event(LOADING))
        await ledger.append("dep-1", event(FAILED))
        assert [(one.sequence, one.state) async for one in events] == [(3, LOADING), (4, FAILED)]


async def test_watching_from_a_sequence_on_and_after_the_end(ledger: Ledger) -> None:
    for state in (LOADING, CONNECTING, FAILED):
        await ledger.append("dep-1", event(state))
    assert await watched(ledger) == [1, 2, 3]
    assert await watched(ledger, 1) == [2, 3]
    assert await watched(ledger, 3) == []
    assert await watched(ledger, 99) == []


async def test_every_watcher_hears_everything_however_slow(ledger: Ledger) -> None:
    async def slowly() -> list[int]:
        heard = []
        async for one in ledger.watch("dep-1", 0):
            heard.append(one.sequence)
            await asyncio.sleep(0.01)
        return heard

    watchers = [asyncio.create_task(watched(ledger)), asyncio.create_task(slowly())]
    for index in range(6):
        await ledger.append("dep-1", event(LOADING, message=f"m{index}"))
    await ledger.append("dep-1", event(FAILED))
    async with asyncio.timeout(120):
        assert await asyncio.gather(*watchers) == [list(range(1, 8))] * 2


async def test_a_watcher_that_leaves_is_forgotten_and_the_others_stay(ledger: Ledger) -> None:
    staying = asyncio.create_task(watched(ledger))
    leaving = asyncio.create_task(watched(ledger))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.wait({leaving})
    await ledger.append("dep-1", event(FAILED))
    async with asyncio.timeout(120):
        assert await staying == [1]
    assert not ledger._watchers


async def test_nobody_watches_what_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        await anext(aiter(ledger.watch("dep-9", 0)))
    assert not ledger._watchers
