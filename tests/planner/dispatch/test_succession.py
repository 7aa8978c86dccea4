"""When the holder of a lease is known to have ended: only where its host says so, or another start of it answers."""

from __future__ import annotations

import socket

import pytest

from planner.dispatch.daemon_client import CallDeadlines, DaemonClient
from planner.dispatch.succession import has_ended
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.planner.dispatch.conftest import PATIENT
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services


async def ended(address: str, deadlines: CallDeadlines = PATIENT, within_seconds: float = WAIT_SECONDS) -> bool:
    client = DaemonClient("a", address, deadlines)
    try:
        return await has_ended(client, "first", within_seconds)
    finally:
        await client.close()


async def test_one_that_answers_lives_and_one_that_is_another_start_does_not(
    daemons: dict[str, ScriptedDaemon],
) -> None:
    assert not await ended(daemons["a"].address)
    daemons["a"].incarnation_id = ""
    assert not await ended(daemons["a"].address)
    daemons["a"].incarnation_id = "second"
    assert await ended(daemons["a"].address)
    await daemons["a"].stop()
    assert await ended(daemons["a"].address)


async def test_one_that_breaks_or_does_not_answer_may_live(daemons: dict[str, ScriptedDaemon]) -> None:
    daemons["a"].crash_on = "status"
    assert not await ended(daemons["a"].address)
    daemons["b"].hold = "status"
    assert not await ended(daemons["b"].address, CallDeadlines(status_seconds=0.2))
    assert not await ended("no-such-host.invalid:1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert not await ended(address, CallDeadlines(status_seconds=0.2))
