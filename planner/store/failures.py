"""Failures as columns, for every table that says why something ended badly."""

from __future__ import annotations

from typing import Any

from planner.errors import PlannerError
from planner.store.deployment_records import Failure
from planner.store.tables import FailureColumns


def failure_of(error: PlannerError) -> Failure:
    """The stage and the device are taken out of the error's metadata, where it has them."""
    stage = error.metadata.get("stage", "")
    return Failure(
        reason=error.metadata.get("reason", error.reason),
        message=error.message,
        stage=int(stage) if stage.isdecimal() else None,
        device_id=error.metadata.get("device_id", error.metadata.get("device", "")),
        metadata=error.metadata,
    )


def failure_from_row(row: FailureColumns) -> Failure | None:
    if row.failure_reason is None:
        return None
    return Failure(
        reason=row.failure_reason,
        message=row.failure_message or "",
        stage=row.failure_stage,
        device_id=row.failure_device_id or "",
        metadata=row.failure_metadata or {},
    )


def failure_columns(failure: Failure) -> dict[str, Any]:
    return {
        "failure_reason": failure.reason,
        "failure_message": failure.message,
        "failure_stage": failure.stage,
        "failure_device_id": failure.device_id,
        "failure_metadata": dict(failure.metadata),
    }
