"""Calls that many contract tests make, and what an error answer says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.v1 import graph_pb2, inventory_pb2, plan_pb2, planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.graphs import sha256
from tests.waiting import WAIT_SECONDS

GIBIBYTE = 1 << 30


@dataclass
class Refusal:
    """Filled once the block has ended."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    reason: str = ""
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def refused(reason: str) -> Iterator[Refusal]:
    """The block must raise an RpcError with an ErrorInfo of this reason."""
    refusal = Refusal()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield refusal
    error = caught.value
    status = rpc_status.from_call(error)
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "partition_planner"
    assert info.reason == reason, status.message
    refusal.code, refusal.reason, refusal.message = error.code(), info.reason, status.message
    refusal.metadata.update(info.metadata)


async def upload_stream(
    content: bytes, *, name: bytes | None = None, offset: int = 0, chunk_bytes: int = 1 << 20, end: int | None = None
) -> AsyncIterator[planner_pb2.UploadBlobRequest]:
    begin = planner_pb2.UploadBlobRequest.Begin(
        sha256=sha256(content) if name is None else name, size_bytes=len(content), offset_bytes=offset
    )
    yield planner_pb2.UploadBlobRequest(begin=begin)
    stop = len(content) if end is None else end
    for start in range(offset, stop, chunk_bytes):
        yield planner_pb2.UploadBlobRequest(chunk=content[start : min(start + chunk_bytes, stop)])


async def upload(planner: PlannerServiceStub, content: bytes) -> bytes:
    answer = await planner.UploadBlob(upload_stream(content), timeout=WAIT_SECONDS)
    assert answer.complete
    return sha256(content)


async def create_graph(
    planner: PlannerServiceStub, content: bytes, request_id: str = "", name: str = ""
) -> planner_pb2.GraphRecord:
    digest = await upload(planner, content)
    request = planner_pb2.CreateGraphRequest(sha256=digest, request_id=request_id, name=name)
    return await planner.CreateGraph(request, timeout=WAIT_SECONDS)


def weights_message(*files: bytes) -> graph_pb2.Weights:
    return graph_pb2.Weights(
        files=[graph_pb2.WeightFile(sha256=sha256(content), size_bytes=len(content)) for content in files]
    )


def inventory_message(*memory_bytes: int) -> inventory_pb2.Inventory:
    sizes = memory_bytes or (GIBIBYTE, GIBIBYTE)
    return inventory_pb2.Inventory(
        devices=[
            inventory_pb2.Device(id=f"node/cpu{index}", kind="cpu", host="node", memory_bytes=size)
            for index, size in enumerate(sizes)
        ]
    )


def balanced(num_stages: int = 2) -> plan_pb2.PlanOptions:
    return plan_pb2.PlanOptions(balanced=plan_pb2.BalancedMode(num_stages=num_stages))


async def create_plan(
    planner: PlannerServiceStub, content: bytes, options: plan_pb2.PlanOptions | None = None
) -> planner_pb2.PlanOperation:
    """A plan operation that has ended."""
    graph = await create_graph(planner, content)
    request = planner_pb2.CreatePlanRequest(
        graph_id=graph.id, inventory=inventory_message(), options=options or balanced()
    )
    operation = await planner.CreatePlan(request, timeout=WAIT_SECONDS)
    return await wait_plan(planner, operation.id)


async def wait_plan(planner: PlannerServiceStub, operation_id: str) -> planner_pb2.PlanOperation:
    request = planner_pb2.WaitPlanOperationRequest(operation_id=operation_id, timeout_seconds=60)
    operation = await planner.WaitPlanOperation(request, timeout=90)
    assert operation.ended_at.seconds, operation
    return operation


async def every_page(call: Callable[..., Awaitable[Any]], request: Any, size: int) -> list[Any]:
    """The answers of a list call, page by page, to the one that has no next."""
    answers = []
    while not answers or request.page_token:
        request.page_size = size
        answers.append(await call(request, timeout=WAIT_SECONDS))
        request.page_token = answers[-1].next_page_token
    return answers
