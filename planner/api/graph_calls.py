"""Graphs over gRPC. What is in the bytes is examined in a worker process; here is only what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.computing import Computing
from planner.api.identity import fingerprint
from planner.api.pages import page_of
from planner.api.records import checked_name, graph_record_to_proto, weights_from_proto
from planner.api.tasks import GraphFacts, GraphSource, examine_graph
from planner.api.threads import in_thread
from planner.errors import InvalidArgument, NotFound
from planner.graph.ir import WeightFile
from planner.settings import Settings
from planner.store.blob_references import lock_references
from planner.store.blobs import BlobStore
from planner.store.database import Database
from planner.store.graphs import GraphRecord, add_graph, attach_weights, delete_graph, get_graph, list_graphs
from planner.store.request_ids import create_once, find_result
from protos.v1 import planner_pb2


class GraphCalls:
    _settings: Settings
    _database: Database
    _blobs: BlobStore
    _checks: Computing

    async def CreateGraph(self, request: planner_pb2.CreateGraphRequest, _: Any) -> planner_pb2.GraphRecord:
        name = checked_name(request.name)
        weights = await in_thread(weights_from_proto, request.weights)
        print_ = await fingerprint(request)
        async with self._database.reading() as session:
            before = await find_result(session, "CreateGraph", request.request_id, print_)
        if before is not None:
            return await self._graph(before)
        facts = await self._examine(request.sha256, weights)
        now = datetime.now(UTC)
        size = await in_thread(self._blobs.size_bytes, request.sha256)
        record = GraphRecord(
            id=request.sha256.hex(),
            name=name or facts.name,
            torch_version=facts.torch_version,
            size_bytes=size or 0,
            num_nodes=facts.num_nodes,
            num_states=facts.num_states,
            state_bytes=facts.state_bytes,
            weights=weights,
            not_deployable_reason=facts.not_deployable_reason,
            created_at=now,
        )

        async def create(session: AsyncSession) -> str:
            await self._keep_blobs(session, record.sha256, *(file.sha256 for file in weights))
            await add_graph(session, record, rename=bool(name))
            return record.id

        graph_id, _made = await create_once(self._database, "CreateGraph", request.request_id, print_, now, create)
        return await self._graph(graph_id)

    async def AttachWeights(self, request: planner_pb2.AttachWeightsRequest, _: Any) -> planner_pb2.GraphRecord:
        weights = await in_thread(weights_from_proto, request.weights)
        if not weights:
            raise InvalidArgument("weights.files is empty; name the files that hold the graph's tensors")
        async with self._database.reading() as session:
            record = await get_graph(session, request.graph_id)
        facts = await self._examine(record.sha256, weights)
        async with self._database.session() as session:
            await self._keep_blobs(session, *(file.sha256 for file in weights))
            await attach_weights(session, record.id, weights, facts.not_deployable_reason)
        return await self._graph(record.id)

    async def GetGraph(self, request: planner_pb2.GetGraphRequest, _: Any) -> planner_pb2.GraphRecord:
        return await self._graph(request.graph_id)

    async def ListGraphs(self, request: planner_pb2.ListGraphsRequest, _: Any) -> planner_pb2.ListGraphsResponse:
        page = page_of(request, "graph", name=request.name)
        async with self._database.reading() as session:
            records, token = await list_graphs(session, page, name=request.name)
        return planner_pb2.ListGraphsResponse(
            graphs=[graph_record_to_proto(record) for record in records], next_page_token=token
        )

    async def DeleteGraph(self, request: planner_pb2.DeleteGraphRequest, _: Any) -> planner_pb2.DeleteGraphResponse:
        async with self._database.session() as session:
            await delete_graph(session, request.graph_id)
        return planner_pb2.DeleteGraphResponse(id=request.graph_id)

    async def _graph(self, graph_id: str) -> planner_pb2.GraphRecord:
        async with self._database.reading() as session:
            return graph_record_to_proto(await get_graph(session, graph_id))

    async def _keep_blobs(self, session: AsyncSession, *names: bytes) -> None:
        """None of them is collected before the transaction ends. Raises NotFound where one was."""
        await lock_references(session)
        for sha256 in names:
            if await in_thread(self._blobs.size_bytes, sha256) is None:
                raise NotFound(f"blob {sha256.hex()} was collected meanwhile; submit again", sha256=sha256.hex())

    async def _examine(self, sha256: bytes, weights: tuple[WeightFile, ...]) -> GraphFacts:
        if await in_thread(self._blobs.size_bytes, sha256) is None:
            raise NotFound(f"no blob {sha256.hex()} is complete here; upload the graph first", sha256=sha256.hex())
        source = graph_source(self._settings, sha256)
        async with self._checks.turn():
            return await self._checks.run(self._settings.check_timeout_seconds, examine_graph, source, weights)


def graph_source(settings: Settings, sha256: bytes) -> GraphSource:
    return GraphSource(
        blob_url=settings.blobs,
        staging=settings.staging_dir,
        sha256=sha256,
        max_bytes=settings.max_graph_bytes,
        max_nodes=settings.max_graph_nodes,
    )
