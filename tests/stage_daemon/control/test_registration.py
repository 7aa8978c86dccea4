"""A daemon keeps its planner told: when it speaks, what it says, and what it does when it is not heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google.rpc import code_pb2

from protos.v1 import planner_pb2, stage_daemon_pb2
from stage_daemon.control.registration import Registration, _back_off_seconds
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.errors import Conflict, DaemonError
from tests.stage_daemon.control.registry import NOT_FOUND, TAKEN, UNAVAILABLE, Registry, introduction, registry_at
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with registry_at() as registry:
        yield registry


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(
        device_id="node0/cpu", torch_device="cpu", planner_address="127.0.0.1:1", listen_host="127.0.0.1"
    )
    yield supervisor
    await supervisor.close()


@asynccontextmanager
async def registering(registry: Registry, supervisor: Supervisor) -> AsyncIterator[Registration]:
    registration = Registration(registry.address, introduction(), supervisor)
    running = asyncio.create_task(registration.run())
    try:
        yield registration
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
        await registration.close()


async def test_registers_and_reports_at_once_and_then_when_there_is_news(
    registry: Registry, supervisor: Supervisor
) -> None:
    """The lease is an hour: nothing but news makes it speak."""
    async with registering(registry, supervisor) as registration:
        await asyncio.wait_for(registration.registered.wait(), WAIT_SECONDS)
        await registry.until_beats(1)
        assert registry.registrations == [introduction()]
        assert (registry.beats[0].device_id, registry.beats[0].incarnation_id) == ("node0/cpu", "first")
        assert await registration.is_connected(0.0)
        await asyncio.sleep(0.2)
        assert len(registry.beats) == 1
        supervisor.leave()
        await registry.until_beats(2)
        assert not supervisor.changed.is_set()
        assert [beat.leaving for beat in registry.beats] == [False, True]


async def test_tells_the_next_planner_where_one_does_not_answer(supervisor: Supervisor) -> None:
    async with registry_at() as first, registry_at() as second:
        both = f"127.0.0.1:1,{first.address},{second.address}"
        registration = Registration(both, introduction(), supervisor)
        running = asyncio.create_task(registration.run())
        await first.until_beats(1)
        first.refusals = [UNAVAILABLE] * 1000
        supervisor.changed.set()
        await second.until_beats(1)
        assert (second.registrations, len(first.registrations)) == ([introduction()], 1)
        second.refusals = [UNAVAILABLE]
        first.refusals = []
        supervisor.changed.set()
        await first.until_beats(2)
        running.cancel()
        await asyncio.wait([running])
        await registration.close()


async def test_a_planner_that_hangs_is_left_for_the_next_before_the_lease_ends(supervisor: Supervisor) -> None:
    async with registry_at() as first, registry_at() as second:
        first.lease_seconds = 0.6
        registration = Registration(f"{first.address},{second.address}", introduction(), supervisor)
        running = asyncio.create_task(registration.run())
        await first.until_beats(1)
        first.hangs = True
        await second.until_beats(1)
        running.cancel()
        await asyncio.wait([running])
        await registration.close()


async def test_speaks_three_times_within_a_lease(
    registry: Registry, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.lease_seconds = 0.6
    pauses: list[float] = []
    pause = Registration._pause

    async def noted(registration: Registration, seconds: float) -> None:
        pauses.append(seconds)
        await pause(registration, seconds)

    monkeypatch.setattr(Registration, "_pause", noted)
    async with registering(registry, supervisor):
        await registry.until_beats(4)
        registry.lease_seconds = 0.3
        await registry.until_beats(7)
    assert pauses[0] == pytest.approx(0.2) == pytest.approx(max(pauses))
    # From then on by what the last answer said.
    assert any(seconds == pytest.approx(0.1) for seconds in pauses)


async def test_a_planner_that_has_forgotten_it_hears_of_it_again_at_once(
    registry: Registry, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registering(registry, supervisor):
        await registry.until_beats(1)
        registry.refusals = [NOT_FOUND]
        waits: list[float] = []
        monkeypatch.setattr(
            "stage_daemon.control.registration._back_off_seconds", lambda *_: waits.append(0.01) or waits[-1]
        )
        supervisor.changed.set()
        await registry.until_beats(2)
        assert len(registry.registrations) == 2
        assert waits == []


async def test_a_planner_that_does_not_answer_is_asked_again(registry: Registry, supervisor: Supervisor) -> None:
    registry.refusals = [UNAVAILABLE] * 3
    async with registering(registry, supervisor) as registration:
        await registry.until_beats(1)
        assert registry.num_refused == 3
        assert len(registry.registrations) == 1
        registry.refusals = [UNAVAILABLE] * 1000
        supervisor.changed.set()
        await registry.until_refused(4)

        async def lost() -> bool:
            return not await registration.is_connected(0.0)

        await eventually(lost, "the planner to be missed")
        assert registration.registered.is_set()
        registry.refusals = []
        assert await registration.is_connected(WAIT_SECONDS)


async def test_news_cuts_the_wait_for_a_planner_short(
    registry: Registry, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stage_daemon.control.registration._back_off_seconds", lambda *_: 3600.0)
    registry.refusals = [UNAVAILABLE]
    async with registering(registry, supervisor):
        await registry.until_refused(1)
        async with asyncio.timeout(WAIT_SECONDS):
            while not registry.registrations:
                supervisor.changed.set()
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("reason", ["INVALID_ARGUMENT", "INVALID_INVENTORY"])
async def test_a_planner_that_will_never_take_it_is_not_asked_again(
    registry: Registry, supervisor: Supervisor, reason: str
) -> None:
    registry.refusals = [(code_pb2.FAILED_PRECONDITION, reason)]
    registration = Registration(registry.address, introduction(), supervisor)
    with pytest.raises(Conflict, match=f"the planner refuses this daemon: no: {reason}"):
        await asyncio.wait_for(registration.run(), WAIT_SECONDS)
    assert not registration.registered.is_set()
    await registration.close()


async def test_a_daemon_whose_device_is_taken_waits_for_it(registry: Registry, supervisor: Supervisor) -> None:
    """The one before it may have died and hold its lease for a while."""
    registry.refusals = [TAKEN] * 3
    async with registering(registry, supervisor):
        await registry.until_beats(1)
        assert registry.num_refused == 3


async def test_a_daemon_without_work_gives_up_after_two_leases(registry: Registry, supervisor: Supervisor) -> None:
    registry.refusals = [TAKEN] * 1000
    registry.facts = {"lease_seconds": "0.1"}
    registration = Registration(registry.address, introduction(), supervisor)
    with pytest.raises(Conflict, match="the planner refuses this daemon: no: DEVICE_TAKEN"):
        await asyncio.wait_for(registration.run(), WAIT_SECONDS)
    assert registry.num_refused > 2
    await registration.close()


async def test_a_daemon_that_holds_work_never_ends_because_its_device_is_taken(
    registry: Registry, supervisor: Supervisor
) -> None:
    """It goes on trying, and lets go of what the refusals say has ended."""
    request = stage_daemon_pb2.LoadStagesRequest(
        deployment_id="dep-1", generation=1, stages=[stage_daemon_pb2.StageModule(stage=0, graph_sha256=bytes(32))]
    )
    loading = supervisor.load(request)
    hosted = supervisor._host(request)
    registry.facts = {"lease_seconds": "0.01"}
    registry.refusals = [TAKEN] * 8
    async with registering(registry, supervisor) as registration:
        await registry.until_beats(1)
        assert registration.registered.is_set()
        assert [standing.deployment_id for standing in registry.beats[-1].deployments] == ["dep-1"]
        assert supervisor.holds_work
        registry.facts = {"lease_seconds": "3600", "release_deployment_ids": "dep-1,dep-9"}
        registry.refusals = [TAKEN] * 1000
        supervisor.changed.set()
        assert await supervisor.wait_until_empty(WAIT_SECONDS)
    assert hosted.life.phase.ended
    await loading.aclose()


async def test_what_the_planner_has_ended_is_let_go_of(registry: Registry, supervisor: Supervisor) -> None:
    """A deployment that failed is reported until then."""
    request = stage_daemon_pb2.LoadStagesRequest(
        deployment_id="dep-1",
        generation=3,
        blob_address=registry.address,
        stages=[stage_daemon_pb2.StageModule(stage=2, graph_sha256=bytes(32))],
    )
    with pytest.raises(DaemonError):
        await anext(supervisor.load(request))
    async with registering(registry, supervisor):
        await registry.until_beats(1)
        [standing] = registry.beats[0].deployments
        assert (standing.deployment_id, standing.generation, standing.state) == (
            "dep-1",
            3,
            planner_pb2.WORKER_STATE_FAILED,
        )
        assert (standing.failure.stage, standing.failure.device_id) == (2, "node0/cpu")
        assert not await supervisor.wait_until_empty(0.0)
        registry.release = ["dep-1", "dep-that-was-never-here"]
        supervisor.changed.set()
        assert await supervisor.wait_until_empty(WAIT_SECONDS)
        # That it is gone is news again.
        await registry.until_beats(3)
        assert list(registry.beats[-1].deployments) == []


def test_waits_grow_to_a_bound_and_differ() -> None:
    for failures, longest in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0)):
        pauses = [_back_off_seconds(failures, 3.0) for _ in range(50)]
        assert all(longest / 2 <= seconds <= longest for seconds in pauses)
        assert len(set(pauses)) > 1
    assert _back_off_seconds(10**6, 0.5) <= 0.5


async def test_tries_lie_no_further_apart_than_heartbeats(
    registry: Registry, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that comes back gives a lease of grace to those that it knows."""
    bounds: list[float] = []

    def noted(failures: int, most_seconds: float) -> float:
        bounds.append(most_seconds)
        return 0.01

    monkeypatch.setattr("stage_daemon.control.registration._back_off_seconds", noted)
    registry.lease_seconds = 0.3
    async with registering(registry, supervisor):
        await registry.until_beats(1)
        registry.refusals = [UNAVAILABLE]
        await registry.until_refused(1)
        await registry.until_beats(3)
    assert bounds
    assert all(seconds == pytest.approx(0.1) for seconds in bounds)
