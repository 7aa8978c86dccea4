"""What a failure keeps of an error, and that its columns hold all of it."""

from __future__ import annotations

import pytest

from planner.errors import Infeasible, InvalidArgument, NotFound, PlannerError
from planner.store.deployment_records import Failure
from planner.store.failures import failure_columns, failure_from_row, failure_of
from planner.store.tables import PlanOperationRow


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            Infeasible("no room", stage=3, device="a"),
            Failure(
                reason="INFEASIBLE",
                message="no room",
                stage=3,
                device_id="a",
                metadata={"stage": "3", "device": "a"},
            ),
        ),
        (
            NotFound("gone", device_id="b", device="a", stage="head"),
            Failure(
                reason="NOT_FOUND",
                message="gone",
                device_id="b",
                metadata={"device_id": "b", "device": "a", "stage": "head"},
            ),
        ),
        (
            PlannerError("lost", reason="WORKER_DIED"),
            Failure(reason="WORKER_DIED", message="lost", metadata={"reason": "WORKER_DIED"}),
        ),
        (InvalidArgument("no"), Failure(reason="INVALID_ARGUMENT", message="no")),
    ],
)
def test_the_failure_of_an_error(error: PlannerError, failure: Failure) -> None:
    assert failure_of(error) == failure


@pytest.mark.parametrize(
    "failure",
    [
        Failure(reason="A", message="b", stage=0, device_id="c", metadata={"d": "é"}),
        Failure(reason="A", message=""),
    ],
)
def test_columns_hold_the_whole_failure(failure: Failure) -> None:
    assert failure_from_row(PlanOperationRow(**failure_columns(failure))) == failure


def test_a_row_without_a_reason_has_not_failed() -> None:
    assert failure_from_row(PlanOperationRow(failure_message="left over")) is None
