"""An error goes from one process to another and comes out as it was."""

from __future__ import annotations

import pytest

from protos.v1 import planner_pb2
from stage_daemon import errors
from stage_daemon.worker.failures import error_from_failure, failure_from_error

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DaemonError)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [None, 0, 3])
def test_every_kind_comes_back_whole(kind: type[errors.DaemonError], stage: int | None) -> None:
    error = kind("what was found", stage=stage, device_id="node0/cpu", edge=3)
    failure = planner_pb2.Failure.FromString(failure_from_error(error).SerializeToString())
    assert failure.HasField("stage") is (stage is not None)
    blamed = error_from_failure(failure)
    assert type(blamed) is kind
    assert (blamed.message, blamed.stage, blamed.device_id) == ("what was found", stage, "node0/cpu")
    assert blamed.metadata == {"edge": "3"}


def test_an_error_of_another_type_is_internal_and_names_it() -> None:
    failure = failure_from_error(KeyError("weight"))
    assert (failure.reason, failure.message) == ("INTERNAL", "KeyError: 'weight'")
    assert not failure.HasField("stage")


def test_a_reason_that_nobody_knows_is_an_error_all_the_same() -> None:
    error = error_from_failure(planner_pb2.Failure(reason="FROM_A_NEWER_VERSION", message="what it says"))
    assert type(error) is errors.DaemonError
    assert (error.message, error.stage, error.device_id) == ("what it says", None, None)
