"""When a daemon that is silent, or that came back as another, ends what stood on it; and which progress is told.

Leases are of 8 seconds, checks come each second, and the clock is a number.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from planner.dispatch.lease import Leases, failure_of
from planner.dispatch.progress import worth_telling
from planner.store.deployment_records import Deployment, DeploymentState, StagePlacement

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def placement(stage: int, device_id: str) -> StagePlacement:
    return StagePlacement(stage=stage, device_id=device_id, daemon_address=f"{device_id}:1", incarnation_id="first")


def leases_of(**incarnations: str) -> Leases:
    """All heard at 0."""
    leases = Leases(8.0, 0.0)
    for device_id, incarnation_id in incarnations.items():
        leases.hear(device_id, incarnation_id, 0.0)
    return leases


def check(leases: Leases, *times: float) -> None:
    for now in times:
        leases.attend(now, leases.renewals(now))


def remaining(leases: Leases, now: float) -> dict[str, float]:
    return {renewal.device_id: renewal.remaining_seconds for renewal in leases.renewals(now)}


def test_a_daemon_that_missed_a_heartbeat_is_late_while_its_lease_lasts() -> None:
    leases = leases_of(a="first")
    assert [leases.is_late("a", now) for now in (2.7, 3.5, 4.0, 7.9)] == [False, False, True, True]
    leases.hear("a", "first", 4.0)
    assert not leases.is_late("a", 7.0)
    assert not leases.is_late("b", 100.0)


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
    assert failure_of(DEPLOYMENT, leases_of(a="first", b="first", c="other")) is None


@pytest.mark.parametrize(
    ("present", "reason"),
    [({"a": "first"}, "LEASE_EXPIRED"), ({"a": "first", "b": "second"}, "DAEMON_RESTARTED")],
)
def test_the_failure_names_the_stage_and_the_device(present: dict[str, str], reason: str) -> None:
    failure = failure_of(DEPLOYMENT, leases_of(**present))
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == (reason, 1, "b")
    assert failure.message.startswith("the daemon of b ")


def test_of_several_the_one_of_the_first_stage_is_told() -> None:
    failure = failure_of(DEPLOYMENT, leases_of(a="second"))
    assert failure is not None
    assert (failure.reason, failure.stage, failure.message) == (
        "DAEMON_RESTARTED",
        0,
        "the daemon of a was started anew",
    )


def test_a_daemon_goes_at_the_first_check_after_a_lease_of_silence() -> None:
    leases = leases_of(a="first", b="first")
    for now in range(1, 9):
        leases.hear("b", "first", now - 0.5)
        check(leases, now)
    assert leases.find("a") is not None
    check(leases, 9)
    assert leases.find("a") is None
    assert leases.find("b") is not None
    leases.hear("a", "first", 9.5)
    check(leases, *range(10, 18))
    assert leases.find("a") is not None
    assert leases.find("b") is None


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param((1, 2, 3, 30), id="the process stood still"),
        pytest.param((1, 2, 3, 6), id="some checks could not write"),
        pytest.param((1, 3.1, 5.2, 7.3, 9.4, 11.5), id="it is always late"),
    ],
)
def test_time_in_which_checks_failed_or_were_late_is_no_silence(checks: tuple[float, ...]) -> None:
    leases = leases_of(a="first")
    check(leases, *checks)
    end = checks[-1]
    assert remaining(leases, end) == {"a": 8.0}
    check(leases, *(end + second for second in range(1, 9)))
    assert leases.find("a") is not None
    check(leases, end + 9)
    assert leases.find("a") is None


def test_who_was_gone_before_the_stall_stays_gone() -> None:
    leases = leases_of(a="first")
    check(leases, *range(1, 10), 30)
    assert leases.find("a") is None
    assert leases.renewals(31) == ()


def test_a_check_writes_who_was_heard_since_the_last_and_else_one_as_it_stands() -> None:
    leases = leases_of(a="first", b="first", c="first")
    assert remaining(leases, 0) == {"a": 8.0, "b": 8.0, "c": 8.0}
    check(leases, 1)
    leases.hear("b", "first", 1.5)
    assert remaining(leases, 2) == {"b": 7.5}
    check(leases, 2)
    assert remaining(leases, 3) == {"a": 5.0}
    assert {renewal.incarnation_id for renewal in leases.renewals(20)} == {"first"}
    assert remaining(leases, 20) == {"a": 8.0, "b": 8.0, "c": 8.0}


def test_progress_is_told_in_steps_of_a_twentieth_and_at_both_ends() -> None:
    num_losses: list[int] = []
    for loaded in range(1001):
        if worth_telling(num_losses[-1] if num_losses else None, loaded, 1000):
            num_losses.append(loaded)
    assert num_losses == list(range(0, 1001, 50))
    assert not worth_telling(970, 999, 1000)
    assert worth_telling(970, 1000, 1000)
    assert worth_telling(None, 0, 0)
    assert not worth_telling(0, 0, 0)
    assert not worth_telling(1000, 1000, 1000)
