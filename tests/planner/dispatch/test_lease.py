"""When a daemon that is silent, or that came back as another, ends what stood on it; and which progress is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from planner.cost.inventory import Device
from planner.dispatch.lease import describe_stages, failure_of, lease_end, overslept
from planner.dispatch.progress import worth_telling
from planner.store.deployment_records import Daemon, Deployment, DeploymentState, StagePlacement

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def placement(stage: int, device_id: str) -> StagePlacement:
    return StagePlacement(stage=stage, device_id=device_id, daemon_address=f"{device_id}:1", incarnation_id="first")


def daemon(device_id: str, incarnation_id: str = "first", seconds_left: float = 5.0) -> Daemon:
    return Daemon(
        device=Device(id=device_id, kind="cpu", host="node", memory_bytes=1),
        address=f"{device_id}:1",
        incarnation_id=incarnation_id,
        torch_version="2.13.0",
        lease_expires_at=NOW + timedelta(seconds=seconds_left),
    )


DEPLOYMENT = Deployment(
    id="dep-1",
    plan_id="plan-1",
    graph_id="00",
    state=DeploymentState.READY,
    generation=1,
    stages=(placement(0, "a"), placement(1, "b"), placement(2, "a")),
    created_at=NOW,
)


def test_live_daemons_keep_their_deployment() -> None:
    assert failure_of(DEPLOYMENT, [daemon("a"), daemon("b"), daemon("c", seconds_left=-1)], NOW) is None


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (None, "LEASE_EXPIRED"),
        (daemon("b", seconds_left=0.0), "LEASE_EXPIRED"),
        (daemon("b", incarnation_id="second"), "DAEMON_RESTARTED"),
    ],
)
def test_the_failure_names_the_stage_and_the_device(second: Daemon | None, reason: str) -> None:
    failure = failure_of(DEPLOYMENT, [daemon("a"), *([second] if second else [])], NOW)
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == (reason, 1, "b")
    assert failure.message.startswith("stage 1 on b: ")


def test_a_daemon_that_is_silent_is_told_before_one_that_was_started_anew_by_the_order_of_stages() -> None:
    anew, silent = daemon("a", incarnation_id="second"), daemon("b", seconds_left=-1)
    failure = failure_of(DEPLOYMENT, [anew, silent], NOW)
    assert failure is not None
    assert (failure.reason, failure.stage, failure.message) == (
        "DAEMON_RESTARTED",
        0,
        "stages 0, 2 on a: its daemon was started anew",
    )
    both = failure_of(DEPLOYMENT, [daemon("a", incarnation_id="second", seconds_left=0), silent], NOW)
    assert both is not None
    assert (both.reason, both.device_id) == ("LEASE_EXPIRED", "a")


def test_stages_of_a_device() -> None:
    assert describe_stages(DEPLOYMENT, "a") == "stages 0, 2 on a"
    assert DEPLOYMENT.device_ids() == ("a", "b")


def test_lease_times() -> None:
    assert lease_end(NOW, 2.5) - NOW == timedelta(seconds=2.5)
    assert overslept(6.0, 10.0)
    assert overslept(5.001, 10.0)
    assert not overslept(5.0, 10.0)
    assert not overslept(1.3, 10.0)


def test_progress_is_told_in_steps_of_a_twentieth_and_at_both_ends() -> None:
    told: list[int] = []
    for loaded in range(1001):
        if worth_telling(told[-1] if told else None, loaded, 1000):
            told.append(loaded)
    assert told == list(range(0, 1001, 50))
    assert worth_telling(None, 0, 0)
    assert not worth_telling(0, 0, 0)
    assert not worth_telling(1000, 1000, 1000)
