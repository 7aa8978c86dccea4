"""From a gRPC status back to the type of error that the server raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from access.unanswered import is_unanswered
from planner import errors
from planner.client.records import Failure


def error_from_rpc(error: grpc.RpcError, *, unreachable: str) -> errors.PlannerError:
    """`unreachable` is what to say when nobody answered: which address, and how to start a server there."""
    code, details = error.code(), error.details() or ""
    info = _error_info(error)
    if info is not None:
        return _build(_type_of(info.reason, code), details, dict(info.metadata))
    if is_unanswered(error):
        return errors.Unavailable(f"{unreachable} ({details})")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(f"no answer in time: {unreachable}")
    return _build(_BY_CODE.get(code, errors.PlannerError), details or code.name, {})


def error_from_failure(failure: Failure, *, otherwise: type[errors.PlannerError]) -> errors.PlannerError:
    """The error that a Failure stands for; `otherwise` where its reason is none of the planner's own."""
    metadata = dict(failure.metadata)
    metadata.setdefault("reason", failure.reason)
    if failure.stage is not None:
        metadata.setdefault("stage", str(failure.stage))
    if failure.device_id:
        metadata.setdefault("device_id", failure.device_id)
    return _build(_BY_REASON.get(failure.reason, otherwise), failure.message or failure.reason, metadata)


def reason_of(error: grpc.RpcError) -> str:
    """As servers name it; empty where none is given."""
    info = _error_info(error)
    return info.reason if info is not None else ""


def _error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    if not isinstance(error, grpc.Call):
        return None
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None


def _type_of(reason: str, code: grpc.StatusCode) -> type[errors.PlannerError]:
    return _BY_REASON.get(reason) or _BY_CODE.get(code, errors.PlannerError)


def _build(kind: type[errors.PlannerError], message: str, metadata: Mapping[str, str]) -> errors.PlannerError:
    error = kind(message)
    error.metadata = dict(metadata)
    return error


def _tree(root: type[errors.PlannerError]) -> Iterator[type[errors.PlannerError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_BY_REASON = {kind.reason: kind for kind in _tree(errors.PlannerError) if kind.__module__ == errors.__name__}

_BY_CODE: Mapping[grpc.StatusCode, type[errors.PlannerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhausted,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.DATA_LOSS: errors.Corrupt,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
}
