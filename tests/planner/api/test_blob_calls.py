"""Uploads whose client falls silent, fails or leaves: what it sent stays, and the next may go on."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planner.api import blob_calls
from planner.api.blob_calls import BlobCalls
from planner.api.principals import CALLER
from planner.api.upload_locks import UploadLocks
from planner.errors import Corrupt, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from planner.store.blobs import BlobStore, BlobWriter
from protos.v1 import planner_pb2
from tests.planner.api.conftest import Planner
from tests.waiting import WAIT_SECONDS

CONTENT = b"the whole content"
NAME = hashlib.sha256(CONTENT).digest()
OTHER_SHA256 = hashlib.sha256(b"other").digest()
Messages = AsyncIterator[planner_pb2.UploadBlobRequest]


class Calls(BlobCalls):
    def __init__(self, folder: Path) -> None:
        self._blobs = BlobStore((folder / "blobs").as_uri(), folder / "staging")
        self._upload_locks = UploadLocks(2)

    async def committed(self) -> tuple[int, bool]:
        answer = await self.GetUpload(planner_pb2.GetUploadRequest(sha256=NAME), None)
        return answer.committed_bytes, answer.complete

    async def read(self, offset: int = 0, length: int = 0) -> list[bytes]:
        request = planner_pb2.ReadBlobRequest(sha256=NAME, offset_bytes=offset, length_bytes=length)
        return [answer.chunk async for answer in self.ReadBlob(request, None)]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def begin(offset: int = 0, size: int = len(CONTENT)) -> planner_pb2.UploadBlobRequest:
    return planner_pb2.UploadBlobRequest(
        begin=planner_pb2.UploadBlobRequest.Begin(sha256=NAME, size_bytes=size, offset_bytes=offset)
    )


async def messages(*parts: planner_pb2.UploadBlobRequest | bytes) -> Messages:
    for part in parts:
        yield planner_pb2.UploadBlobRequest(chunk=part) if isinstance(part, bytes) else part


async def never_ending(*parts: planner_pb2.UploadBlobRequest | bytes) -> Messages:
    async for message in messages(*parts):
        yield message
    await asyncio.Event().wait()


async def test_an_upload_in_pieces_answers_how_far_it_came(calls: Calls) -> None:
    answer = await calls.UploadBlob(messages(begin(), CONTENT[:3], b"", CONTENT[3:8]), None)
    assert (answer.sha256, answer.committed_bytes, answer.complete) == (NAME, 8, False)
    assert await calls.committed() == (8, False)
    with pytest.raises(NotFound):
        await calls.read()
    answer = await calls.UploadBlob(messages(begin(8), CONTENT[8:]), None)
    assert (answer.sha256, answer.committed_bytes, answer.complete) == (NAME, len(CONTENT), True)
    assert await calls.committed() == (len(CONTENT), True)
    assert await calls.read() == [CONTENT]
    assert await calls.read(4, 5) == [CONTENT[4:9]]


async def test_a_silent_client_is_given_up_and_another_goes_on(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_calls, "SILENT_SECONDS", 0.05)
    with pytest.raises(Unavailable, match="what was sent is kept, ask GetUpload where to go on"):
        await calls.UploadBlob(never_ending(begin(), CONTENT[:5]), None)
    monkeypatch.undo()
    assert await calls.committed() == (5, False)
    async with asyncio.timeout(120):
        assert (await calls.UploadBlob(messages(begin(5), CONTENT[5:]), None)).complete


async def test_a_second_upload_waits_for_the_first_and_finds_it_done(calls: Calls) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> Messages:
        yield begin()
        begun.set()
        await go_on.wait()
        yield planner_pb2.UploadBlobRequest(chunk=CONTENT)

    first = asyncio.create_task(calls.UploadBlob(slowly(), None))
    await begun.wait()
    second = asyncio.create_task(calls.UploadBlob(messages(begin()), None))
    await asyncio.sleep(0.05)
    assert not second.done()
    go_on.set()
    answers = await asyncio.gather(first, second)
    assert [(answer.committed_bytes, answer.complete) for answer in answers] == [(len(CONTENT), True)] * 2


async def test_a_client_that_leaves_lets_go_of_the_blob(calls: Calls) -> None:
    leaving = asyncio.create_task(calls.UploadBlob(never_ending(begin(), CONTENT[:5]), None))
    async with asyncio.timeout(120):
        while await calls.committed() != (5, False):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert (await calls.UploadBlob(messages(begin(5), CONTENT[5:]), None)).complete


@pytest.mark.parametrize(
    ("parts", "error", "kept"),
    [
        ((), InvalidArgument, 0),
        ((b"chunk",), InvalidArgument, 0),
        ((planner_pb2.UploadBlobRequest(),), InvalidArgument, 0),
        ((begin(), CONTENT[:4], begin()), InvalidArgument, 4),
        ((begin(), CONTENT[:4], planner_pb2.UploadBlobRequest()), InvalidArgument, 4),
        ((begin(), CONTENT + b"!"), InvalidArgument, 0),
        ((begin(), CONTENT[:-1] + b"!"), Corrupt, 0),
    ],
)
async def test_uploads_that_make_no_sense(
    calls: Calls, parts: tuple[planner_pb2.UploadBlobRequest | bytes, ...], error: type[Exception], kept: int
) -> None:
    with pytest.raises(error):
        await calls.UploadBlob(messages(*parts), None)
    assert await calls.committed() == (kept, False)
    assert (await calls.UploadBlob(messages(begin(kept), CONTENT[kept:]), None)).complete


async def dripping(content: bytes) -> Messages:
    """The content again and again, a moment apart."""
    yield begin(size=1 << 30)
    while True:
        await asyncio.sleep(0.05)
        yield planner_pb2.UploadBlobRequest(chunk=content)


@pytest.mark.parametrize("content", [b"", b"x"])
async def test_a_stream_that_brings_next_to_nothing_does_not_hold_the_blob(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    # Longer than a busy machine stands still between two chunks, which would end the stream too.
    monkeypatch.setattr(blob_calls, "SILENT_SECONDS", 2.0)
    async with asyncio.timeout(120):
        with pytest.raises(Unavailable, match="less than 1024 bytes a second"):
            await calls.UploadBlob(dripping(content), None)


async def test_a_stream_that_is_fast_enough_may_take_longer_than_silence(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_calls, "SILENT_SECONDS", 30.0)
    monkeypatch.setattr(blob_calls, "LEAST_BYTES_PER_SECOND", 1)
    answer = await calls.UploadBlob(messages(begin(), *(CONTENT[i : i + 1] for i in range(len(CONTENT)))), None)
    assert answer.complete


@contextmanager
def as_alice(planner: Planner) -> Iterator[BlobCalls]:
    """Calls of hers, who may upload as much as CONTENT."""
    calls = BlobCalls()
    calls._database, calls._blobs, calls._upload_locks = planner.database, planner.blobs, UploadLocks(2)
    calls._settings = planner.settings.model_copy(update={"max_uploaded_bytes_per_caller": len(CONTENT)})
    alice = CALLER.set("alice")
    try:
        yield calls
    finally:
        CALLER.reset(alice)


def other_messages() -> Messages:
    other = planner_pb2.UploadBlobRequest.Begin(sha256=OTHER_SHA256, size_bytes=5)
    return messages(planner_pb2.UploadBlobRequest(begin=other), b"other")


@pytest.mark.services
async def test_what_a_caller_uploads_counts_until_it_turns_out_to_be_nothing(planner: Planner) -> None:
    with as_alice(planner) as calls:
        with pytest.raises(Corrupt):
            await calls.UploadBlob(messages(begin(), CONTENT[:-1] + b"!"), None)
        assert (await calls.UploadBlob(messages(begin(), CONTENT), None)).complete
        with pytest.raises(ResourceExhausted, match="alice has uploads of 17 bytes beside this one of 5 bytes"):
            await calls.UploadBlob(other_messages(), None)
        upload_request = planner_pb2.GetUploadRequest(sha256=OTHER_SHA256)
        assert (await calls.GetUpload(upload_request, None)).committed_bytes == 0
        # What is here already takes nothing more.
        assert (await calls.UploadBlob(messages(begin(), CONTENT), None)).complete


@pytest.mark.services
async def test_bytes_that_are_not_what_they_are_called_count_for_nobody(planner: Planner) -> None:
    with as_alice(planner) as calls:
        with pytest.raises(Corrupt):
            await calls.UploadBlob(messages(begin(), CONTENT[:-1] + b"!"), None)
        assert (await calls.UploadBlob(other_messages(), None)).complete


async def test_uploads_that_take_their_time_hold_up_nothing_else(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that go on after a restart, whose digests are made anew of all that is there."""
    may_go_on = threading.Event()
    open_writer = BlobWriter.open

    def open_slowly(writer: BlobWriter) -> BlobWriter:
        may_go_on.wait(WAIT_SECONDS)
        return open_writer(writer)

    calls._blobs.put(CONTENT)
    monkeypatch.setattr(BlobWriter, "open", open_slowly)
    contents = [bytes([number]) for number in range(40)]
    uploads = [
        asyncio.create_task(calls.UploadBlob(messages(begin_of(content), content), None)) for content in contents
    ]
    try:
        # Until they wait for their disk.
        for _ in range(10):
            assert await calls.read() == [CONTENT]
    finally:
        may_go_on.set()
    assert all(upload.complete for upload in await asyncio.gather(*uploads))


def begin_of(content: bytes) -> planner_pb2.UploadBlobRequest:
    sha256 = hashlib.sha256(content).digest()
    return planner_pb2.UploadBlobRequest(
        begin=planner_pb2.UploadBlobRequest.Begin(sha256=sha256, size_bytes=len(content))
    )
