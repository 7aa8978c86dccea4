"""Blobs from whichever of several planners answers, each byte once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from protos.v1 import planner_pb2
from stage_daemon.errors import NotFound, Unavailable
from stage_daemon.worker.blobs import BlobReader
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner, scripted_planner

pytestmark = pytest.mark.services
AWAY = Refusal(code=grpc.StatusCode.UNAVAILABLE)
SHA256 = bytes(32)


@contextmanager
def two_planners() -> Iterator[tuple[ScriptedPlanner, ScriptedPlanner, BlobReader]]:
    with scripted_planner() as (first, first_address), scripted_planner() as (second, second_address):
        reader = BlobReader(f"{first_address},{second_address}")
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
