"""Every error becomes a status with a stable reason and the facts behind it, small enough for a header."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from structlog.testing import capture_logs

from access.metrics import ServiceMetrics
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon import errors
from stage_daemon.control.server import SERVICE
from stage_daemon.control.status import (
    MAX_MESSAGE_CHARACTERS,
    MAX_METADATA_CHARACTERS,
    MAX_METADATA_ENTRIES,
    StatusInterceptor,
    status_of,
)
from tests.stage_daemon.control.daemons import refusal


def info_of(error: errors.DaemonError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert status_of(error).details[0].Unpack(info)
    return info


def test_who_may_ask_again_learns_when() -> None:
    status = status_of(errors.ResourceExhausted("full", retry_after_seconds=2.5))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5
    assert len(status_of(errors.ResourceExhausted("full")).details) == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.DaemonError, code_pb2.INTERNAL),
        (errors.InvalidRequest, code_pb2.INVALID_ARGUMENT),
        (errors.InvalidGraph, code_pb2.INVALID_ARGUMENT),
        (errors.UnsupportedOperator, code_pb2.INVALID_ARGUMENT),
        (errors.InvalidMicrobatch, code_pb2.INVALID_ARGUMENT),
        (errors.EdgeMismatch, code_pb2.INVALID_ARGUMENT),
        (errors.StateMismatch, code_pb2.DATA_LOSS),
        (errors.ShapeMismatch, code_pb2.FAILED_PRECONDITION),
        (errors.InsufficientMemory, code_pb2.RESOURCE_EXHAUSTED),
        (errors.NotFound, code_pb2.NOT_FOUND),
        (errors.Conflict, code_pb2.FAILED_PRECONDITION),
        (errors.BuffersInUse, code_pb2.FAILED_PRECONDITION),
        (errors.Released, code_pb2.FAILED_PRECONDITION),
        (errors.StateLost, code_pb2.ABORTED),
        (errors.ResultsNotRead, code_pb2.RESOURCE_EXHAUSTED),
        (errors.StageFailed, code_pb2.ABORTED),
        (errors.WorkerDied, code_pb2.ABORTED),
        (errors.EdgeTimeout, code_pb2.DEADLINE_EXCEEDED),
        (errors.Unavailable, code_pb2.UNAVAILABLE),
        (errors.Cancelled, code_pb2.CANCELLED),
    ],
)
def test_each_kind_has_its_code_and_reason(kind: type[errors.DaemonError], code: int) -> None:
    error = kind("what was found", stage=0, device_id="node0/cpu", found=7)
    status, info = status_of(error), info_of(error)
    assert (status.code, status.message) == (code, "what was found")
    assert (info.reason, info.domain) == (kind.reason, "partition_planner")
    assert dict(info.metadata) == {"found": "7", "stage": "0", "device_id": "node0/cpu"}


def test_every_reason_belongs_to_one_kind() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DaemonError)]
    assert len({kind.reason for kind in kinds}) == len(kinds)


def test_a_status_is_small_enough_for_a_header() -> None:
    many = {f"key{index}": "x" * 10_000 for index in range(100)}
    error = errors.Conflict("m" * 10_000, stage=3, device_id="node0/cpu", **many)
    metadata = dict(info_of(error).metadata)
    assert len(status_of(error).message) == MAX_MESSAGE_CHARACTERS
    assert len(metadata) == MAX_METADATA_ENTRIES + 2
    assert max(map(len, metadata.values())) == MAX_METADATA_CHARACTERS
    assert (metadata["stage"], metadata["device_id"]) == ("3", "node0/cpu")
    assert status_of(error).ByteSize() < 8192


def test_what_is_not_known_is_left_out() -> None:
    assert dict(info_of(errors.Conflict("no")).metadata) == {}


class Faulty(stage_daemon_pb2_grpc.StageDaemonServiceServicer):
    """Has bugs."""

    async def GetDaemonStatus(self, request: Any, context: Any) -> Any:
        raise ValueError("a bug")

    async def LoadStages(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield stage_daemon_pb2.LoadStagesResponse(stage=1)
        raise KeyError("another")

    async def ReleaseDeployment(self, request: Any, context: Any) -> Any:
        return stage_daemon_pb2.ReleaseDeploymentResponse()

    async def SendInputs(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "in its own words")
            yield


@pytest.mark.services
async def test_commands_that_succeed_are_logged_and_those_that_fail_are_not() -> None:
    server = grpc.aio.server(interceptors=[StatusInterceptor(ServiceMetrics(SERVICE))])
    stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(Faulty(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    with capture_logs() as lines:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            request = stage_daemon_pb2.ReleaseDeploymentRequest(deployment_id="dep-1", generation=3)
            await stub.ReleaseDeployment(request)
            await refusal(stub.LoadStages(stage_daemon_pb2.LoadStagesRequest(deployment_id="dep-2")))
    [done] = [line for line in lines if line["event"] == "done"]
    assert done.pop("seconds") >= 0
    assert (done["method"], done["deployment_id"], done["generation"]) == ("ReleaseDeployment", "dep-1", 3)
    await server.stop(0)


@pytest.mark.services
async def test_what_nobody_foresaw_is_an_internal_error_that_names_the_call() -> None:
    server = grpc.aio.server(interceptors=[StatusInterceptor(ServiceMetrics(SERVICE))])
    stage_daemon_pb2_grpc.add_StageDaemonServiceServicer_to_server(Faulty(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        service = "/partition_planner.v1.StageDaemonService"
        assert await refusal(stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest())) == (
            "INTERNAL",
            f"internal error in {service}/GetDaemonStatus: ValueError: a bug",
        )
        assert await refusal(stub.LoadStages(stage_daemon_pb2.LoadStagesRequest())) == (
            "INTERNAL",
            f"internal error in {service}/LoadStages: KeyError: 'another'",
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.SendInputs(iter([stage_daemon_pb2.SendInputsRequest()])):
                pass
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "in its own words",
        )
    await server.stop(0)
