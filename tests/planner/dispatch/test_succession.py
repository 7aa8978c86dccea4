"""When the holder of a lease is known to have ended: only where its host says so, or another start of it answers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from planner.dispatch import daemon_client
from planner.dispatch.daemon_client import CallDeadlines, DaemonCallFailed, DaemonClient
from planner.dispatch.succession import has_ended, until_ended
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.planner.client.cutting_proxy import CuttingProxy
from tests.planner.dispatch.conftest import PATIENT
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services


async def ended(address: str, deadlines: CallDeadlines = PATIENT) -> bool:
    client = DaemonClient("a", address, deadlines)
    try:
        return await has_ended(client, "first")
    finally:
        await client.close()


async def until_answered(client: DaemonClient) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await client.status()
            except DaemonCallFailed:
                await asyncio.sleep(0.01)
            else:
                return


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


async def test_a_name_of_several_addresses_has_ended_where_all_refuse(
    daemons: dict[str, ScriptedDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(daemons["a"].address.rpartition(":")[2])

    async def two_addresses(*_: object, **__: object) -> list[tuple[object, ...]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two_addresses)
    assert not await ended(daemons["a"].address)
    await daemons["a"].stop()
    assert await ended(daemons["a"].address)


async def test_those_who_wait_for_a_break_share_one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[asyncio.Event] = []

    async def watch(channel: object) -> None:
        watches.append(asyncio.Event())
        await watches[-1].wait()

    monkeypatch.setattr(daemon_client, "until_disconnected", watch)
    client = DaemonClient("a", "127.0.0.1:1", PATIENT)
    first, second = (asyncio.create_task(client.until_disconnected()) for _ in range(2))
    await eventually(lambda: watches)
    assert len(watches) == 1
    first.cancel()
    await asyncio.wait({first})
    watches[0].set()
    await asyncio.wait_for(second, WAIT_SECONDS)
    third = asyncio.create_task(client.until_disconnected())
    await eventually(lambda: len(watches) == 2)
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await third


async def test_the_end_is_known_once_the_connection_breaks(daemons: dict[str, ScriptedDaemon]) -> None:
    client = DaemonClient("a", daemons["a"].address, PATIENT)
    ending = asyncio.create_task(until_ended(client, "first"))
    await client.status()
    await daemons["a"].stop()
    await asyncio.wait_for(ending, WAIT_SECONDS)
    await client.close()


async def test_a_connection_that_is_cut_is_no_end(daemons: dict[str, ScriptedDaemon]) -> None:
    """The daemon answers over the next one, under the same name."""
    proxy = CuttingProxy(daemons["a"].address, cut_after_bytes=(0,) * 3)
    server = await proxy.start()
    client = DaemonClient("a", proxy.address, PATIENT)
    ending = asyncio.create_task(until_ended(client, "first"))
    await until_answered(client)
    assert proxy.num_cuts > 0
    assert not ending.done()
    ending.cancel()
    await client.close()
    server.close()


async def test_the_end_is_known_where_the_port_is_closed_after_the_connection(
    daemons: dict[str, ScriptedDaemon],
) -> None:
    """As the kernel may do with what a process had open that is killed."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen(8)
        client = DaemonClient("a", f"127.0.0.1:{port.getsockname()[1]}", CallDeadlines(status_seconds=0.1))
        ending = asyncio.create_task(until_ended(client, "first"))
        connection, _ = await asyncio.get_running_loop().run_in_executor(None, port.accept)
        connection.close()
        await asyncio.sleep(0)
        assert not ending.done()
    await asyncio.wait_for(ending, WAIT_SECONDS)
    await client.close()
