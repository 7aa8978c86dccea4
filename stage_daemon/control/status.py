"""From error to gRPC status, in one place: calls raise stage_daemon.errors, this interceptor answers.

Each status carries a google.rpc.ErrorInfo with the error's stable reason, the stage and the device that it is about.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import grpc
import structlog
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from access.handlers import HandlerInterceptor, wrapped
from access.metrics import ServiceMetrics
from access.request_sizes import message_of
from stage_daemon import errors

DOMAIN = "partition_planner"
# ErrorInfo travels in a header: a long value would make the whole answer unreadable.
MAX_METADATA_ENTRIES = 12
MAX_METADATA_CHARACTERS = 200
MAX_MESSAGE_CHARACTERS = 1200
# Of an error that may pass by itself; told as a google.rpc.RetryInfo too.
RETRY_AFTER = "retry_after_seconds"

# The first class that fits counts.
CODES: dict[type[errors.DaemonError], int] = {
    errors.InvalidRequest: code_pb2.INVALID_ARGUMENT,
    errors.StateMismatch: code_pb2.DATA_LOSS,
    errors.Corrupt: code_pb2.DATA_LOSS,
    errors.ShapeMismatch: code_pb2.FAILED_PRECONDITION,
    errors.InsufficientMemory: code_pb2.RESOURCE_EXHAUSTED,
    errors.ResourceExhausted: code_pb2.RESOURCE_EXHAUSTED,
    errors.ResultsNotRead: code_pb2.RESOURCE_EXHAUSTED,
    errors.StateLost: code_pb2.ABORTED,
    errors.NotFound: code_pb2.NOT_FOUND,
    errors.Forbidden: code_pb2.PERMISSION_DENIED,
    errors.Conflict: code_pb2.FAILED_PRECONDITION,
    errors.WorkerDied: code_pb2.ABORTED,
    errors.StageFailed: code_pb2.ABORTED,
    errors.EdgeTimeout: code_pb2.DEADLINE_EXCEEDED,
    errors.Unavailable: code_pb2.UNAVAILABLE,
    errors.Cancelled: code_pb2.CANCELLED,
}

# Commands of the planner whose success is news.
LOGGED = frozenset({"LoadStages", "ConnectStages", "ReleaseDeployment"})

log = structlog.get_logger(__name__)


def status_of(error: errors.DaemonError) -> status_pb2.Status:
    """What `error` says, and when to ask again where that is known."""
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), code_pb2.INTERNAL)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in _facts(error).items():
        info.metadata[key] = value[:MAX_METADATA_CHARACTERS]
    details: list[Message] = [info]
    if RETRY_AFTER in error.metadata:
        wait = duration_pb2.Duration()
        wait.FromTimedelta(timedelta(seconds=float(error.metadata[RETRY_AFTER])))
        details.append(error_details_pb2.RetryInfo(retry_delay=wait))
    status = status_pb2.Status(code=code, message=error.message[:MAX_MESSAGE_CHARACTERS])
    for detail in details:
        status.details.add().Pack(detail)
    return status


class StatusInterceptor(HandlerInterceptor):
    """Covers all calls, and counts each."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics

    def around(self, handler: Any, method: str) -> Any:
        return wrapped(
            handler,
            lambda call: _one_answer(call, method, self._metrics),
            lambda call: _many_answers(call, method, self._metrics),
        )


def _one_answer(call: Callable[..., Any], method: str, metrics: ServiceMetrics) -> Callable[..., Any]:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        start = time.monotonic()
        with metrics.observe(method) as fails:
            try:
                result = await call(request, context)
            except Exception as error:
                await _abort(error, method, context, fails)
            else:
                _log_success(method, request, start)
                return result

    return answer


def _many_answers(call: Callable[..., Any], method: str, metrics: ServiceMetrics) -> Callable[..., Any]:
    async def answers(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        start = time.monotonic()
        with metrics.observe(method) as fails:
            try:
                async for item in call(request, context):
                    yield item
            except Exception as error:
                await _abort(error, method, context, fails)
            else:
                _log_success(method, request, start)

    return answers


def _log_success(method: str, request: Any, start: float) -> None:
    """Of commands about a deployment; batches, steps and questions are too many."""
    name = method.rpartition("/")[2]
    if name in LOGGED:
        request = message_of(request)
        log.info(
            "done",
            method=name,
            deployment_id=request.deployment_id,
            generation=request.generation,
            seconds=round(time.monotonic() - start, 3),
        )


async def _abort(
    error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any], fails: Callable[[str], None]
) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, errors.DaemonError):
        log.error("incident", method=method, exc_info=error)
        error = errors.DaemonError(f"internal error in {method}: {type(error).__name__}: {error}")
    fails(error.reason)
    log.info("refused", method=method, reason=error.reason, message=error.message)
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)


def _facts(error: errors.DaemonError) -> dict[str, str]:
    facts = dict(tuple(error.metadata.items())[:MAX_METADATA_ENTRIES])
    if error.stage is not None:
        facts["stage"] = str(error.stage)
    if error.device_id:
        facts["device_id"] = error.device_id
    return facts
