"""Daemons in this process, told what to do as the planner would: servers, supervisors and workers are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import torch
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.v1 import graph_pb2, stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.control.server import DaemonServer
from stage_daemon.control.supervisor import Supervisor
from tests.stage_daemon.runtime.workers import Preparation, Prepared, datum, decoded
from tests.waiting import WAIT_SECONDS

BATCH = torch.export.Dim("batch", min=1, max=64)
SHAPES = {"x": {0: BATCH}}


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def two_layers() -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers().eval()


def prepared(preparation: Preparation, deployment_id: str, devices: Sequence[int] = (0, 1)) -> Prepared:
    """TwoLayers in two stages, on the devices `node0/cpu` and `node1/cpu`."""
    return preparation.prepare(
        two_layers(), (torch.zeros(2, 8),), SHAPES, ("second",), devices, deployment_id=deployment_id
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    supervisor: Supervisor
    address: str
    stub: Any

    async def status(self) -> stage_daemon_pb2.GetDaemonStatusResponse:
        return await self.stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=WAIT_SECONDS)

    async def load(self, request: stage_daemon_pb2.LoadStagesRequest) -> list[stage_daemon_pb2.LoadStagesResponse]:
        return [response async for response in self.stub.LoadStages(request, timeout=WAIT_SECONDS)]

    async def release(self, deployment_id: str, *, drain: bool = False) -> None:
        request = stage_daemon_pb2.ReleaseDeploymentRequest(
            deployment_id=deployment_id, drain=drain, drain_seconds=WAIT_SECONDS
        )
        await self.stub.ReleaseDeployment(request, timeout=WAIT_SECONDS)


@asynccontextmanager
async def serving(
    device_id: str, planner_address: str, worker_silence_seconds: float = WAIT_SECONDS
) -> AsyncIterator[Daemon]:
    """A daemon that no planner knows: `planner_address` is where it reads blobs."""
    supervisor = Supervisor(
        device_id=device_id,
        torch_device="cpu",
        planner_address=planner_address,
        listen_host="127.0.0.1",
        worker_silence_seconds=worker_silence_seconds,
    )
    server = DaemonServer("127.0.0.1:0", "", supervisor, max_sessions_per_caller=1)
    await server.start()
    async with grpc.aio.insecure_channel(str(server.endpoint)) as channel:
        try:
            yield Daemon(
                supervisor=supervisor,
                address=str(server.endpoint),
                stub=stage_daemon_pb2_grpc.StageDaemonServiceStub(channel),
            )
        finally:
            await supervisor.close()
            await server.stop(0)


@asynccontextmanager
async def two_daemons(preparation: Preparation) -> AsyncIterator[dict[str, Daemon]]:
    """By device id: `node0/cpu` and `node1/cpu`."""
    async with serving("node0/cpu", preparation.address) as one, serving("node1/cpu", preparation.address) as other:
        yield {"node0/cpu": one, "node1/cpu": other}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """A running deployment; `first` takes its inputs, `last` gives its outputs."""

    id: str
    daemons: Mapping[str, Daemon]
    first: Any
    last: Any

    async def release(self, *, drain: bool = False) -> None:
        await asyncio.gather(*(daemon.release(self.id, drain=drain) for daemon in self.daemons.values()))


async def roll_out(daemons: Mapping[str, Daemon], prepared: Prepared) -> RolledOut:
    """As the planner does it: all load, one opens the rendezvous, all connect."""
    requests = prepared.requests
    await asyncio.gather(*(daemons[device_id].load(request) for device_id, request in requests.load.items()))
    first, last = daemons[prepared.device_ids[0]], daemons[prepared.device_ids[-1]]
    [(deployment_id, generation)] = {(one.deployment_id, one.generation) for one in requests.load.values()}
    opened = await first.stub.OpenRendezvous(
        stage_daemon_pb2.OpenRendezvousRequest(deployment_id=deployment_id, generation=generation)
    )
    for request in requests.connect.values():
        request.rendezvous_address = opened.address
    await asyncio.gather(
        *(daemons[device_id].stub.ConnectStages(request) for device_id, request in requests.connect.items())
    )
    used = {device_id: daemons[device_id] for device_id in requests.load}
    return RolledOut(id=deployment_id, daemons=used, first=first.stub, last=last.stub)


def opened(deployment_id: str, session_id: int) -> stage_daemon_pb2.OpenSession:
    return stage_daemon_pb2.OpenSession(deployment_id=deployment_id, session_id=session_id)


def microbatches(batches: Sequence[torch.Tensor]) -> list[stage_daemon_pb2.SendInputsRequest]:
    return [
        stage_daemon_pb2.SendInputsRequest(
            microbatch=stage_daemon_pb2.Microbatch(sequence=index + 1, values=[datum(batch)])
        )
        for index, batch in enumerate(batches)
    ]


def inputs(
    deployment_id: str, session_id: int, batches: Sequence[torch.Tensor]
) -> list[stage_daemon_pb2.SendInputsRequest]:
    return [stage_daemon_pb2.SendInputsRequest(open=opened(deployment_id, session_id)), *microbatches(batches)]


async def open_outputs(deployment: RolledOut, session_id: int) -> Any:
    """The stream of results, after its first message has said that the session is open."""
    request = stage_daemon_pb2.ReceiveOutputsRequest(open=opened(deployment.id, session_id))
    results = deployment.last.ReceiveOutputs(request, timeout=WAIT_SECONDS)
    response = await results.read()
    assert (response.sequence, response.WhichOneof("content")) == (0, None)
    return results


async def run_session(
    deployment: RolledOut, session_id: int, batches: Sequence[torch.Tensor]
) -> list[tuple[int, torch.Tensor]]:
    """(sequence, result) in order."""
    results = await open_outputs(deployment, session_id)
    sending = deployment.first.SendInputs(iter(inputs(deployment.id, session_id, batches)), timeout=WAIT_SECONDS)
    assert [answer.sequence async for answer in sending] == list(range(1, len(batches) + 1))
    responses = [await results.read() for _ in batches]
    results.cancel()
    return [(response.sequence, *decoded(response)) for response in responses]


def assert_results(batches: Sequence[torch.Tensor], results: Sequence[tuple[int, torch.Tensor]]) -> None:
    """What TwoLayers makes of the batches, in order."""
    with torch.no_grad():
        expected = [two_layers()(batch) for batch in batches]
    assert [sequence for sequence, _ in results] == list(range(1, len(batches) + 1))
    assert all(torch.equal(result, expected) for (_, result), expected in zip(results, expected, strict=True))


async def refusal(call: Any) -> tuple[str, str]:
    """(reason, message) of the error that an awaitable call, or a stream that is read to its end, ends with."""

    async def run() -> None:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(run(), WAIT_SECONDS)
    status = rpc_status.from_call(caught.value)
    assert status is not None, caught.value
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "partition_planner"
    return info.reason, status.message


def malformed(dims: Sequence[int] = (2, 8)) -> stage_daemon_pb2.SendInputsRequest:
    """A first microbatch of too few bytes."""
    tensor = stage_daemon_pb2.Tensor(dtype=graph_pb2.DTYPE_FLOAT32, dims=dims, data=b"1234")
    values = [stage_daemon_pb2.Datum(tensor=tensor)]
    return stage_daemon_pb2.SendInputsRequest(microbatch=stage_daemon_pb2.Microbatch(sequence=1, values=values))
