"""Blobs from whichever of several planners answers, each byte once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from protos.v1 import planner_pb2
from stage_daemon.errors import NotFound, Unavailable
from stage_daemon.worker import blobs
from stage_daemon.worker.blobs import BlobClient
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner, scripted_planner

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_pauses")]
AWAY = Refusal(code=grpc.StatusCode.UNAVAILABLE)
SHA256 = bytes(32)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "FIRST_PAUSE_SECONDS", 0.0)


@contextmanager
def two_planners() -> Iterator[tuple[ScriptedPlanner, ScriptedPlanner, BlobClient]]:
    with scripted_planner() as (first, first_address), scripted_planner() as (second, second_address):
        reader = BlobClient(f"{first_address},{second_address}")
        yield first, second, reader
        reader.close()


def chunk(content: bytes) -> planner_pb2.ReadBlobResponse:
    return planner_pb2.ReadBlobResponse(chunk=content)


@pytest.mark.parametrize(("length", "remaining"), [(6, 4), (0, 0)])
def test_what_one_broke_off_another_goes_on_with(length: int, remaining: int) -> None:
    with two_planners() as (first, second, reader):
        first.on("ReadBlob", [chunk(b"ab"), AWAY])
        second.on("ReadBlob", [chunk(b"cd"), chunk(b"ef")])
        assert b"".join(reader.read_range(SHA256, 10, length)) == b"abcdef"
        [request] = second.requests("ReadBlob")
        assert (request.offset_bytes, request.length_bytes) == (12, remaining)


def test_the_only_planner_is_asked_for_the_rest_again() -> None:
    with scripted_planner() as (planner, address):
        reader = BlobClient(address)
        planner.on("ReadBlob", [chunk(b"ab"), AWAY], AWAY, [chunk(b"cd"), AWAY], [chunk(b"ef")])
        assert b"".join(reader.read_range(SHA256, 10, 6)) == b"abcdef"
        ranges = [(request.offset_bytes, request.length_bytes) for request in planner.requests("ReadBlob")]
        assert ranges == [(10, 6), (12, 4), (12, 4), (14, 2)]
        reader.close()


def test_a_read_that_gets_on_is_not_given_up() -> None:
    with scripted_planner() as (planner, address):
        reader = BlobClient(address)
        planner.on("ReadBlob", *([[chunk(b"a"), AWAY]] * (2 * blobs.MAX_FRUITLESS_ROUNDS)), [chunk(b"b")])
        assert b"".join(reader.read_range(SHA256, 0, 0)) == b"a" * 2 * blobs.MAX_FRUITLESS_ROUNDS + b"b"
        planner.on("ReadBlob", [chunk(b"a"), AWAY], AWAY)
        with pytest.raises(Unavailable):
            list(reader.read_range(SHA256, 0, 0))
        reader.close()


def test_what_has_come_whole_is_not_asked_for_again() -> None:
    with two_planners() as (first, second, reader):
        first.on("ReadBlob", [chunk(b"abcdef"), AWAY])
        assert b"".join(reader.read_range(SHA256, 10, 6)) == b"abcdef"
        assert second.requests("ReadBlob") == []


def test_what_no_planner_has_or_answers() -> None:
    with two_planners() as (first, second, reader):
        first.on("ReadBlob", AWAY)
        second.on("ReadBlob", AWAY)
        with pytest.raises(Unavailable):
            list(reader.read_range(SHA256, 0, 0))
        first.on("ReadBlob", Refusal(code=grpc.StatusCode.NOT_FOUND))
        with pytest.raises(NotFound):
            list(reader.read_range(SHA256, 0, 0))


CONTENT = bytes(range(10))
PIECES = (memoryview(CONTENT[:4]), memoryview(b""), memoryview(CONTENT[4:]))


def upload(committed_bytes: int) -> planner_pb2.Upload:
    return planner_pb2.Upload(sha256=SHA256, committed_bytes=committed_bytes, complete=committed_bytes == len(CONTENT))


@pytest.mark.parametrize("committed", [0, 3, 4, 7])
def test_an_upload_that_broke_off_goes_on_with_the_next(committed: int) -> None:
    with two_planners() as (first, second, client):
        first.on("GetUpload", upload(0))
        first.on("UploadBlob", AWAY)
        second.on("GetUpload", upload(committed))
        second.on("UploadBlob", upload(len(CONTENT)))
        client.upload(SHA256, PIECES)
        [sent] = second.requests("UploadBlob")
        begin = sent[0].begin
        assert (begin.sha256, begin.size_bytes, begin.offset_bytes) == (SHA256, len(CONTENT), committed)
        assert b"".join(message.chunk for message in sent[1:]) == CONTENT[committed:]


def test_what_a_planner_has_is_not_uploaded() -> None:
    with two_planners() as (first, _, client):
        first.on("GetUpload", upload(len(CONTENT)))
        client.upload(SHA256, PIECES)
        assert not first.requests("UploadBlob")


def test_an_upload_that_nobody_takes_is_given_up() -> None:
    with two_planners() as (first, second, client):
        first.on("GetUpload", AWAY)
        second.on("GetUpload", upload(0))
        # It takes the stream, and does not hold it.
        second.on("UploadBlob", upload(0))
        with pytest.raises(Unavailable, match="no planner takes it"):
            client.upload(SHA256, PIECES)
        assert len(second.requests("UploadBlob")) > 1
        first.on("GetUpload", Refusal(code=grpc.StatusCode.PERMISSION_DENIED, message="not you"))
        with pytest.raises(Unavailable, match="not you"):
            client.upload(SHA256, PIECES)


def test_a_planner_that_is_started_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses: list[float] = []
    monkeypatch.setattr(blobs.time, "sleep", pauses.append)
    with scripted_planner() as (planner, address):
        client = BlobClient(address)
        planner.on("GetUpload", *[AWAY] * 50)
        with pytest.raises(Unavailable):
            client.upload(SHA256, [memoryview(b"abc")])
        assert 30.0 <= sum(pauses) <= 60.0
        assert max(pauses) <= 2.0
        client.close()
