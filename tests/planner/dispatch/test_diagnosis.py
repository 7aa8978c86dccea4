"""Whose fault a broken deployment is: each daemon is asked what broke on itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import pytest_asyncio

from planner.dispatch import diagnosis
from planner.dispatch.daemon_client import CallDeadlines, DaemonClient
from planner.dispatch.diagnosis import find_cause, own_failure
from protos.v1 import planner_pb2, stage_daemon_pb2
from tests.contract.scripted_daemon import ScriptedDaemon, standing
from tests.planner.dispatch.conftest import PATIENT

DIED = standing("dep-1", reason="WORKER_DIED")
LOST = standing("dep-1", reason="EDGE_TIMEOUT", edge="0")


def status(*deployments: planner_pb2.DeploymentOnDaemon) -> stage_daemon_pb2.GetDaemonStatusResponse:
    return stage_daemon_pb2.GetDaemonStatusResponse(deployments=deployments)


def test_what_broke_on_the_daemon_itself() -> None:
    failure = own_failure("dep-1", status(standing("dep-2", reason="OTHER"), LOST, DIED))
    assert failure is not None
    assert (failure.reason, failure.message) == ("WORKER_DIED", "killed")


@pytest.mark.parametrize(
    "deployments",
    [
        (),
        (standing("dep-1"),),
        (standing("dep-2", reason="WORKER_DIED"),),
        (LOST,),
        (standing("dep-1", reason="WORKER_DIED", edge="0"),),
        tuple(standing("dep-1", reason=reason) for reason in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")),
    ],
)
def test_what_it_only_saw_of_others_is_not_its_own(deployments: tuple[planner_pb2.DeploymentOnDaemon, ...]) -> None:
    assert own_failure("dep-1", status(*deployments)) is None


@pytest_asyncio.fixture
async def clients(daemons: dict[str, ScriptedDaemon]) -> AsyncIterator[dict[str, DaemonClient]]:
    opened = {name: DaemonClient(name, daemon.address, PATIENT) for name, daemon in daemons.items()}
    yield opened
    for client in opened.values():
        await client.close()


@pytest.mark.services
async def test_the_daemon_whose_worker_died_is_named(
    clients: dict[str, DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].standing, daemons["b"].standing = [LOST], [DIED]
    cause = await find_cause("dep-1", clients)
    assert cause is not None
    assert (cause.reason, cause.device_id) == ("WORKER_DIED", "b")


@pytest.mark.services
async def test_a_daemon_that_cannot_be_reached_is_the_cause(
    clients: dict[str, DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].standing = [LOST]
    await daemons["b"].stop()
    cause = await find_cause("dep-1", clients)
    assert cause is not None
    assert (cause.reason, cause.device_id) == ("DAEMON_UNREACHABLE", "b")


@pytest.mark.services
async def test_a_daemon_that_is_slow_to_answer_is_not_the_cause(
    daemons: dict[str, ScriptedDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "ROUNDS", 1)
    daemons["a"].standing, daemons["b"].hold = [LOST], "status"
    hurried = CallDeadlines(status_seconds=0.3)
    opened = {name: DaemonClient(name, daemon.address, hurried) for name, daemon in daemons.items()}
    assert await find_cause("dep-1", opened) is None
    for client in opened.values():
        await client.close()


@pytest.mark.services
async def test_a_death_that_its_supervisor_notices_late_is_found_by_asking_again(
    clients: dict[str, DaemonClient], daemons: dict[str, ScriptedDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons["a"].standing = [LOST]
    rounds = 0

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        assert seconds == diagnosis.ROUND_SECONDS
        if rounds == diagnosis.ROUNDS - 1:
            daemons["b"].standing = [DIED]

    monkeypatch.setattr(diagnosis, "asyncio", SimpleNamespace(gather=asyncio.gather, sleep=sleep))
    cause = await find_cause("dep-1", clients)
    assert cause is not None
    assert (cause.device_id, daemons["b"].asked.count("status")) == ("b", diagnosis.ROUNDS)


@pytest.mark.services
async def test_where_nobody_stands_out_there_is_no_cause(
    clients: dict[str, DaemonClient], daemons: dict[str, ScriptedDaemon]
) -> None:
    daemons["a"].standing, daemons["b"].standing = [LOST], [standing("dep-1")]
    assert await find_cause("dep-1", clients) is None
    assert daemons["a"].asked.count("status") == diagnosis.ROUNDS
