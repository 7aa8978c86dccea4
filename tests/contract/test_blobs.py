"""Blobs: uploaded in pieces, gone on with, refused where they are not what they are called."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import grpc
import pytest

from planner.settings import Settings
from protos.v1 import planner_pb2, planner_pb2_grpc
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, refused, upload, upload_stream
from tests.contract.conftest import StartServer, on_both, open_channel
from tests.contract.graphs import sha256

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
SIZE_BYTES = 3_000_001


@pytest.fixture
def content(name: str) -> bytes:
    """A blob that no other test uploads."""
    return random.Random(name).randbytes(SIZE_BYTES)


async def read(planner: PlannerServiceStub, digest: bytes, offset: int = 0, length: int = 0) -> bytes:
    request = planner_pb2.ReadBlobRequest(sha256=digest, offset_bytes=offset, length_bytes=length)
    chunks = [answer.chunk async for answer in planner.ReadBlob(request, timeout=WAIT_SECONDS)]
    assert all(len(chunk) <= 1 << 20 for chunk in chunks)
    return b"".join(chunks)


async def committed(planner: PlannerServiceStub, digest: bytes) -> planner_pb2.Upload:
    return await planner.GetUpload(planner_pb2.GetUploadRequest(sha256=digest), timeout=WAIT_SECONDS)


async def test_upload_and_read_ranges(planner: PlannerServiceStub, content: bytes) -> None:
    digest = await upload(planner, content)
    assert await read(planner, digest) == content
    assert await read(planner, digest, 1_500_000, 1_200_000) == content[1_500_000:2_700_000]
    assert await read(planner, digest, len(content)) == b""
    answer = await committed(planner, digest)
    assert (answer.committed_bytes, answer.complete) == (len(content), True)
    with refused("INVALID_ARGUMENT") as refusal:
        await read(planner, digest, 1, len(content))
    assert str(len(content)) in refusal.message


async def test_empty_blob(planner: PlannerServiceStub) -> None:
    digest = await upload(planner, b"")
    assert await read(planner, digest) == b""


async def test_upload_again_answers_at_once(planner: PlannerServiceStub, content: bytes) -> None:
    await upload(planner, content)
    await upload(planner, content)


async def test_a_blob_damaged_on_the_disk_is_told_and_can_be_uploaded_again(
    start_server: StartServer, own_settings: Settings, content: bytes
) -> None:
    digest = sha256(content)
    name = digest.hex()
    path = Path(own_settings.blobs.removeprefix("file://")) / name[:2] / name
    async with open_channel((await start_server()).address) as channel:
        planner = PlannerServiceStub(channel)
        await upload(planner, content)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with refused("DIGEST_MISMATCH"):
            await read(planner, digest)
        assert not (await committed(planner, digest)).complete
        await upload(planner, content)
        path.write_bytes(content[:-1])
        await upload(planner, content)
        assert await read(planner, digest) == content


async def test_unknown_blob(planner: PlannerServiceStub) -> None:
    answer = await committed(planner, bytes(32))
    assert (answer.committed_bytes, answer.complete) == (0, False)
    with refused("NOT_FOUND"):
        await read(planner, bytes(32))
    with refused("INVALID_ARGUMENT"):
        await read(planner, b"short")


async def test_wrong_digest_keeps_nothing(planner: PlannerServiceStub, content: bytes) -> None:
    name = sha256(content[1:])
    with refused("DIGEST_MISMATCH") as refusal:
        await planner.UploadBlob(upload_stream(content, name=name), timeout=WAIT_SECONDS)
    assert refusal.metadata["found"] == sha256(content).hex()
    answer = await committed(planner, name)
    assert (answer.committed_bytes, answer.complete) == (0, False)
    with refused("NOT_FOUND"):
        await read(planner, name)


async def test_cancelled_upload_goes_on_where_it_stopped(planner: PlannerServiceStub, content: bytes) -> None:
    committed_bytes = await _upload_and_cancel(planner, content)
    with refused("WRONG_OFFSET") as refusal:
        await planner.UploadBlob(upload_stream(content), timeout=WAIT_SECONDS)
    assert refusal.metadata["committed_bytes"] == str(committed_bytes)
    answer = await planner.UploadBlob(upload_stream(content, offset=committed_bytes), timeout=WAIT_SECONDS)
    assert answer.complete
    assert await read(planner, sha256(content)) == content


async def test_upload_goes_on_after_a_restart(start_server: StartServer, content: bytes) -> None:
    first = await start_server()
    async with open_channel(first.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        await planner.UploadBlob(upload_stream(content, end=2_000_000), timeout=WAIT_SECONDS)
    await first.stop(0)
    second = await start_server()
    async with open_channel(second.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        answer = await committed(planner, sha256(content))
        assert (answer.committed_bytes, answer.complete) == (2_000_000, False)
        await planner.UploadBlob(upload_stream(content, offset=2_000_000), timeout=WAIT_SECONDS)
        assert await read(planner, sha256(content)) == content


@on_both
async def test_concurrent_uploads_of_one_blob(planner: PlannerServiceStub, content: bytes) -> None:
    uploads = [planner.UploadBlob(upload_stream(content, chunk_bytes=100_000), timeout=WAIT_SECONDS) for _ in range(4)]
    answers = await asyncio.gather(*uploads)
    assert all(answer.complete for answer in answers)
    assert await read(planner, sha256(content)) == content


@pytest.mark.parametrize("size", [SIZE_BYTES - 1, SIZE_BYTES + 1])
async def test_other_size_than_announced(planner: PlannerServiceStub, content: bytes, size: int) -> None:
    begin = planner_pb2.UploadBlobRequest.Begin(sha256=sha256(content), size_bytes=size)
    messages = [planner_pb2.UploadBlobRequest(begin=begin), planner_pb2.UploadBlobRequest(chunk=content)]
    if size > len(content):
        assert not (await planner.UploadBlob(iter(messages), timeout=WAIT_SECONDS)).complete
    else:
        with refused("INVALID_ARGUMENT") as refusal:
            await planner.UploadBlob(iter(messages), timeout=WAIT_SECONDS)
        assert str(size) in refusal.message


async def test_first_message_must_begin(planner: PlannerServiceStub) -> None:
    with refused("INVALID_ARGUMENT"):
        await planner.UploadBlob(iter([planner_pb2.UploadBlobRequest(chunk=b"x")]), timeout=WAIT_SECONDS)
    with refused("INVALID_ARGUMENT"):
        await planner.UploadBlob(iter([]), timeout=WAIT_SECONDS)


async def test_blob_above_the_limit(start_server: StartServer) -> None:
    server = await start_server(max_blob_bytes=1000)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        with refused("INVALID_ARGUMENT") as refusal:
            await planner.UploadBlob(upload_stream(bytes(1001)), timeout=WAIT_SECONDS)
        assert "1000" in refusal.message
        await upload(planner, bytes(1000))


async def _upload_and_cancel(planner: PlannerServiceStub, content: bytes) -> int:
    """Sends a part, cancels the stream and waits for the server to let go; returns what it holds."""
    is_sent = asyncio.Event()

    async def slow() -> object:
        async for message in upload_stream(content, end=1_500_000, chunk_bytes=250_000):
            yield message
        is_sent.set()
        await asyncio.Event().wait()

    call = planner.UploadBlob(slow(), timeout=WAIT_SECONDS)
    await asyncio.wait_for(is_sent.wait(), WAIT_SECONDS)
    committed_bytes = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while committed_bytes == 0:
            await asyncio.sleep(0.01)
            committed_bytes = (await committed(planner, sha256(content))).committed_bytes
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED
    # The server reads what it was sent before the end of the stream: only then is the number final.
    return await _settled(planner, content, committed_bytes)


async def _settled(planner: PlannerServiceStub, content: bytes, committed_bytes: int) -> int:
    begin = planner_pb2.UploadBlobRequest.Begin(
        sha256=sha256(content), size_bytes=len(content), offset_bytes=len(content) + committed_bytes
    )
    with refused("WRONG_OFFSET") as refusal:
        await planner.UploadBlob(iter([planner_pb2.UploadBlobRequest(begin=begin)]), timeout=WAIT_SECONDS)
    return int(refusal.metadata["committed_bytes"])
