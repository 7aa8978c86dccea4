"""Checkpoints over gRPC: daemons upload their files, a client writes down which belong together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from planner.api.identity import fingerprint, new_id
from planner.api.pages import page_of
from planner.api.principals import CALLER
from planner.api.threads import in_thread
from planner.errors import NotFound
from planner.graph.checkpoint import check_sound
from planner.settings import Settings
from planner.store.blob_references import lock_references
from planner.store.blobs import BlobStore
from planner.store.checkpoints import (
    add_checkpoint,
    checkpoint_tensors,
    delete_checkpoint,
    get_checkpoint_record,
    list_checkpoints,
)
from planner.store.database import Database
from planner.store.graphs import get_graph
from planner.store.quotas import charge_upload, forget_upload
from planner.store.request_ids import create_once
from planner.wire.checkpoints import (
    checkpoint_record_from_proto,
    checkpoint_record_to_proto,
    saved_tensor_from_proto,
    saved_tensor_to_proto,
)
from protos.v1 import planner_pb2


class CheckpointCalls:
    _settings: Settings
    _database: Database
    _blobs: BlobStore

    async def CreateCheckpoint(
        self, request: planner_pb2.CreateCheckpointRequest, _: Any
    ) -> planner_pb2.CheckpointRecord:
        now = datetime.now(UTC)
        # The planner's own moment counts, whatever was sent.
        request.checkpoint.record.ClearField("created_at")
        requested = checkpoint_record_from_proto(request.checkpoint.record)
        record = replace(requested, id=new_id("ckpt"), created_at=now)
        # Made anew each time they are gone through: to free hundreds of thousands at once would hold the event loop.
        tensors = partial(map, saved_tensor_from_proto, request.checkpoint.tensors)
        await in_thread(check_sound, record, tensors())
        caller, most_bytes = CALLER.get(), self._settings.max_uploaded_bytes_per_caller

        async def create(session: AsyncSession) -> str:
            await get_graph(session, record.graph_id)
            await lock_references(session)
            for file in record.files:
                if await in_thread(self._blobs.size_bytes, file.sha256) != file.size_bytes:
                    raise NotFound(
                        f"blob {file.sha256.hex()} of {file.size_bytes} bytes is not here; save again",
                        sha256=file.sha256.hex(),
                    )
                # Daemons upload it; whoever saves has it.
                await charge_upload(session, caller, file.sha256, file.size_bytes, most_bytes, now)
                await forget_upload(session, file.sha256, keep_of=caller)
            await add_checkpoint(session, record, tensors())
            return record.id

        checkpoint_id, _made = await create_once(
            self._database, "CreateCheckpoint", request.request_id, await fingerprint(request), now, create
        )
        async with self._database.reading() as session:
            return checkpoint_record_to_proto(await get_checkpoint_record(session, checkpoint_id))

    async def GetCheckpoint(self, request: planner_pb2.GetCheckpointRequest, _: Any) -> planner_pb2.Checkpoint:
        async with self._database.reading() as session:
            record = await get_checkpoint_record(session, request.checkpoint_id)
            checkpoint = planner_pb2.Checkpoint(record=checkpoint_record_to_proto(record))
            async for tensor in checkpoint_tensors(session, record.id):
                checkpoint.tensors.append(saved_tensor_to_proto(tensor))
        return checkpoint

    async def ListCheckpoints(
        self, request: planner_pb2.ListCheckpointsRequest, _: Any
    ) -> planner_pb2.ListCheckpointsResponse:
        page = page_of(request, "checkpoint", run=request.run, graph=request.graph_id)
        async with self._database.reading() as session:
            records, token = await list_checkpoints(session, page, run=request.run, graph_id=request.graph_id)
        return planner_pb2.ListCheckpointsResponse(
            checkpoints=[checkpoint_record_to_proto(record) for record in records], next_page_token=token
        )

    async def DeleteCheckpoint(
        self, request: planner_pb2.DeleteCheckpointRequest, _: Any
    ) -> planner_pb2.DeleteCheckpointResponse:
        async with self._database.session() as session:
            await delete_checkpoint(session, request.checkpoint_id)
        return planner_pb2.DeleteCheckpointResponse(id=request.checkpoint_id)
