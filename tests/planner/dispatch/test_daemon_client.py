"""Calls to a daemon: what they send, how long they wait, and what is told of those that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from planner.dispatch.daemon_client import CallDeadlines, DaemonCallFailed, DaemonClient
from planner.store.deployment_records import Failure
from protos.v1 import stage_daemon_pb2
from tests.contract.scripted_daemon import ScriptedDaemon, standing
from tests.planner.dispatch.conftest import PATIENT
from tests.waiting import eventually

pytestmark = pytest.mark.services
SHORT = CallDeadlines(
    load_idle_seconds=0.2,
    rendezvous_seconds=0.2,
    connect_seconds=0.2,
    status_seconds=0.2,
    release_seconds=0.2,
    drain_seconds=0.1,
)
LOAD = stage_daemon_pb2.LoadStagesRequest(deployment_id="dep-1", stages=[stage_daemon_pb2.StageModule(stage=3)])
CONNECT = stage_daemon_pb2.ConnectStagesRequest(deployment_id="dep-1")
Call = Callable[[DaemonClient], Awaitable[object]]


async def load(client: DaemonClient) -> list[tuple[int, int, int]]:
    return [(one.stage, one.loaded_bytes, one.total_bytes) async for one in client.load(LOAD)]


async def profile(client: DaemonClient) -> list[int]:
    return [one.num_done async for one in client.profile(stage_daemon_pb2.ProfileRequest())]


CALLS: dict[str, tuple[Call, str]] = {
    "load": (load, "loading"),
    "profile": (profile, "profiling"),
    "rendezvous": (lambda client: client.open_rendezvous("dep-1", 7), "opening the rendezvous"),
    "connect": (lambda client: client.connect(CONNECT), "connecting"),
    "release": (lambda client: client.release("dep-1", 1, drain=True, keep_states=False), "letting go"),
    "status": (lambda client: client.status(), "asking its status"),
}


@pytest_asyncio.fixture
async def open_client(daemons: dict[str, ScriptedDaemon]) -> AsyncIterator[Callable[..., DaemonClient]]:
    clients = []

    def open_one(deadlines: CallDeadlines = PATIENT) -> DaemonClient:
        clients.append(DaemonClient("a", daemons["a"].address, deadlines))
        return clients[-1]

    yield open_one
    for client in clients:
        await client.close()


async def failure_of(call: Awaitable[object]) -> Failure:
    with pytest.raises(DaemonCallFailed) as caught:
        await call
    assert str(caught.value) == caught.value.failure.message
    return caught.value.failure


async def test_what_calls_give(open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon]) -> None:
    client, daemon = open_client(), daemons["a"]
    daemon.standing = [standing("dep-1")]
    assert await load(client) == [(3, 0, 2), (3, 1, 2), (3, 2, 2)]
    assert await client.open_rendezvous("dep-1", 7) == "store:1"
    await client.connect(CONNECT)
    assert [deployment.deployment_id for deployment in (await client.status()).deployments] == ["dep-1"]
    assert await profile(client) == [1, 3]
    assert (daemon.loads, daemon.connects) == ([LOAD], [CONNECT])


@pytest.mark.parametrize(("drain", "seconds"), [(True, 30.0), (False, 0.0)])
async def test_a_release_says_whether_and_how_long_to_drain(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon], drain: bool, seconds: float
) -> None:
    await open_client().release("dep-1", 1, drain=drain, keep_states=False)
    [release] = daemons["a"].releases
    assert (release.deployment_id, release.drain, release.drain_seconds) == ("dep-1", drain, seconds)


@pytest.mark.parametrize("name", CALLS)
async def test_a_daemon_that_says_nothing_is_waited_for_as_long_as_the_deadline(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon], name: str
) -> None:
    call, doing = CALLS[name]
    daemons["a"].hold = name
    failure = await failure_of(call(open_client(SHORT)))
    assert (failure.reason, failure.device_id, failure.stage) == ("DEADLINE_EXCEEDED", "a", None)
    assert failure.message.startswith(f"{doing}: ")
    assert "0.3 s" in failure.message if name == "release" else "0.2 s" in failure.message
    # Where the machine is slow, the call has not even arrived.
    await eventually(lambda: daemons["a"].cancelled == daemons["a"].asked)


@pytest.mark.parametrize("name", CALLS)
async def test_what_a_daemon_refuses_comes_back_with_its_reason_and_facts(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon], name: str
) -> None:
    daemons["a"].fail_on = name
    daemons["a"].refusal = {"stage": "3", "edge": "0"}
    assert await failure_of(CALLS[name][0](open_client())) == Failure(
        reason="SHAPE_MISMATCH",
        message=f"{name} went wrong",
        stage=3,
        device_id="a",
        metadata={"stage": "3", "edge": "0"},
    )


async def test_the_device_that_a_daemon_blames_is_believed(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].fail_on = "connect"
    daemons["a"].refusal = {"stage": "3", "device_id": "b", "edge": "0"}
    failure = await failure_of(open_client().connect(CONNECT))
    assert (failure.stage, failure.device_id) == (3, "b")


async def test_a_stage_that_is_no_number_is_left_among_the_facts(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].fail_on = "connect"
    daemons["a"].refusal = {"stage": "last"}
    failure = await failure_of(open_client().connect(CONNECT))
    assert (failure.stage, failure.metadata) == (None, {"stage": "last"})


async def test_a_daemon_that_breaks_is_told_by_its_status(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].crash_on = "connect"
    failure = await failure_of(open_client().connect(CONNECT))
    assert (failure.reason, failure.device_id) == ("DAEMON_ERROR", "a")
    assert failure.message.startswith("connecting: UNKNOWN: ")


@pytest.mark.parametrize("name", CALLS)
async def test_a_daemon_that_is_not_there_is_told_with_its_address(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon], name: str
) -> None:
    await daemons["a"].stop()
    call, doing = CALLS[name]
    failure = await failure_of(call(open_client()))
    assert (failure.reason, failure.device_id) == ("DAEMON_UNREACHABLE", "a")
    assert f"{doing}: the daemon at {daemons['a'].address} cannot be reached" in failure.message


async def test_leaving_a_stream_ends_it_on_the_daemon(
    open_client: Callable[..., DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].hold = "profile"
    responses = open_client().profile(stage_daemon_pb2.ProfileRequest())
    assert (await anext(responses)).num_done == 1
    await eventually(lambda: daemons["a"].asked == ["profile"])
    await responses.aclose()
    await eventually(lambda: daemons["a"].cancelled == ["profile"])
