"""Which daemons a profile runs on, what it gives, and what is told where it cannot be done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from planner.cost.inventory import Device
from planner.cost.measured import MeasuredTimes
from planner.dispatch.daemon_client import CallDeadlines
from planner.dispatch.profiler import Measured, Step, _error, choose_daemons, profile, usual_neighbours
from planner.errors import Cancelled, Conflict, GraphError, InvalidArgument, NotFound, PlannerError, Unavailable
from planner.store.deployment_records import Daemon, Deployment, DeploymentState, Failure, StagePlacement
from protos.v1 import stage_daemon_pb2
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.waiting import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def daemon(device_id: str, kind: str) -> Daemon:
    return Daemon(
        device=Device(id=device_id, kind=kind, host="h", memory_bytes=1),
        address="127.0.0.1:1",
        incarnation_id="i",
        torch_version="2.13",
        lease_expires_at=NOW,
    )


def holding(*device_ids: str) -> Deployment:
    return Deployment(
        id="dep-1",
        plan_id="plan-1",
        graph_id="g",
        state=DeploymentState.READY,
        generation=1,
        stages=tuple(
            StagePlacement(stage=stage, device_id=device_id, daemon_address="", incarnation_id="i")
            for stage, device_id in enumerate(device_ids)
        ),
        created_at=NOW,
    )


LIVE = (daemon("g0", "H200"), daemon("g1", "H200"), daemon("c0", "cpu"))


@pytest.mark.parametrize(
    ("held", "device_ids", "kinds", "expected_ids"),
    [
        ((), (), (), ["g0", "c0"]),
        ((), ("c0", "g1", "c0"), (), ["c0", "g1"]),
        ((), (), ("h200",), ["g0"]),
        (("g0",), (), ("h200",), ["g1"]),
        (("g0", "g1"), (), (), ["c0"]),
    ],
)
def test_free_ones_are_chosen(
    held: tuple[str, ...], device_ids: tuple[str, ...], kinds: tuple[str, ...], expected_ids: list[str]
) -> None:
    daemons = choose_daemons(LIVE, [holding(*held)] if held else [], device_ids, kinds)
    assert [one.device.id for one in daemons] == expected_ids


@pytest.mark.parametrize(
    ("live", "held", "device_ids", "kinds", "error", "says"),
    [
        ((), (), (), (), NotFound, "no daemon holds a lease"),
        (LIVE, (), ("g7",), (), NotFound, "'g7' has no daemon.*g0, g1, c0"),
        (LIVE, (), (), ("t4",), NotFound, "kind 't4'.*H200, cpu"),
        (LIVE, ("g0",), ("g0",), (), Conflict, "g0 holds deployment dep-1"),
        (LIVE, ("g0", "g1"), (), ("h200",), Conflict, "every device of kind 'h200'"),
        (LIVE, ("g0", "g1", "c0"), (), (), Conflict, "every device holds a deployment"),
    ],
)
def test_what_is_not_there_or_not_free_is_named(
    live: tuple[Daemon, ...],
    held: tuple[str, ...],
    device_ids: tuple[str, ...],
    kinds: tuple[str, ...],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        choose_daemons(live, [holding(*held)] if held else [], device_ids, kinds)


REQUEST = stage_daemon_pb2.ProfileRequest(
    graph_sha256=bytes(32), symbol_values={"length": 3, "batch": 2}, repetitions=5
)


@pytest.mark.services
async def test_what_was_measured_says_with_how_many_threads_and_beside_whom(daemons: dict[str, ScriptedDaemon]) -> None:
    refusal = (
        ((1, 0), "torch 2.13, 1 thread"),
        ((3, 1), "torch 2.13, 3 threads, beside 1 busy neighbour"),
        ((1, 2), "torch 2.13, 1 thread, beside 2 busy neighbours"),
    )
    for (daemons["a"].num_threads, daemons["a"].num_neighbours), says in refusal:
        *_, last = [step async for step in profile(at(daemons["a"].address), "ab" * 32, REQUEST, CallDeadlines())]
        assert isinstance(last, Measured)
        assert last.times.source == f"profiled on a, {says}"


def test_neighbours_are_the_hosts_other_daemons_of_the_kind() -> None:
    elsewhere = replace(daemon("c2", "cpu"), device=replace(LIVE[2].device, id="c2", host="other"))
    live = (*LIVE, daemon("c1", "CPU"), elsewhere)
    assert [usual_neighbours(one, live) for one in live] == [1, 1, 1, 1, 0]


def at(address: str) -> Daemon:
    return replace(daemon("a", "H200"), address=address)


@pytest.mark.services
async def test_a_profile_gives_its_progress_and_then_what_was_measured(daemons: dict[str, ScriptedDaemon]) -> None:
    steps = [step async for step in profile(at(daemons["a"].address), "ab" * 32, REQUEST, CallDeadlines())]
    assert daemons["a"].profiles == [REQUEST]
    assert steps[:-1] == [Step(num_done=1, num_distinct=3), Step(num_done=3, num_distinct=3)]
    assert steps[-1] == Measured(
        times=MeasuredTimes(
            graph_id="ab" * 32,
            device_kind="h200",
            seconds=((0, 0.5), (2, 0.5), (3, 0.25)),
            symbol_values=(("batch", 2), ("length", 3)),
            source="profiled on a, torch 2.13",
        ),
        unmeasured=((1, "it reads a file"),),
    )


@pytest.mark.services
@pytest.mark.parametrize("how", ["fail_on", "crash_on"])
async def test_what_a_daemon_cannot_profile_is_told_with_its_name(daemons: dict[str, ScriptedDaemon], how: str) -> None:
    setattr(daemons["a"], how, "profile")
    steps = profile(at(daemons["a"].address), "ab" * 32, REQUEST, CallDeadlines())
    assert await anext(steps) == Step(num_done=1, num_distinct=3)
    with pytest.raises(PlannerError, match=r"^a: profil") as caught:
        await anext(steps)
    reason = "SHAPE_MISMATCH" if how == "fail_on" else "DAEMON_ERROR"
    assert caught.value.metadata == {"reason": reason, "device_id": "a"}


@pytest.mark.services
async def test_a_daemon_that_is_gone_is_unavailable(daemons: dict[str, ScriptedDaemon]) -> None:
    await daemons["a"].stop()
    with pytest.raises(Unavailable, match=r"a: profiling: the daemon at .* cannot be reached"):
        await anext(profile(at(daemons["a"].address), "ab" * 32, REQUEST, CallDeadlines()))


@pytest.mark.services
async def test_leaving_a_profile_ends_it_on_the_daemon(daemons: dict[str, ScriptedDaemon]) -> None:
    daemons["a"].hold = "profile"
    steps = profile(at(daemons["a"].address), "ab" * 32, REQUEST, CallDeadlines())
    await anext(steps)
    await eventually(lambda: daemons["a"].asked == ["profile"])
    await steps.aclose()
    await eventually(lambda: daemons["a"].cancelled == ["profile"])


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("CONFLICT", Conflict),
        ("INVALID_ARGUMENT", InvalidArgument),
        ("INVALID_GRAPH", GraphError),
        ("UNSUPPORTED_OPERATOR", GraphError),
        ("CANCELLED", Cancelled),
        ("DAEMON_UNREACHABLE", Unavailable),
        ("DEADLINE_EXCEEDED", Unavailable),
        ("UNAVAILABLE", Unavailable),
        ("WORKER_DIED", Unavailable),
        ("NOT_FOUND", NotFound),
        ("SOMETHING_ELSE", PlannerError),
    ],
)
def test_each_reason_of_a_daemon_is_an_error_of_the_planner(reason: str, error: type[PlannerError]) -> None:
    refusal = _error(Failure(reason=reason, message="it said so", device_id="rack/gpu0"))
    assert type(refusal) is error
    assert (refusal.message, refusal.metadata) == (
        "rack/gpu0: it said so",
        {"reason": reason, "device_id": "rack/gpu0"},
    )
