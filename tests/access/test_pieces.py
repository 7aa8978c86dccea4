"""What is parsed or serialized in pieces is what protobuf makes of the whole."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError, Message

from access import pieces
from access.pieces import is_large, parse_in_pieces, serialize_in_pieces
from protos.v1 import planner_pb2, stage_daemon_pb2


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 64)
    monkeypatch.setattr(pieces, "PIECE_ENTRIES", 3)


def plan_request(rng: random.Random) -> planner_pb2.CreatePlanRequest:
    """With entries in entries, a map, a oneof, packed numbers, and fields that are larger than a piece."""
    request = planner_pb2.CreatePlanRequest(request_id="r" * rng.randrange(200), graph_id="g")
    request.inventory.SetInParent()
    for index in range(rng.randrange(12)):
        request.inventory.devices.add(id=f"gpu{index}", kind="k" * rng.randrange(90), memory_bytes=rng.randrange(2**40))
        request.inventory.links.add(source="gpu0", target=f"gpu{index}", bytes_per_second=rng.random())
    return request


def load_request(rng: random.Random) -> stage_daemon_pb2.LoadStagesRequest:
    request = stage_daemon_pb2.LoadStagesRequest(deployment_id="d", secret=rng.randbytes(rng.randrange(200)))
    for stage in range(rng.randrange(4)):
        module = request.stages.add(stage=stage, graph_sha256=rng.randbytes(32))
        for index in range(rng.randrange(9)):
            module.states.add(name=f"layers.{index}", file_sha256=rng.randbytes(32), length_bytes=rng.randrange(2**40))
    return request


def profile_request(rng: random.Random) -> stage_daemon_pb2.ProfileRequest:
    values = {f"symbol{index}": rng.randrange(100) for index in range(rng.randrange(20))}
    return stage_daemon_pb2.ProfileRequest(graph_sha256=b"s" * 32, symbol_values=values, backward=True)


def train_request(rng: random.Random) -> stage_daemon_pb2.TrainRequest:
    request = stage_daemon_pb2.TrainRequest()
    request.step.weights.extend(rng.random() for _ in range(rng.randrange(40)))
    for sequence in range(rng.randrange(4)):
        microbatch = request.step.microbatches.add(sequence=sequence)
        microbatch.values.add().tensor.data = rng.randbytes(rng.randrange(200))
    return request


@pytest.mark.parametrize("make", [plan_request, load_request, profile_request, train_request])
def test_both_ways(make: object) -> None:
    assert callable(make)
    for seed in range(60):
        message: Message = make(random.Random(seed))
        parsed = type(message)()
        parse_in_pieces(parsed, message.SerializeToString())
        assert parsed == message
        again = type(message)()
        again.ParseFromString(serialize_in_pieces(message))
        assert again == message
        assert serialize_in_pieces(parsed) == serialize_in_pieces(message)


def test_no_piece_is_much_larger_than_one_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a message within a message too."""
    request = load_request(random.Random(3))
    request.stages[0].states.extend([stage_daemon_pb2.StateLocation(name="n" * 20)] * 100)
    merged: list[int] = []

    class Counting:
        def __init__(self, content: bytes) -> None:
            self.reader = pieces._Reader(content)
            flush = self.reader._flush

            def counted(message: Message, start: int, end: int) -> None:
                merged.append(end - start)
                flush(message, start, end)

            monkeypatch.setattr(self.reader, "_flush", counted)

    content = request.SerializeToString()
    Counting(content).reader.merge(type(request)(), 0, len(content))
    assert max(merged) <= 2 * pieces.PIECE_BYTES


def test_a_field_is_left_out_and_order_of_entries_counts() -> None:
    request = plan_request(random.Random(5))
    other = plan_request(random.Random(5))
    other.request_id = "another"
    assert serialize_in_pieces(request, "request_id") == serialize_in_pieces(other, "request_id")
    other.inventory.devices[0].id, other.inventory.devices[1].id = "gpu1", "gpu0"
    assert serialize_in_pieces(request, "request_id") != serialize_in_pieces(other, "request_id")


def test_what_counts_as_large() -> None:
    request = stage_daemon_pb2.LoadStagesRequest(secret=bytes(10_000))
    request.stages.add().states.extend([stage_daemon_pb2.StateLocation()] * 3)
    assert not is_large(request)
    request.stages[0].states.add()
    assert is_large(request)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x0a", "does not end"),
        (b"\xff" * 11, "does not end"),
        (b"\x0a\x05abc", "longer than its message"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x02\xff\xff", "parsing"),
    ],
)
def test_what_is_no_message(content: bytes, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        parse_in_pieces(stage_daemon_pb2.LoadStagesRequest(), content)


def test_more_entries_than_memory_is_there_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_FIELDS", 100)
    parse_in_pieces(planner_pb2.CreatePlanRequest(), b"\x12\x00" * 100)
    with pytest.raises(DecodeError, match="more than 100 fields"):
        parse_in_pieces(planner_pb2.CreatePlanRequest(), b"\x12\x00" * 101)
