"""From error to gRPC status, in one place: calls raise planner.errors, this interceptor answers.

Each status carries a google.rpc.ErrorInfo with the error's stable reason. An error that nobody foresaw becomes INTERNAL
with an incident id, which the log has beside the traceback, and the server goes on. What changed something and
succeeded is logged too, with the id that it is about and its seconds.
"""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
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
from planner import errors
from planner.api.rules import RULES, Rule

DOMAIN = "partition_planner"
# ErrorInfo travels in a header: a long value would make the whole answer unreadable.
MAX_METADATA_ENTRIES = 12
MAX_METADATA_CHARACTERS = 200
MAX_MESSAGE_CHARACTERS = 1200
# Of an error that may pass by itself; told as a google.rpc.RetryInfo too.
RETRY_AFTER = "retry_after_seconds"

# The first class that fits counts, so subclasses stand before their bases.
CODES: Mapping[type[errors.PlannerError], int] = {
    errors.InvalidArgument: code_pb2.INVALID_ARGUMENT,
    errors.Infeasible: code_pb2.FAILED_PRECONDITION,
    errors.Unauthenticated: code_pb2.UNAUTHENTICATED,
    errors.Forbidden: code_pb2.PERMISSION_DENIED,
    errors.NotFound: code_pb2.NOT_FOUND,
    errors.RequestIdReused: code_pb2.ALREADY_EXISTS,
    errors.WrongOffset: code_pb2.OUT_OF_RANGE,
    errors.Conflict: code_pb2.FAILED_PRECONDITION,
    errors.ResourceExhausted: code_pb2.RESOURCE_EXHAUSTED,
    errors.Corrupt: code_pb2.DATA_LOSS,
    errors.Unavailable: code_pb2.UNAVAILABLE,
    errors.DeploymentFailed: code_pb2.FAILED_PRECONDITION,
    errors.Cancelled: code_pb2.CANCELLED,
}

log = structlog.get_logger(__name__)


def status_of(error: errors.PlannerError) -> status_pb2.Status:
    """The google.rpc.Status that says what `error` says, and when to ask again where that is known."""
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), code_pb2.INTERNAL)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in tuple(error.metadata.items())[:MAX_METADATA_ENTRIES]:
        info.metadata[key] = _short(value, MAX_METADATA_CHARACTERS)
    details: list[Message] = [info]
    if RETRY_AFTER in error.metadata:
        wait = duration_pb2.Duration()
        wait.FromTimedelta(timedelta(seconds=float(error.metadata[RETRY_AFTER])))
        details.append(error_details_pb2.RetryInfo(retry_delay=wait))
    status = status_pb2.Status(code=code, message=_short(error.message, MAX_MESSAGE_CHARACTERS))
    for detail in details:
        status.details.add().Pack(detail)
    return status


class StatusInterceptor(HandlerInterceptor):
    """Covers unary and streaming calls alike, and counts each with its outcome."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics

    def around(self, handler: Any, method: str) -> Any:
        return wrapped(
            handler,
            lambda call: self._one_answer(call, method),
            lambda call: self._many_answers(call, method),
        )

    def _one_answer(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(call):
            return call  # a synchronous servicer (health, reflection) answers for itself

        rule = RULES.get(method)

        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            start = time.monotonic()
            with self._metrics.observe(method) as fails:
                try:
                    result = await call(request, context)
                except Exception as error:
                    await _abort(error, method, context, fails)
                else:
                    if rule is not None and rule.audited:
                        seconds = round(time.monotonic() - start, 3)
                        about = _about(rule, request, result)
                        log.info("done", method=method.rpartition("/")[2], id=about, seconds=seconds)
                    return result

        return answer

    def _many_answers(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def answers(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            with self._metrics.observe(method) as fails:
                try:
                    async for item in call(request, context):
                        yield item
                except Exception as error:
                    await _abort(error, method, context, fails)

        return answers


async def _abort(
    error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any], fails: Callable[[str], None]
) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    declared = error if isinstance(error, errors.PlannerError) else _incident(error, method)
    if declared is error:
        log.info("refused", method=method, reason=declared.reason, message=declared.message)
    fails(declared.reason)
    status = rpc_status.to_status(status_of(declared))
    await context.abort(status.code, status.details, status.trailing_metadata)


def _about(rule: Rule, request: Any, result: Any) -> str:
    """The id of what was made or changed."""
    return str(getattr(result, "id", "") or (getattr(message_of(request), rule.subject) if rule.subject else ""))


def _incident(error: Exception, method: str) -> errors.PlannerError:
    incident_id = uuid.uuid4().hex[:12]
    log.error("incident", incident_id=incident_id, method=method, exc_info=error)
    message = f"internal error {incident_id}: the planner's log has the details under that id"
    return errors.PlannerError(message, incident_id=incident_id)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
