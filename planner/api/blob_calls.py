"""Blobs over gRPC: resumable uploads and ranged reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from planner.api.blob_collection import BlobCollection
from planner.api.principals import CALLER
from planner.api.threads import in_thread, in_upload_thread
from planner.api.upload_locks import UploadLocks
from planner.errors import Corrupt, InvalidArgument, Unavailable
from planner.settings import Settings
from planner.store.blobs import BlobStore, BlobWriter
from planner.store.database import Database
from planner.store.quotas import charge_upload, forget_upload
from protos.v1 import planner_pb2

# A stream that brings nothing for longer has lost its client; what it sent stays.
SILENT_SECONDS = 60.0
# Slower ones would hold the blob for as long as they like.
LEAST_BYTES_PER_SECOND = 1024


class BlobCalls:
    _settings: Settings
    _database: Database
    _blobs: BlobStore
    _collection: BlobCollection
    _upload_locks: UploadLocks

    async def GetUpload(self, request: planner_pb2.GetUploadRequest, _: Any) -> planner_pb2.Upload:
        return await self._upload(request.sha256)

    async def UploadBlob(self, requests: AsyncIterator[planner_pb2.UploadBlobRequest], _: Any) -> planner_pb2.Upload:
        first = await _next(requests, asyncio.get_running_loop().time() + SILENT_SECONDS)
        if first is None or first.WhichOneof("content") != "begin":
            raise InvalidArgument("the first message of an upload must be `begin`, with sha256, size and offset")
        begin = first.begin
        async with self._upload_locks.hold(begin.sha256, CALLER.get()):
            upload = await self._upload(begin.sha256)
            if upload.complete and await self._is_sound(upload, begin.size_bytes):
                return upload
            writer = await in_thread(self._blobs.write, begin.sha256, begin.size_bytes, begin.offset_bytes)
            await self._charge(begin)
            try:
                return await _receive(writer, requests, begin.sha256)
            except Corrupt:
                await self._forget(begin.sha256)
                raise

    async def ReadBlob(
        self, request: planner_pb2.ReadBlobRequest, _: Any
    ) -> AsyncIterator[planner_pb2.ReadBlobResponse]:
        chunks = await in_thread(self._blobs.read_range, request.sha256, request.offset_bytes, request.length_bytes)
        while chunk := await in_thread(next, chunks, b""):
            yield planner_pb2.ReadBlobResponse(chunk=chunk)

    async def CollectBlobs(self, request: planner_pb2.CollectBlobsRequest, _: Any) -> planner_pb2.CollectBlobsResponse:
        collected = await self._collection.run(dry_run=request.dry_run)
        return planner_pb2.CollectBlobsResponse(
            num_blobs=collected.num_blobs,
            size_bytes=collected.size_bytes,
            num_referenced=collected.num_referenced,
            num_young=collected.num_young,
        )

    async def _charge(self, begin: planner_pb2.UploadBlobRequest.Begin) -> None:
        """Raises ResourceExhausted where the caller has uploaded as much as one may."""
        caller = CALLER.get()
        if not caller:
            return
        most_bytes = self._settings.max_uploaded_bytes_per_caller
        async with self._database.session() as session:
            await charge_upload(session, caller, begin.sha256, begin.size_bytes, most_bytes, datetime.now(UTC))

    async def _forget(self, sha256: bytes) -> None:
        if CALLER.get():
            async with self._database.session() as session:
                await forget_upload(session, sha256)

    async def _is_sound(self, upload: planner_pb2.Upload, announced_bytes: int) -> bool:
        """A blob of another size than the client knows was damaged, or the client is wrong: its digest tells."""
        if upload.committed_bytes == announced_bytes:
            return True
        return await in_upload_thread(self._blobs.is_whole, upload.sha256)

    async def _upload(self, sha256: bytes) -> planner_pb2.Upload:
        size = await in_thread(self._blobs.size_bytes, sha256)
        if size is not None:
            # Whoever asks is about to refer to it.
            await in_thread(self._blobs.renew, sha256)
            return planner_pb2.Upload(sha256=sha256, committed_bytes=size, complete=True)
        committed = await in_thread(self._blobs.committed_bytes, sha256)
        return planner_pb2.Upload(sha256=sha256, committed_bytes=committed)


async def _receive(
    writer: BlobWriter, requests: AsyncIterator[planner_pb2.UploadBlobRequest], sha256: bytes
) -> planner_pb2.Upload:
    await in_upload_thread(writer.open)
    clock = asyncio.get_running_loop().time
    ends_at = clock() + SILENT_SECONDS
    try:
        while (message := await _next(requests, ends_at)) is not None:
            if message.WhichOneof("content") != "chunk":
                raise InvalidArgument("only the first message of an upload is `begin`; the others are `chunk`")
            await in_upload_thread(writer.append, message.chunk)
            # Each chunk buys time by its bytes, an empty one none.
            ends_at = min(clock() + SILENT_SECONDS, ends_at + len(message.chunk) / LEAST_BYTES_PER_SECOND)
        complete = await in_upload_thread(writer.finish)
    finally:
        writer.close()
    return planner_pb2.Upload(sha256=sha256, committed_bytes=writer.committed_bytes, complete=complete)


async def _next(
    requests: AsyncIterator[planner_pb2.UploadBlobRequest], ends_at: float
) -> planner_pb2.UploadBlobRequest | None:
    try:
        async with asyncio.timeout_at(ends_at):
            return await anext(requests, None)
    except TimeoutError:
        raise Unavailable(
            f"nothing came for {SILENT_SECONDS:g} seconds, or less than {LEAST_BYTES_PER_SECOND} bytes a second; what "
            "was sent is kept, ask GetUpload where to go on"
        ) from None
