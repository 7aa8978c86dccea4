"""What a caller is answered where something went wrong: code, reason and facts of every error, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from access.metrics import ServiceMetrics
from planner import errors
from planner.api.computing import ComputationFailed, TimedOut, WorkerDied
from planner.api.status import StatusInterceptor, status_of

CODES = {
    errors.PlannerError: code_pb2.INTERNAL,
    errors.InvalidArgument: code_pb2.INVALID_ARGUMENT,
    errors.GraphError: code_pb2.INVALID_ARGUMENT,
    errors.UnsupportedModule: code_pb2.INVALID_ARGUMENT,
    errors.InventoryError: code_pb2.INVALID_ARGUMENT,
    errors.OptionsError: code_pb2.INVALID_ARGUMENT,
    errors.Infeasible: code_pb2.FAILED_PRECONDITION,
    errors.NotFound: code_pb2.NOT_FOUND,
    errors.Conflict: code_pb2.FAILED_PRECONDITION,
    errors.Unauthenticated: code_pb2.UNAUTHENTICATED,
    errors.Forbidden: code_pb2.PERMISSION_DENIED,
    errors.RequestIdReused: code_pb2.ALREADY_EXISTS,
    errors.NotDeployable: code_pb2.FAILED_PRECONDITION,
    errors.DeviceGone: code_pb2.FAILED_PRECONDITION,
    errors.DeviceFull: code_pb2.FAILED_PRECONDITION,
    errors.DeviceTaken: code_pb2.FAILED_PRECONDITION,
    errors.WrongOffset: code_pb2.OUT_OF_RANGE,
    errors.ResourceExhausted: code_pb2.RESOURCE_EXHAUSTED,
    errors.Corrupt: code_pb2.DATA_LOSS,
    errors.Unavailable: code_pb2.UNAVAILABLE,
    errors.AwayForNow: code_pb2.UNAVAILABLE,
    errors.NotLeading: code_pb2.UNAVAILABLE,
    errors.PlanInvariantError: code_pb2.INTERNAL,
    errors.DeploymentFailed: code_pb2.FAILED_PRECONDITION,
    errors.MicrobatchFailed: code_pb2.INTERNAL,
    errors.StateLost: code_pb2.INTERNAL,
    errors.BuffersInUse: code_pb2.FAILED_PRECONDITION,
    errors.StepNotApplied: code_pb2.INTERNAL,
    errors.Cancelled: code_pb2.CANCELLED,
    WorkerDied: code_pb2.INTERNAL,
    TimedOut: code_pb2.INTERNAL,
    ComputationFailed: code_pb2.INTERNAL,
}


def error_info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    [detail] = status.details
    assert detail.Unpack(info)
    return info


def test_who_may_ask_again_learns_when() -> None:
    status = status_of(errors.ResourceExhausted("full", retry_after_seconds=2.5))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_every_error_has_its_place_in_the_table() -> None:
    declared = {kind for kind in subclasses(errors.PlannerError) if kind.__module__.startswith("planner.errors")}
    assert declared <= CODES.keys()


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_each_error_is_told_with_its_code_reason_message_and_facts(kind: type[errors.PlannerError]) -> None:
    status = status_of(kind("what was found", stage=3, device_id="é"))
    info = error_info(status)
    assert (status.code, status.message) == (CODES[kind], "what was found")
    assert (info.reason, info.domain) == (kind.reason, "partition_planner")
    assert dict(info.metadata) == {"stage": "3", "device_id": "é"}


def test_what_is_long_is_cut_so_that_it_fits_into_a_header() -> None:
    facts = {f"key{index:02}": "v" * (199 + index) for index in range(14)}
    status = status_of(errors.NotFound("m" * 1201, **facts))
    assert status.message == "m" * 1199 + "…"
    metadata = error_info(status).metadata
    assert sorted(metadata) == sorted(facts)[:12]
    assert (metadata["key00"], metadata["key01"], metadata["key02"]) == ("v" * 199, "v" * 200, "v" * 199 + "…")
    assert status_of(errors.NotFound("m" * 1200)).message == "m" * 1200


class Greeter:
    """Answers or fails as the request says; one call of each of the four kinds."""

    async def one(self, request: bytes, context: Any) -> bytes:
        await fail(request, context)
        return request

    async def many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await fail(request, context)
        yield request

    async def gather(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return await self.one(b"".join([request async for request in requests]), context)

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for answer in self.many(b"".join([request async for request in requests]), context):
            yield answer

    def synchronous(self, request: bytes, context: Any) -> bytes:
        return request


async def fail(request: bytes, context: Any) -> None:
    if request == b"missing":
        raise errors.NotFound("no such thing", thing="x")
    if request == b"unforeseen":
        raise KeyError("secret of the server")
    if request == b"abort":
        await context.abort(grpc.StatusCode.ABORTED, "by the call itself")


class World:
    def __init__(self, channel: grpc.aio.Channel, metrics: ServiceMetrics) -> None:
        self._channel = channel
        self._metrics = metrics

    async def ask(self, method: str, request: bytes) -> list[bytes]:
        path = f"/test.Greeter/{method}"
        match method:
            case "many":
                return [answer async for answer in self._channel.unary_stream(path)(request, timeout=60)]
            case "gather":
                return [await self._channel.stream_unary(path)(iter([request]), timeout=60)]
            case "chat":
                return [answer async for answer in self._channel.stream_stream(path)(iter([request]), timeout=60)]
            case _:
                # Not as a stream: where the refusal overtakes the message, gRPC says that it could not send.
                return [await self._channel.unary_unary(path)(request, timeout=60)]

    async def counts(self, method: str, outcome: str, number: int) -> None:
        """A call is counted once it has been answered, which is after the client has the answer."""
        labels = {"method": method, "outcome": outcome}
        async with asyncio.timeout(60):
            while self._metrics.registry.get_sample_value("planner_calls_total", labels) != number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    greeter, metrics = Greeter(), ServiceMetrics("planner")
    handlers = {
        "one": grpc.unary_unary_rpc_method_handler(greeter.one),
        "many": grpc.unary_stream_rpc_method_handler(greeter.many),
        "gather": grpc.stream_unary_rpc_method_handler(greeter.gather),
        "chat": grpc.stream_stream_rpc_method_handler(greeter.chat),
        "synchronous": grpc.unary_unary_rpc_method_handler(greeter.synchronous),
    }
    server = grpc.aio.server(interceptors=[StatusInterceptor(metrics)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Greeter", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield World(channel, metrics)
    await server.stop(0)


KINDS_OF_CALLS = ["one", "many", "gather", "chat"]


@pytest.mark.services
@pytest.mark.parametrize("method", KINDS_OF_CALLS)
async def test_calls_of_every_kind_answer_and_fail_alike(world: World, method: str) -> None:
    assert (await world.ask(method, b"hello"))[-1] == b"hello"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.ask(method, b"missing")
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info = error_info(status)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
    assert (info.reason, dict(info.metadata)) == ("NOT_FOUND", {"thing": "x"})
    await world.counts(method, "OK", 1)
    await world.counts(method, "NOT_FOUND", 1)


@pytest.mark.services
@pytest.mark.parametrize("method", KINDS_OF_CALLS)
async def test_what_nobody_foresaw_is_an_incident_that_says_nothing_of_the_server(world: World, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.ask(method, b"unforeseen")
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info = error_info(status)
    assert (caught.value.code(), info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert info.metadata["incident_id"] in status.message
    assert "secret" not in status.message
    await world.counts(method, "INTERNAL", 1)
    assert (await world.ask(method, b"hello"))[-1] == b"hello"


@pytest.mark.services
async def test_a_call_that_aborts_itself_is_left_to_it(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.ask("one", b"abort")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "by the call itself")


@pytest.mark.services
async def test_synchronous_and_unknown_calls_pass(world: World) -> None:
    assert await world.ask("synchronous", b"hello") == [b"hello"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.ask("nothing", b"hello")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
