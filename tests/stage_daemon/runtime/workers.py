"""Real workers on this machine: a planned module, a blob service, a rendezvous, one process per device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent import futures
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import torch

from access.tickets import purpose_key
from planner.client.export import export
from planner.dispatch.stage_modules import StageRequests, prepare_requests
from planner.graph.ir import Graph, WeightFile
from planner.plan.options import Routing
from planner.store.blobs import BlobStore
from planner.store.deployment_records import Deployment, DeploymentState, StagePlacement
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2, planner_pb2, planner_pb2_grpc, stage_daemon_pb2
from stage_daemon.control.worker_process import WorkerProcess
from stage_daemon.transport.store_server import StoreServer
from tests.builders.plans import plan_of
from tests.waiting import WAIT_SECONDS

SESSION = 2**64 - 5


class BlobService(planner_pb2_grpc.PlannerServiceServicer):
    """ReadBlob over a real store; answers wait while `is_open` is not set."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.is_open = threading.Event()
        self.is_open.set()

    def ReadBlob(self, request: planner_pb2.ReadBlobRequest, context: grpc.ServicerContext) -> Any:
        self.is_open.wait(WAIT_SECONDS)
        if self._blobs.size_bytes(request.sha256) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such blob")
        for chunk in self._blobs.read_range(request.sha256, request.offset_bytes, request.length_bytes):
            yield planner_pb2.ReadBlobResponse(chunk=chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A module cut and put into a blob store, with what each device is to be told."""

    requests: StageRequests
    blob_address: str
    device_ids: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Running:
    """Connected workers by device id; `first` takes inputs and `last` gives outputs."""

    workers: Mapping[str, WorkerProcess]
    first: WorkerProcess
    last: WorkerProcess

    async def run(self, batches: Sequence[Sequence[Any]], session_id: int = SESSION) -> list[Any]:
        """Results in order: a list of tensors and scalars, or a Failure."""
        results = []
        outputs = self.last.outputs()
        sending = asyncio.create_task(self.send(batches, session_id))
        for index in range(len(batches)):
            found_session, sequence, body = await asyncio.wait_for(anext(outputs), WAIT_SECONDS)
            response = stage_daemon_pb2.ReceiveOutputsResponse.FromString(body)
            assert (found_session, sequence, response.sequence) == (session_id, index + 1, index + 1)
            results.append(decoded(response))
        await outputs.aclose()
        await sending
        return results

    async def send(self, batches: Sequence[Sequence[Any]], session_id: int = SESSION) -> None:
        for index, batch in enumerate(batches):
            await self.first.send_input(session_id, index + 1, microbatch(index + 1, batch))


def stages_from(graph: Graph, starts: Sequence[str]) -> list[int]:
    """A stage per node; each of the named modules begins a new one."""
    waiting = list(starts)
    stages = []
    for node in graph.nodes:
        if waiting and node.module_path.split(".")[0] == waiting[0]:
            waiting.pop(0)
        stages.append(len(starts) - len(waiting))
    assert not waiting
    return stages


class Preparation:
    """Cuts modules into `folder` and serves the pieces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.blobs = BlobStore(f"file://{folder}/blobs", staging=folder / "staging")
        self._service = BlobService(self.blobs)
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        planner_pb2_grpc.add_PlannerServiceServicer_to_server(self._service, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def pause(self) -> None:
        """Who asks for bytes from now on waits for them."""
        self._service.is_open.clear()

    def resume(self) -> None:
        self._service.is_open.set()

    def close(self) -> None:
        self.resume()
        self._server.stop(None).wait()

    def prepare(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        dynamic_shapes: Any,
        starts: Sequence[str],
        devices: Sequence[int],
        *,
        replicas: Sequence[Sequence[int]] = (),
        routing: Routing = Routing.DIRECT,
        edge_seconds: float = WAIT_SECONDS,
        deployment_id: str = "dep-test",
    ) -> Prepared:
        exported = export(module, args, dynamic_shapes=dynamic_shapes)
        plan = plan_of(exported.graph, stages_from(exported.graph, starts), routing, devices, replicas=replicas)
        files = []
        for path in exported.save_weights(self._folder / "weights"):
            content = path.read_bytes()
            files.append(WeightFile(sha256=self.blobs.put(content), size_bytes=len(content)))
        deployment = Deployment(
            id=deployment_id,
            plan_id="plan-test",
            graph_id="graph-test",
            state=DeploymentState.LOADING,
            generation=1,
            stages=tuple(
                StagePlacement(stage=stage.index, device_id=device_id, daemon_address="", incarnation_id="")
                for stage in plan.stages
                for device_id in stage.device_ids
            ),
            created_at=datetime.now(UTC),
        )
        graph_sha256 = self.blobs.put(graph_to_bytes(exported.graph))
        requests = prepare_requests(deployment, plan, graph_sha256, tuple(files), self.blobs, edge_seconds)
        device_of_stage = tuple(stage.device_ids[0] for stage in plan.stages)
        return Prepared(requests=requests, blob_address=self.address, device_ids=device_of_stage)


@asynccontextmanager
async def loaded(prepared: Prepared) -> AsyncIterator[dict[str, WorkerProcess]]:
    """One worker per device, with its stages; they are killed at the end."""
    workers: dict[str, WorkerProcess] = {}
    try:
        for device_id, request in prepared.requests.load.items():
            workers[device_id] = await WorkerProcess.start(
                deployment_id=request.deployment_id,
                generation=request.generation,
                device="cpu",
                blob_address=prepared.blob_address,
            )
            async for progress in workers[device_id].load(request):
                assert progress.loaded_bytes <= progress.total_bytes
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()
            await asyncio.wait_for(asyncio.shield(worker.exited), WAIT_SECONDS)


@asynccontextmanager
async def running(prepared: Prepared) -> AsyncIterator[Running]:
    """Loaded and connected."""
    store = StoreServer("127.0.0.1", purpose_key(b"", "rendezvous"))
    async with loaded(prepared) as workers:
        connecting = []
        for device_id, request in prepared.requests.connect.items():
            request.rendezvous_address = f"127.0.0.1:{store.port}"
            connecting.append(workers[device_id].connect(request))
        await asyncio.wait_for(asyncio.gather(*connecting), WAIT_SECONDS)
        yield Running(workers=workers, first=workers[prepared.device_ids[0]], last=workers[prepared.device_ids[-1]])
    store.close()


_DTYPES = {
    torch.float32: graph_pb2.DTYPE_FLOAT32,
    torch.float64: graph_pb2.DTYPE_FLOAT64,
    torch.int64: graph_pb2.DTYPE_INT64,
    torch.bool: graph_pb2.DTYPE_BOOL,
}
_TORCH_DTYPES = {number: dtype for dtype, number in _DTYPES.items()}


def datum(item: Any) -> stage_daemon_pb2.Datum:
    if isinstance(item, stage_daemon_pb2.Datum):
        return item
    if not isinstance(item, torch.Tensor):
        return stage_daemon_pb2.Datum(integer=item)
    data = item.contiguous().numpy().tobytes()
    return stage_daemon_pb2.Datum(tensor=stage_daemon_pb2.Tensor(dtype=_DTYPES[item.dtype], dims=item.shape, data=data))


def microbatch(sequence: int, items: Sequence[Any]) -> bytes:
    return stage_daemon_pb2.Microbatch(sequence=sequence, values=map(datum, items)).SerializeToString()


def decoded(response: stage_daemon_pb2.ReceiveOutputsResponse) -> Any:
    if response.WhichOneof("content") == "failure":
        return response.failure
    return [_item(datum) for datum in response.result.values]


def _item(datum: stage_daemon_pb2.Datum) -> Any:
    if datum.WhichOneof("kind") != "tensor":
        return getattr(datum, datum.WhichOneof("kind"))
    dims = tuple(datum.tensor.dims)
    dtype = _TORCH_DTYPES[datum.tensor.dtype]
    if not datum.tensor.data:
        return torch.empty(dims, dtype=dtype)
    return torch.frombuffer(bytearray(datum.tensor.data), dtype=dtype).view(dims)
