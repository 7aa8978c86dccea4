"""The short cut between a client and a worker of one host, by the client's own end of it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
import torch

from access.door import BEHIND, HEAD, INPUTS, OUTPUTS, framed
from access.host import host_identity
from planner.client.connection import open_channel
from planner.client.door import KeptMemory, Passage, SessionMemory
from planner.client.microbatches import MessageReader, MessageWriter, decode_beside, fill
from planner.client.session import Session
from planner.client.tensors import TensorKind, to_raw
from planner.errors import Unavailable
from planner.graph.ir import Dtype
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidMicrobatch
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import Ingress, InputFormat, Submission
from stage_daemon.transport.declared import DeclaredValue, Symbol, SymbolReference, ValueKind
from stage_daemon.transport.parcel import MicrobatchFailure
from stage_daemon.worker import door as door_module
from stage_daemon.worker.door import Door, Inlet
from stage_daemon.worker.framing import InputReader
from tests.planner.client.loopback_daemon import LoopbackDaemon, serving
from tests.waiting import WAIT_SECONDS, wait_for

ROWS = SymbolReference(1)
VALUES = (
    DeclaredValue(value_id=1, name="flags", kind=ValueKind.TENSOR, dtype=torch.bool, dims=(ROWS,)),
    DeclaredValue(value_id=2, name="count", kind=ValueKind.INTEGER),
    DeclaredValue(value_id=3, name="x", kind=ValueKind.TENSOR, dtype=torch.float32, dims=(ROWS, 3)),
)
INPUT_FORMAT = InputFormat(values=VALUES, symbols={1: Symbol(id=1, name="rows", lower=0)})
Items = tuple[torch.Tensor, int, torch.Tensor]


class Worker:
    def __init__(self) -> None:
        self.taken: list[Submission] = []
        self.unread: list[int] = []
        self.ingress = Ingress(self.taken.append)
        self.door = Door(self.ingress, INPUT_FORMAT, self.unread.append)

    def passage(self, purpose: bytes, session_id: int = 7) -> Passage:
        return Passage(self.door.address(), purpose, session_id)

    def take(self) -> tuple[tuple[int, int], tuple[object, ...]]:
        submission = self.ingress.take()
        assert submission is not None
        return (submission.session_id, submission.sequence), submission.read()


@pytest.fixture
def worker() -> Worker:
    return Worker()


def items(rows: int) -> Items:
    return torch.arange(rows) % 2 == 0, rows, torch.randn(rows, 3)


def message_of(sent: Items) -> tuple[bytes, list[memoryview]]:
    message = stage_daemon_pb2.Microbatch()
    payloads: list[memoryview] = []
    fill(
        message.values,
        [to_raw(sent[0], Dtype.BOOL), sent[1], to_raw(sent[2], Dtype.FLOAT32)],
        payloads,
    )
    return message.SerializeToString(), payloads


def send(passage: Passage, sequence: int, sent: Items) -> None:
    passage.send(sequence, *message_of(sent), WAIT_SECONDS)


def result(passage: Passage) -> tuple[int, list[object]]:
    taken = passage.take(WAIT_SECONDS)
    assert taken is not None
    sequence, message, payload = taken
    return sequence, decode_beside(MessageReader().read(message).places, TensorKind.TORCH, payload)


def assert_same(received: object, sent: Items) -> None:
    assert isinstance(received, tuple | list)
    assert torch.equal(received[0], sent[0])
    assert received[1] == sent[1]
    assert torch.equal(received[2], sent[2])


def test_microbatches_come_in_with_their_values(worker: Worker) -> None:
    passage = worker.passage(INPUTS)
    for sequence, rows in enumerate((5, 1, 0, 300), start=1):
        sent = items(rows)
        send(passage, sequence, sent)
        place, received = worker.take()
        assert place == (7, sequence)
        assert_same(received, sent)
        assert received[2].data_ptr() % 64 == 0
    # Nobody acknowledges what comes this way.
    assert worker.taken == []


# Small ones that are read together, and large ones, whose ends lie on either side of what is read at once.
ROWS_OF_MANY = (5, 1, 0, 300, 2, 5030, 5040, 1, 5041, 5060, 3, 20_000, 7, 0, 4000, 4000, 1)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 10, 1 << 16, 1 << 22])
def test_microbatches_come_in_whatever_pieces(piece_bytes: int) -> None:
    ours, theirs = socket.socketpair()
    rows_of_all = ROWS_OF_MANY[:5] if piece_bytes < 10 else ROWS_OF_MANY
    inlet, everything = Inlet(ours, 7, InputReader(INPUT_FORMAT)), [items(rows) for rows in rows_of_all]
    sent = b"".join(b"".join(framed(sequence, *message_of(each))) for sequence, each in enumerate(everything, start=1))
    submissions: list[Submission] = []
    with ours, theirs:
        for begin in range(0, len(sent), piece_bytes):
            rest = memoryview(sent)[begin : begin + piece_bytes]
            while rest:
                rest = rest[theirs.send(rest[: 1 << 16]) :]
                submissions += inlet.advance()
        while len(submissions) < len(everything):
            submissions += inlet.advance()
    assert [submission.sequence for submission in submissions] == list(range(1, len(everything) + 1))
    for submission, each in zip(submissions, everything, strict=True):
        assert_same(submission.read(), each)


def test_results_of_any_sizes_come_out(worker: Worker) -> None:
    passage = worker.passage(OUTPUTS)
    batches = [items(rows) for rows in ROWS_OF_MANY * 2]
    for sequence, each in enumerate(batches, start=1):
        assert worker.door.give(Result(session_id=7, sequence=sequence, items=each))
    for sequence, each in enumerate(batches, start=1):
        number, received = result(passage)
        assert number == sequence
        assert_same(received, each)
    assert not passage.is_ready()


def test_results_go_to_the_session_that_they_are_of(worker: Worker) -> None:
    passages = {session_id: worker.passage(OUTPUTS, session_id) for session_id in (1, 2)}
    batches = {session_id: [items(rows) for rows in (2, 0, 50)] for session_id in passages}
    for sequence in (1, 2, 3):
        for session_id in passages:
            sent = batches[session_id][sequence - 1]
            assert worker.door.give(Result(session_id=session_id, sequence=sequence, items=sent))
    assert not worker.door.give(Result(session_id=3, sequence=1))
    for session_id, passage in passages.items():
        for sequence in (1, 2, 3):
            received = result(passage)
            assert received[0] == sequence
            assert_same(received[1], batches[session_id][sequence - 1])


def test_results_of_one_shape_have_their_own_bytes(worker: Worker) -> None:
    passage = worker.passage(OUTPUTS)
    real, complex_ = torch.randn(3, 3), torch.randn(3, 3, dtype=torch.complex64)
    tensors = [real, real.t(), torch._neg_view(real), real.expand(2, 3, 3)[1], complex_, complex_.conj(), complex_.t()]
    for sequence, tensor in enumerate([*tensors, *tensors], start=1):
        worker.door.give(Result(session_id=7, sequence=sequence, items=(tensor,)))
        assert torch.equal(result(passage)[1][0], tensor)


def test_a_failure_and_a_result_that_cannot_be_sent(worker: Worker) -> None:
    passage = worker.passage(OUTPUTS)
    failure = MicrobatchFailure(reason="STAGE_FAILED", message="index out of range", stage=1)
    worker.door.give(Result(session_id=7, sequence=1, failure=failure))
    worker.door.give(Result(session_id=7, sequence=2, items=(torch.ones(3), torch.ones(1, dtype=torch.uint16))))
    worker.door.give(Result(session_id=7, sequence=3, items=items(2)))
    for reason in ("STAGE_FAILED", "INVALID_ARGUMENT"):
        outcome = passage.take(WAIT_SECONDS)
        assert outcome is not None
        _, message, payload = outcome
        assert stage_daemon_pb2.ReceiveOutputsResponse.FromString(message).failure.reason == reason
        assert len(payload) == 0
    assert result(passage)[0] == 3


@pytest.mark.parametrize(
    ("token", "purpose"), [("0" * 32, INPUTS), ("", INPUTS), ("0" * 32, OUTPUTS), (None, b"x"), (None, b"")]
)
def test_strangers_are_turned_away(worker: Worker, token: str | None, purpose: bytes) -> None:
    address = worker.door.address()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"\0{address.socket_name}")
        stranger.sendall((address.token if token is None else token).encode() + purpose + bytes(8))
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    passage = worker.passage(OUTPUTS)
    worker.door.give(Result(session_id=7, sequence=1))
    assert result(passage) == (1, [])


def test_who_says_nothing_delays_nobody(worker: Worker) -> None:
    address = worker.door.address()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(70)]
    for stranger in silent:
        stranger.connect(f"\0{address.socket_name}")
    passage = worker.passage(OUTPUTS)
    worker.door.give(Result(session_id=7, sequence=1))
    assert result(passage) == (1, [])
    # They do not pile up either.
    assert silent[0].recv(1) == b""
    for stranger in silent:
        stranger.close()


def test_who_comes_while_there_is_no_descriptor_waits(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, refusals = socket.socket.accept, iter((True, True))

    def full_at_first(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(refusals, False):
            raise OSError(errno.EMFILE, "no descriptor is free")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", full_at_first)
    passage = worker.passage(OUTPUTS)
    assert next(refusals, None) is None
    worker.door.give(Result(session_id=7, sequence=1))
    assert result(passage) == (1, [])


def test_one_way_out_for_each_session(worker: Worker) -> None:
    first = worker.passage(OUTPUTS)
    with pytest.raises(ConnectionError):
        worker.passage(OUTPUTS)
    worker.door.give(Result(session_id=7, sequence=1))
    assert result(first) == (1, [])


def test_half_a_microbatch_holds_nobody_up(worker: Worker) -> None:
    slow, quick = worker.passage(INPUTS, 1), worker.passage(INPUTS, 2)
    slow._socket.sendall(HEAD.pack(1, 100, BEHIND, 0)[:10])
    for sequence in (1, 2):
        send(quick, sequence, items(2))
        assert worker.take()[0] == (2, sequence)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(2, 10, BEHIND, 0),
        HEAD.pack(1, 1 << 31, BEHIND, 0),
        HEAD.pack(1, 0, BEHIND, 1 << 60),
        HEAD.pack(1, 0, BEHIND, 1 << 39),
    ],
)
def test_a_client_that_breaks_the_protocol_is_let_go(worker: Worker, head: bytes) -> None:
    broken, good = worker.passage(INPUTS, 1), worker.passage(INPUTS, 2)
    broken._socket.sendall(head)
    send(good, 1, items(2))
    assert worker.take()[0] == (2, 1)
    wait_for(lambda: not _is_open(broken, worker, good), "the broken client's connection to end")


def _is_open(passage: Passage, worker: Worker, other: Passage) -> bool:
    try:
        return passage._socket.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    ("message", "payload", "words"),
    [
        (b"\xff\xff", b"", "no Microbatch"),
        (stage_daemon_pb2.Microbatch().SerializeToString(), b"", "found 0 values, needs 3"),
        (None, b"\0" * 20, r"'x'.*0 bytes.*need 24"),
    ],
)
def test_a_microbatch_that_does_not_fit_fails_alone(
    worker: Worker, message: bytes | None, payload: bytes, words: str
) -> None:
    passage = worker.passage(INPUTS)
    if message is None:
        whole = stage_daemon_pb2.Microbatch()
        sent = items(2)
        fill(whole.values, [to_raw(sent[0], Dtype.BOOL), 2, to_raw(sent[2], Dtype.FLOAT32)], [])
        message = whole.SerializeToString()
    passage.send(1, message, [memoryview(payload)], WAIT_SECONDS)
    with pytest.raises(InvalidMicrobatch, match=words):
        worker.take()
    send(passage, 2, items(1))
    assert worker.take()[0] == (7, 2)


def test_a_message_that_is_known_is_checked_again_with_other_bytes_beside_it(worker: Worker) -> None:
    passage = worker.passage(INPUTS)
    flags, count, x = items(2)
    message, payloads = MessageWriter().message([to_raw(flags, Dtype.BOOL), count, to_raw(x, Dtype.FLOAT32)])
    for sequence in (1, 2):
        passage.send(sequence, message, payloads, WAIT_SECONDS)
        assert_same(worker.take()[1], (flags, count, x))
    passage.send(3, message, [memoryview(bytes(20))], WAIT_SECONDS)
    with pytest.raises(InvalidMicrobatch, match="need 24"):
        worker.take()


def test_what_was_sent_before_the_end_is_taken_and_nothing_after(worker: Worker) -> None:
    passage = worker.passage(INPUTS)
    for sequence in (1, 2, 3):
        send(passage, sequence, items(2))
    worker.ingress.close()
    assert [worker.take()[0][1] for _ in range(3)] == [1, 2, 3]
    assert worker.ingress.take() is None
    with pytest.raises(ConnectionError):
        send(passage, 4, items(2))


def test_a_slow_reader_loses_nothing_and_holds_nobody_up(worker: Worker) -> None:
    passage = worker.passage(OUTPUTS)
    big = (torch.ones(1), 0, torch.arange(300_000.0))
    for sequence in range(1, 21):
        worker.door.give(Result(session_id=7, sequence=sequence, items=big))
    for sequence in range(1, 21):
        number, received = result(passage)
        assert number == sequence
        assert_same(received, big)
    worker.door.flush()
    assert worker.unread == []


def test_a_client_that_never_reads_loses_its_session(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_WAITING_RESULTS", 3)
    passage = worker.passage(OUTPUTS)
    # More than any connection holds.
    big = (torch.arange(4_000_000.0),)
    for sequence in range(1, 30):
        worker.door.give(Result(session_id=7, sequence=sequence, items=big))
    assert worker.unread == [7]
    worker.door.flush()
    # What the connection holds already can be read; then it ends.
    while passage.take(WAIT_SECONDS) is not None:
        pass


def test_bytes_that_wait_are_bounded_too(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_WAITING_BYTES", 2_000_000)
    passage = worker.passage(OUTPUTS)
    for sequence in range(1, 30):
        worker.door.give(Result(session_id=7, sequence=sequence, items=(torch.arange(300_000.0),)))
    assert worker.unread == [7]
    passage.close()


def test_a_client_that_has_left_is_forgotten(worker: Worker) -> None:
    worker.passage(OUTPUTS).close()
    wait_for(lambda: not worker.door.give(Result(session_id=7, sequence=1)), "the session to be forgotten")
    worker.passage(OUTPUTS)


class WithDoor(LoopbackDaemon):
    """A daemon whose worker's results go by the door, and that dies when they have been sent."""

    def __init__(self, worker: Worker, door: stage_daemon_pb2.WorkerDoor) -> None:
        super().__init__()
        self._worker = worker
        self._door = door

    def ReceiveOutputs(
        self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.ReceiveOutputsResponse]:
        session_id = request.open.session_id
        self._sessions[session_id] = None  # type: ignore[assignment]
        yield stage_daemon_pb2.ReceiveOutputsResponse(door=self._door)
        for _ in range(3):
            submission = self._worker.ingress.take()
            assert submission is not None
            sent = submission.read()
            self._worker.door.give(Result(session_id=session_id, sequence=submission.sequence, items=sent))
        for outlet in tuple(self._worker.door._outlets.values()):
            outlet.end()
        context.abort(grpc.StatusCode.UNAVAILABLE, "the worker died")

    def SendInputs(
        self, requests: Iterator[stage_daemon_pb2.SendInputsRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_daemon_pb2.SendInputsResponse]:
        next(requests)
        yield stage_daemon_pb2.SendInputsResponse(door=self._door)
        for request in requests:
            raise AssertionError(f"{request} came by the stream")


@contextmanager
def session(daemon: LoopbackDaemon, kept: KeptMemory | None = None) -> Iterator[Session]:
    with serving(daemon) as address:
        channel = open_channel(address, message_bytes=1 << 20)
        with Session(
            generation=0,
            deployment_id="dep-1",
            inputs=channel,
            outputs=channel,
            unreachable=address,
            deadline_seconds=WAIT_SECONDS,
            kept=kept,
        ) as opened:
            yield opened
        channel.close()


@pytest.mark.services
def test_results_on_their_way_come_before_what_ended_the_session(worker: Worker) -> None:
    with session(WithDoor(worker, worker.door.address())) as opened:
        batches = [items(rows) for rows in (2, 40, 1)]
        for flags, count, x in batches:
            opened.send([to_raw(flags, Dtype.BOOL), count, to_raw(x, Dtype.FLOAT32)])
        wait_for(lambda: not opened._arrivals.empty(), "the daemon to say that the worker died")
        for batch in batches:
            arrival = opened.take()
            assert_same(decode_beside(arrival.places, TensorKind.TORCH, arrival.payload), batch)
        with pytest.raises(Unavailable, match="the worker died"):
            opened.take()


@pytest.mark.services
def test_a_door_that_cannot_be_reached_leaves_the_stream() -> None:
    class Unreachable(LoopbackDaemon):
        def ReceiveOutputs(
            self, request: stage_daemon_pb2.ReceiveOutputsRequest, context: grpc.ServicerContext
        ) -> Iterator[stage_daemon_pb2.ReceiveOutputsResponse]:
            answers = super().ReceiveOutputs(request, context)
            next(answers)
            yield stage_daemon_pb2.ReceiveOutputsResponse(
                door=stage_daemon_pb2.WorkerDoor(host=host_identity(), socket_name="nobody-listens", token="x")
            )
            yield from answers

    with session(Unreachable()) as opened:
        opened.send([5])
        arrival = opened.take()
        assert arrival.response.result.values[0].integer == 5
        assert arrival.payload is None


@pytest.mark.services
def test_a_session_that_ends_well_leaves_its_memory_to_the_next(worker: Worker) -> None:
    kept, results = KeptMemory(), []
    batches = [items(20_000 + rows) for rows in (0, 1, 2)]
    memories = []
    for _ in range(2):
        with session(WithDoor(worker, worker.door.address()), kept) as opened:
            for flags, count, x in batches:
                opened.send([to_raw(flags, Dtype.BOOL), count, to_raw(x, Dtype.FLOAT32)])
                arrival = opened.take()
                results.append(decode_beside(arrival.places, TensorKind.TORCH, arrival.payload))
        memories.append(kept.take())
        assert memories[-1].inputs is not None
        assert memories[-1].outputs is not None
        kept.give_back(memories[-1])
    assert memories[0] == memories[1]
    # Those of the first session are in the memory that the second used.
    for received, batch in zip(results, batches * 2, strict=True):
        assert_same(received, batch)


@pytest.mark.services
def test_a_session_that_ends_with_something_under_way_leaves_nothing(worker: Worker) -> None:
    kept = KeptMemory()
    flags, count, x = items(20_000)
    with session(WithDoor(worker, worker.door.address()), kept) as opened:
        for _ in range(2):
            opened.send([to_raw(flags, Dtype.BOOL), count, to_raw(x, Dtype.FLOAT32)])
        opened.take()
    assert kept.take() == SessionMemory()
