"""Errors to Failure messages and back: what one process raises, another can raise again."""

from __future__ import annotations

from protos.v1 import planner_pb2
from stage_daemon.errors import DaemonError


def failure_from_error(error: BaseException) -> planner_pb2.Failure:
    """An error that is no DaemonError gets the reason INTERNAL and its type's name in the message."""
    if not isinstance(error, DaemonError):
        return planner_pb2.Failure(reason=DaemonError.reason, message=f"{type(error).__name__}: {error}")
    return planner_pb2.Failure(
        reason=error.reason,
        message=error.message,
        stage=error.stage,
        device_id=error.device_id or "",
        metadata=error.metadata,
    )


def error_from_failure(failure: planner_pb2.Failure) -> DaemonError:
    """The error of the failure's own type; DaemonError itself for a reason that no type has."""
    error_type = _types_by_reason().get(failure.reason, DaemonError)
    error = error_type(
        failure.message,
        stage=failure.stage if failure.HasField("stage") else None,
        device_id=failure.device_id or None,
    )
    error.metadata = dict(failure.metadata)
    return error


def _types_by_reason() -> dict[str, type[DaemonError]]:
    by_reason: dict[str, type[DaemonError]] = {}
    waiting: list[type[DaemonError]] = [DaemonError]
    while waiting:
        error_type = waiting.pop()
        by_reason.setdefault(error_type.reason, error_type)
        waiting.extend(error_type.__subclasses__())
    return by_reason
