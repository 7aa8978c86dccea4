"""An upload that breaks again and again: what counts as in vain, what is tried again, what is sent and told."""

from __future__ import annotations

import hashlib

import grpc
import pytest

from planner.client import uploads
from planner.client.connection import Connection
from planner.client.records import UploadProgress
from planner.client.uploads import blob_of_bytes, upload_blob
from planner.errors import Conflict, Corrupt, PlannerError, ResourceExhausted, Unavailable
from protos.v1 import planner_pb2
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

MEBIBYTE = 1 << 20
BROKEN = Refusal(code=grpc.StatusCode.UNAVAILABLE, message="the line is dead")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FIRST_PAUSE_SECONDS", 0.0)


def upload(committed_bytes: int, *, complete: bool = False) -> planner_pb2.Upload:
    return planner_pb2.Upload(committed_bytes=committed_bytes, complete=complete)


def sent_from(script: ScriptedPlanner) -> list[int]:
    return [requests[0].begin.offset_bytes for requests in script.requests("UploadBlob")]


def test_a_server_that_takes_nothing_more_is_given_up(
    scripted_connection: tuple[ScriptedPlanner, Connection], no_pauses: None
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(0))
    script.on("UploadBlob", BROKEN)
    with pytest.raises(Unavailable, match="the line is dead"):
        upload_blob(connection, blob_of_bytes("weights", b"x" * 100))
    assert len(sent_from(script)) == uploads.MAX_FRUITLESS_ATTEMPTS


def test_attempts_count_from_the_last_that_brought_something(
    scripted_connection: tuple[ScriptedPlanner, Connection], no_pauses: None
) -> None:
    script, connection = scripted_connection
    # Each step is reached after nearly as many attempts in vain as are allowed.
    vain = uploads.MAX_FRUITLESS_ATTEMPTS - 1
    offsets = [offset for offset in (0, 10, 20, 30) for _ in range(vain)]
    script.on("GetUpload", *map(upload, offsets), upload(40))
    script.on("UploadBlob", *[BROKEN] * len(offsets), upload(100, complete=True))
    upload_blob(connection, blob_of_bytes("weights", b"x" * 100))
    assert sent_from(script) == [*offsets, 40]


def test_a_server_that_was_never_reached_is_not_asked_again(
    scripted_connection: tuple[ScriptedPlanner, Connection],
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", BROKEN)
    with pytest.raises(Unavailable):
        upload_blob(connection, blob_of_bytes("weights", b"x"))
    assert len(script.calls) == 1


def test_a_server_that_restarts_is_asked_again(
    scripted_connection: tuple[ScriptedPlanner, Connection], no_pauses: None
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(5), BROKEN, BROKEN, upload(5))
    script.on("UploadBlob", BROKEN, upload(10, complete=True))
    upload_blob(connection, blob_of_bytes("weights", b"x" * 10))
    assert sent_from(script) == [5, 5]


def test_a_stream_that_the_server_still_holds_is_waited_for(
    scripted_connection: tuple[ScriptedPlanner, Connection], no_pauses: None
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(0), upload(7))
    script.on("UploadBlob", Conflict("another stream writes this blob"), upload(10, complete=True))
    upload_blob(connection, blob_of_bytes("weights", b"0123456789"))
    resumed = script.requests("UploadBlob")[1]
    assert resumed[0].begin.size_bytes == 10
    assert b"".join(request.chunk for request in resumed[1:]) == b"789"


def test_a_stream_that_was_taken_and_not_kept_counts_as_in_vain(
    scripted_connection: tuple[ScriptedPlanner, Connection], no_pauses: None
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(0))
    script.on("UploadBlob", upload(0))
    with pytest.raises(Unavailable, match="took the stream of weights and does not hold all of it"):
        upload_blob(connection, blob_of_bytes("weights", b"x"))
    assert len(sent_from(script)) == uploads.MAX_FRUITLESS_ATTEMPTS


@pytest.mark.parametrize("refusal", [ResourceExhausted("the disk is full"), Corrupt("other bytes")])
def test_what_another_attempt_cannot_mend_is_raised_at_once(
    scripted_connection: tuple[ScriptedPlanner, Connection], refusal: PlannerError
) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(0))
    script.on("UploadBlob", refusal)
    with pytest.raises(type(refusal), match=refusal.message):
        upload_blob(connection, blob_of_bytes("weights", b"x"))
    assert len(sent_from(script)) == 1


def test_pauses_double(
    scripted_connection: tuple[ScriptedPlanner, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, connection = scripted_connection
    pauses: list[float] = []
    monkeypatch.setattr(uploads, "pause", pauses.append)
    script.on("GetUpload", upload(0))
    script.on("UploadBlob", BROKEN)
    with pytest.raises(Unavailable):
        upload_blob(connection, blob_of_bytes("weights", b"x"))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_chunks_progress_and_time_follow_the_size(
    scripted_connection: tuple[ScriptedPlanner, Connection],
) -> None:
    script, connection = scripted_connection
    content = bytes(range(256)) * (10 * MEBIBYTE // 1024) + b"end"
    script.on("GetUpload", upload(100))
    script.on("UploadBlob", upload(len(content), complete=True))
    seen: list[UploadProgress] = []
    upload_blob(connection, blob_of_bytes("weights", content), seen.append)
    [(begin, *chunks)] = script.requests("UploadBlob")
    assert (begin.begin.sha256, begin.begin.offset_bytes) == (hashlib.sha256(content).digest(), 100)
    assert b"".join(request.chunk for request in chunks) == content[100:]
    assert [len(request.chunk) for request in chunks[:-1]] == [MEBIBYTE] * 2
    assert [step.sent_bytes for step in seen] == [100, 100 + MEBIBYTE, 100 + 2 * MEBIBYTE, len(content)]
    assert {(step.name, step.total_bytes) for step in seen} == {("weights", len(content))}
    remaining = script.calls[-1].remaining_seconds
    assert remaining is not None
    # A second more for each MiB, of which there are 2.5.
    assert WAIT_SECONDS - 60 < remaining < WAIT_SECONDS + 6


def test_what_the_server_holds_is_reported_as_sent(scripted_connection: tuple[ScriptedPlanner, Connection]) -> None:
    script, connection = scripted_connection
    script.on("GetUpload", upload(0, complete=True))
    seen: list[UploadProgress] = []
    upload_blob(connection, blob_of_bytes("weights", b"x" * 9), seen.append)
    assert [(step.sent_bytes, step.total_bytes) for step in seen] == [(9, 9)]
    assert [call.method for call in script.calls] == ["GetUpload"]


def test_an_upload_may_take_as_long_as_its_bytes_do(
    scripted_connection: tuple[ScriptedPlanner, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LEAST_BYTES_PER_SECOND", 0.1)
    script, connection = scripted_connection
    script.on("GetUpload", upload(50))
    script.on("UploadBlob", upload(100, complete=True))
    upload_blob(connection, blob_of_bytes("weights", b"x" * 100))
    [call] = [call for call in script.calls if call.method == "UploadBlob"]
    assert call.remaining_seconds is not None
    # 50 bytes take 500 s; gRPC rounds deadlines up by some percent.
    assert 400 < call.remaining_seconds - connection.timeout_seconds < 600
