"""Sending blobs by their sha256: what the server has is skipped, and a broken stream goes on from where it stopped."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from planner.client.connection import Connection
from planner.client.digests import file_sha256
from planner.client.interruption import pause
from planner.client.records import UploadProgress
from planner.errors import Conflict, Unavailable
from protos.v1 import planner_pb2

CHUNK_BYTES = 1 << 20
# Attempts in a row that bring the server nothing new.
MAX_FRUITLESS_ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 0.1
# An upload slower than this is broken off, and goes on in a new stream.
LEAST_BYTES_PER_SECOND = 1 << 20

OnProgress = Callable[[UploadProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes to send; `open` gives them from the start."""

    name: str
    sha256: bytes
    size_bytes: int
    open: Callable[[], BinaryIO]


def blob_of_bytes(name: str, content: bytes) -> Blob:
    return Blob(
        name=name,
        sha256=hashlib.sha256(content).digest(),
        size_bytes=len(content),
        open=lambda: io.BytesIO(content),
    )


def blob_of_file(path: Path) -> Blob:
    return Blob(name=path.name, sha256=file_sha256(path), size_bytes=path.stat().st_size, open=lambda: path.open("rb"))


def upload_blob(connection: Connection, blob: Blob, on_progress: OnProgress | None = None) -> None:
    """Returns once the server holds the whole blob.

    Raises Corrupt if the bytes changed while they were sent, Unavailable once several attempts brought nothing.
    """
    fruitless, committed = 0, -1
    while True:
        try:
            upload = connection.call(connection.stub.GetUpload, planner_pb2.GetUploadRequest(sha256=blob.sha256))
            if upload.committed_bytes > committed:
                fruitless, committed = 0, upload.committed_bytes
            _report(on_progress, blob, blob.size_bytes if upload.complete else upload.committed_bytes)
            if upload.complete or _send_rest(connection, blob, upload.committed_bytes, on_progress).complete:
                return
            raise Unavailable(f"{connection.address} took the stream of {blob.name} and does not hold all of it")
        except (Unavailable, Conflict):
            # Conflict: the server has not let go of the broken stream yet.
            fruitless += 1
            if fruitless >= MAX_FRUITLESS_ATTEMPTS or committed < 0:
                raise
            pause(FIRST_PAUSE_SECONDS * 2**fruitless)


def _send_rest(
    connection: Connection, blob: Blob, offset_bytes: int, on_progress: OnProgress | None
) -> planner_pb2.Upload:
    remaining_bytes = blob.size_bytes - offset_bytes
    return connection.call(
        connection.stub.UploadBlob,
        _requests(blob, offset_bytes, on_progress),
        timeout_seconds=connection.timeout_seconds + remaining_bytes / LEAST_BYTES_PER_SECOND,
    )


def _requests(blob: Blob, offset_bytes: int, on_progress: OnProgress | None) -> Iterator[planner_pb2.UploadBlobRequest]:
    yield planner_pb2.UploadBlobRequest(
        begin=planner_pb2.UploadBlobRequest.Begin(
            sha256=blob.sha256, size_bytes=blob.size_bytes, offset_bytes=offset_bytes
        )
    )
    with blob.open() as file:
        file.seek(offset_bytes)
        while chunk := file.read(CHUNK_BYTES):
            yield planner_pb2.UploadBlobRequest(chunk=chunk)
            offset_bytes += len(chunk)
            _report(on_progress, blob, offset_bytes)


def _report(on_progress: OnProgress | None, blob: Blob, sent_bytes: int) -> None:
    if on_progress is not None:
        on_progress(UploadProgress(name=blob.name, sent_bytes=sent_bytes, total_bytes=blob.size_bytes))
