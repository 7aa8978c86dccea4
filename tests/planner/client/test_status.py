"""Failures that travel inside of messages, as errors of their own types and with their place."""

from __future__ import annotations

import grpc
import pytest

from planner import errors
from planner.client.records import Failure
from planner.client.status import error_from_failure, error_from_rpc

REASONS = [
    errors.GraphError,
    errors.OptionsError,
    errors.Infeasible,
    errors.NotDeployable,
    errors.DeviceGone,
    errors.MicrobatchFailed,
    errors.Cancelled,
]


@pytest.mark.parametrize("kind", REASONS)
def test_a_known_reason_is_its_type(kind: type[errors.PlannerError]) -> None:
    error = error_from_failure(Failure(reason=kind.reason, message="m"), otherwise=errors.DeploymentFailed)
    assert type(error) is kind
    assert (error.message, error.metadata) == ("m", {"reason": kind.reason})


def test_another_reason_is_what_the_caller_says_and_keeps_its_facts() -> None:
    failure = Failure(reason="WORKER_DIED", message="", stage=0, device_id="n1/gpu0", metadata={"exit_code": "1"})
    error = error_from_failure(failure, otherwise=errors.DeploymentFailed)
    assert type(error) is errors.DeploymentFailed
    assert error.message == "WORKER_DIED"
    assert error.metadata == {"exit_code": "1", "reason": "WORKER_DIED", "stage": "0", "device_id": "n1/gpu0"}


def test_facts_of_the_failure_win_over_its_fields() -> None:
    failure = Failure(reason="R", message="m", stage=1, device_id="a", metadata={"stage": "7", "reason": "INNER"})
    error = error_from_failure(failure, otherwise=errors.PlannerError)
    assert error.metadata == {"stage": "7", "reason": "INNER", "device_id": "a"}
    assert failure.metadata == {"stage": "7", "reason": "INNER"}


@pytest.mark.parametrize(
    ("stage", "device_id", "message", "place"),
    [
        (None, "", "out of memory", ""),
        (0, "", "out of memory", " in stage 0"),
        (None, "a", "out of memory", " on device a"),
        (2, "n1/gpu0", "it died", " in stage 2 on device n1/gpu0"),
        (2, "n1/gpu0", "stage 2 on n1/gpu0: it died", ""),
        (2, "n1/gpu0", "n1/gpu0 is gone", " in stage 2"),
        (2, "n1/gpu0", "stage 2 is gone", " on device n1/gpu0"),
    ],
)
def test_a_place_is_named_unless_the_message_does(stage: int | None, device_id: str, message: str, place: str) -> None:
    assert Failure(reason="R", message=message, stage=stage, device_id=device_id).place == place


class Bare(grpc.RpcError):
    """What gRPC raises before there is a call."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str | None:
        return None


def test_an_error_that_is_no_call_is_told_by_its_code() -> None:
    error = error_from_rpc(Bare(), unreachable="nobody answers at x:1")
    assert type(error) is errors.Unavailable
    assert error.message == "nobody answers at x:1 ()"


@pytest.mark.parametrize(
    ("message", "place"),
    [("it died", " in copy 1 of stage 2 on device a"), ("copy 1 of stage 2 on device 'a' is gone", "")],
)
def test_a_copy_is_named_where_its_stage_has_several(message: str, place: str) -> None:
    failure = Failure(reason="R", message=message, stage=2, device_id="a", metadata={"copy": "1"})
    assert failure.place == place
