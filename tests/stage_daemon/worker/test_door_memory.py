"""Shared memory between a client and a worker: what lies there arrives, and a client can do no harm by it."""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import pickle
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from access.door import (
    BEHIND,
    HEAD,
    INPUTS,
    MAX_MEMORY_BYTES,
    MIN_SLOT_BYTES,
    OUTPUTS,
    OUTPUTS_SHARED,
    SlotReader,
    announcement,
)
from access.ring import Ring, create_ring
from planner.client.door import KeptMemory, Passage, SessionMemory
from planner.client.microbatches import MessageReader, decode_beside, fill
from planner.client.tensors import TensorKind, to_raw
from planner.graph.ir import Dtype
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import Ingress, InputFormat
from stage_daemon.transport.declared import DeclaredValue, Symbol, SymbolReference, ValueKind
from stage_daemon.worker.door import Door
from tests.named_memory import named_memory
from tests.waiting import WAIT_SECONDS, wait_for

ROWS = SymbolReference(1)
DTYPES = {"flags": torch.bool, "index": torch.int64, "x": torch.float32}
VALUES = tuple(
    DeclaredValue(value_id=number, name=name, kind=ValueKind.TENSOR, dtype=dtype, dims=(ROWS,))
    for number, (name, dtype) in enumerate(DTYPES.items(), start=1)
)
INPUT_FORMAT = InputFormat(values=VALUES, symbols={1: Symbol(id=1, name="rows", lower=0)})
LARGE = 20_000
PAGE = mmap.PAGESIZE


class Worker:
    def __init__(self, foreign_inputs: frozenset[int] = frozenset({0, 1, 2})) -> None:
        self.unread: list[int] = []
        self.ingress = Ingress(lambda submission: None)
        self.door = Door(self.ingress, INPUT_FORMAT, self.unread.append, foreign_inputs)

    def passage(
        self, purpose: bytes, session_id: int = 7, memory: Ring | None = None, *, answers: bool = False
    ) -> Passage:
        """Without answers the first payload lies in memory already."""
        address = self.door.address()
        if not answers:
            address.ClearField("answers_memory")
        return Passage(address, purpose, session_id, memory)

    def take(self) -> tuple[torch.Tensor, ...]:
        deadline = time.monotonic() + WAIT_SECONDS
        # `Ingress.take` waits for as long as nothing comes.
        while not self.ingress._waiting:
            left_seconds = deadline - time.monotonic()
            assert left_seconds > 0, f"no microbatch reached the worker in {WAIT_SECONDS:.0f} s"
            self.ingress._gather(left_seconds)
        submission = self.ingress.take()
        assert submission is not None
        return submission.read()  # type: ignore[return-value]


def tensors(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.arange(rows) % 3 == 0, torch.arange(rows), torch.randn(rows)


def message_of(sent: Sequence[torch.Tensor]) -> tuple[bytes, list[memoryview]]:
    message, payloads = stage_daemon_pb2.Microbatch(), list[memoryview]()
    fill(message.values, [to_raw(one, Dtype(str(one.dtype).removeprefix("torch."))) for one in sent], payloads)
    return message.SerializeToString(), payloads


def send(passage: Passage, sequence: int, sent: Sequence[torch.Tensor]) -> None:
    passage.send(sequence, *message_of(sent), WAIT_SECONDS)


def result(passage: Passage) -> list[torch.Tensor]:
    taken = passage.take(WAIT_SECONDS)
    assert taken is not None
    _, message, payload = taken
    return decode_beside(MessageReader().read(message).places, TensorKind.TORCH, payload)  # type: ignore[return-value]


def assert_same(received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
    assert [one.dtype for one in received] == [one.dtype for one in sent]
    assert all(map(torch.equal, received, sent))


def ring_of(passage: Passage) -> Ring:
    assert passage._outgoing is not None
    assert passage._outgoing._ring is not None
    return passage._outgoing._ring


def num_descriptors() -> int:
    """Doors of earlier tests may still be closing some."""
    return len(os.listdir("/proc/self/fd"))


def test_large_microbatches_arrive_in_shared_memory_whatever_their_shapes() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS)
    for sequence, rows in enumerate((1, LARGE, 0, 50 * LARGE, 10, LARGE, 200 * LARGE, LARGE), start=1):
        sent = tensors(rows)
        send(passage, sequence, sent)
        received = worker.take()
        assert_same(received, sent)
        assert all(one.data_ptr() % 64 == 0 for one in received if rows)


def cross(worker: Worker, passage: Passage, sequence: int, rows: int) -> torch.Tensor:
    sent = tensors(rows)
    send(passage, sequence, sent)
    received = worker.take()
    assert_same(received, sent)
    return received[2]


def is_in(ring: Ring | None, tensor: torch.Tensor) -> bool:
    """Whether what the client writes there changes what the worker has."""
    if ring is None:
        return False
    before = tensor.clone()
    overwrite(ring)
    return not torch.equal(before, tensor)


def test_memory_is_used_once_the_worker_has_said_that_it_took_it() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS, answers=True)
    for sequence, (rows, was_taken) in enumerate(
        ((LARGE, False), (LARGE, True), (9 * LARGE, False), (LARGE, True), (9 * LARGE, True)), start=1
    ):
        received = cross(worker, passage, sequence, rows)
        assert is_in(passage.memory, received) == was_taken
    ring = passage.memory
    passage.close()
    # Of a session before: the worker has to take it again.
    again = worker.passage(INPUTS, 8, ring, answers=True)
    received = cross(worker, again, 1, LARGE)
    assert again.memory is ring
    assert not is_in(ring, received)
    assert is_in(ring, cross(worker, again, 2, LARGE))


def test_until_the_answer_nothing_lies_in_the_memory_before_either() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS, answers=True)
    # Just large enough for a slot, for it has to fit into the socket.
    rows = MIN_SLOT_BYTES // 13 + 20
    for sequence in (1, 2):
        cross(worker, passage, sequence, rows)
    assert passage._outgoing is not None
    assert passage._outgoing.take(9 * MIN_SLOT_BYTES, partial(passage._announce, WAIT_SECONDS)) is None
    for sequence in (3, 4):
        cross(worker, passage, sequence, rows)


@pytest.mark.services
@pytest.mark.parametrize("want", ["any descriptor", "a second descriptor", "address space"])
def test_memory_that_a_worker_cannot_have_is_refused_and_all_goes_on(
    want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    passage = worker.passage(INPUTS, answers=True)
    cross(worker, passage, 1, LARGE)
    assert is_in(passage.memory, cross(worker, passage, 2, LARGE))
    small = passage.memory
    sent = tensors(9 * LARGE)
    send(passage, 3, sent)
    with monkeypatch.context() as full:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if want.endswith("descriptor"):
            # The mapping has one of its own.
            num_free = 1 if want == "a second descriptor" else 0
            resource.setrlimit(resource.RLIMIT_NOFILE, (least_free_number() + num_free, hard))
        else:
            full.setattr("access.ring._Mapping", without_room)
        try:
            received = worker.take()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_same(received, sent)
    # The client makes no more, and uses what there is.
    assert passage.memory is small
    assert not is_in(passage.memory, cross(worker, passage, 4, 9 * LARGE))
    assert passage.memory is small
    assert is_in(small, cross(worker, passage, 5, LARGE))


def least_free_number() -> int:
    """Of descriptors."""
    number = os.dup(0)
    os.close(number)
    return number


def without_room(*_: object) -> mmap.mmap:
    raise OSError(errno.ENOMEM, "no room")


def test_a_worker_that_answers_what_was_not_asked_is_believed_nothing() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS, answers=True)
    cross(worker, passage, 1, LARGE)
    assert passage._outgoing is not None
    assert passage._outgoing.awaits_answer
    with pytest.raises(ConnectionError, match="b'x' came"):
        passage._outgoing.answered(b"x")
    assert passage._outgoing.ring is None


def test_more_microbatches_than_slots_arrive_in_order() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS)
    everything = [tensors(4 * MIN_SLOT_BYTES // 13 + number) for number in range(17)]
    for sequence, sent in enumerate(everything, start=1):
        send(passage, sequence, sent)
    received = [worker.take() for _ in everything]
    for one, sent in zip(received, everything, strict=True):
        assert_same(one, sent)
    assert ring_of(passage).take() is None
    del received, one
    assert ring_of(passage).take() is not None


def overwrite(ring: Ring) -> None:
    """What a hostile client does once the worker has read."""
    for slot in range(ring.num_slots):
        ring.write(slot, 0, b"\xff" * ring.slot_bytes, ring.slot_bytes)


def test_integers_are_the_workers_own_and_floats_stay_where_the_client_wrote_them() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS)
    sent = tensors(LARGE)
    send(passage, 1, sent)
    flags, index, x = worker.take()
    overwrite(ring_of(passage))
    assert_same((flags, index), sent[:2])
    assert x.isnan().all()


def test_floats_that_are_no_mere_numbers_are_the_workers_own_too() -> None:
    worker = Worker(frozenset({0, 1}))
    passage = worker.passage(INPUTS)
    sent = tensors(LARGE)
    send(passage, 1, sent)
    received = worker.take()
    overwrite(ring_of(passage))
    assert_same(received, sent)
    # All is copied: the slot is free though the tensors are kept.
    assert not ring_of(passage).has_taken()


def test_results_are_in_the_workers_memory_and_may_be_kept() -> None:
    worker = Worker()
    passage = worker.passage(OUTPUTS)
    batches = [tensors(LARGE + number) for number in range(40)]
    kept = []
    for sequence, each in enumerate(batches, start=1):
        assert worker.door.give(Result(session_id=7, sequence=sequence, items=each))
        kept.append(result(passage))
    for received, each in zip(kept, batches, strict=True):
        assert_same(received, each)
    outlet = worker.door._outlets[7]
    assert outlet._slots is not None
    ring = outlet._slots._ring
    assert ring is not None
    assert ring.take() is None
    del kept, received
    assert ring.take() is not None


def test_results_outlive_session_and_worker_and_can_be_pickled() -> None:
    worker = Worker()
    passage = worker.passage(OUTPUTS)
    sent = tensors(LARGE)
    worker.door.give(Result(session_id=7, sequence=1, items=sent))
    received = result(passage)
    passage.close()
    wait_for(lambda: not worker.door.give(Result(session_id=7, sequence=2, items=sent)), "the session to be forgotten")
    assert_same(received, sent)
    assert_same(pickle.loads(pickle.dumps(received)), sent)  # noqa: S301
    received[2].share_memory_()
    received[2] += 1
    assert torch.equal(received[2], sent[2] + 1)


def test_a_closed_session_leaves_no_descriptor() -> None:
    worker = Worker()
    sent = tensors(LARGE)
    before = num_descriptors()
    for session_id in range(1, 30):
        inputs, outputs = worker.passage(INPUTS, session_id), worker.passage(OUTPUTS, session_id)
        send(inputs, 1, sent)
        worker.door.give(Result(session_id=session_id, sequence=1, items=worker.take()))
        assert_same(result(outputs), sent)
        inputs.close()
        outputs.close()
        # The lane notices when it looks for the next microbatch.
        assert worker.ingress._gather(WAIT_SECONDS)
    wait_for(lambda: num_descriptors() <= before, "the door's thread to close the last session")


def test_memory_of_one_session_serves_the_next_and_what_is_kept_stays() -> None:
    worker = Worker()
    inputs = outputs = None
    kept = []
    for session_id in range(1, 4):
        ways = worker.passage(INPUTS, session_id, inputs), worker.passage(OUTPUTS, session_id, outputs)
        for sequence in (1, 2):
            sent = tensors(LARGE + 10 * session_id + sequence)
            send(ways[0], sequence, sent)
            worker.door.give(Result(session_id=session_id, sequence=sequence, items=worker.take()))
            kept.append((result(ways[1]), sent))
        assert inputs in (None, ways[0].memory)
        assert outputs in (None, ways[1].memory)
        inputs, outputs = ways[0].memory, ways[1].memory
        for way in ways:
            way.close()
    for received, sent in kept:
        assert_same(received, sent)
    assert isinstance(inputs, Ring)
    assert isinstance(outputs, Ring)
    assert not inputs.has_taken()
    # What the client still uses, and no more.
    assert outputs._memory[: outputs.num_slots].count(1) == len(kept)


def test_memory_that_is_not_worth_keeping() -> None:
    large, descriptor = create_ring(8, 1 << 26, keeps_descriptor=True)
    os.close(descriptor)
    small, descriptor = create_ring(2, PAGE, keeps_descriptor=True)
    os.close(descriptor)
    kept = KeptMemory()
    kept.give_back(SessionMemory(large, small))
    assert kept.take() == SessionMemory(None, small)
    lent = small.lend(0)
    small.keep_lent()
    kept.give_back(SessionMemory(small, None))
    assert kept.take() == SessionMemory()
    del lent
    for _ in range(9):
        kept.give_back(SessionMemory())
    assert len(kept._kept) == 4
    kept.close()
    kept.give_back(SessionMemory(small, small))
    assert kept.take() == SessionMemory()


@pytest.mark.services
def test_a_fork_does_not_write_to_its_parents_memory() -> None:
    ring, descriptor = create_ring(2, PAGE, keeps_descriptor=True)
    os.close(descriptor)
    kept = KeptMemory()
    kept.give_back(SessionMemory(ring, ring))
    child = os.fork()
    if child == 0:
        os._exit(kept.take() != SessionMemory())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept.take() == SessionMemory(ring, ring)


def test_kept_memory_is_gone_with_its_owner() -> None:
    before = num_descriptors()
    ring, descriptor = create_ring(2, PAGE, keeps_descriptor=True)
    os.close(descriptor)
    assert os.fstat(ring.descriptor).st_size == 3 * PAGE
    del ring
    assert num_descriptors() <= before


def hand_over(worker: Worker, announced: bytes, *descriptors: int) -> bytes:
    """What the worker answers to memory for results."""
    address = worker.door.address()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{address.socket_name}")
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        connection.sendmsg([address.token.encode() + OUTPUTS_SHARED + bytes(8) + announced], sent)
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            return connection.recv(1)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("what", ["unsealed", "small", "missing", "huge", "several"])
def test_memory_for_results_is_looked_at_too(what: str) -> None:
    worker = Worker()
    before = num_descriptors()
    handed: dict[str, tuple[bytes, tuple[int, ...]]] = {
        "unsealed": (TWO_SLOTS, (memory(3 * PAGE, 0),)),
        "small": (TWO_SLOTS, (memory(PAGE),)),
        "missing": (TWO_SLOTS, ()),
        "huge": (HEAD.pack(0, 0, 2, MAX_MEMORY_BYTES), (memory(PAGE + 2 * MAX_MEMORY_BYTES),)),
        "several": (TWO_SLOTS, (memory(3 * PAGE), memory(3 * PAGE))),
    }
    for name, (_, descriptors) in handed.items():
        for descriptor in descriptors if name != what else ():
            os.close(descriptor)
    assert hand_over(worker, handed[what][0], *handed[what][1]) == b""
    wait_for(lambda: num_descriptors() <= before, "what was handed over to be closed")
    assert hand_over(worker, TWO_SLOTS, memory(3 * PAGE)) == b"w"


@pytest.mark.parametrize("purpose", [INPUTS, OUTPUTS])
def test_who_takes_no_shared_memory_is_served_by_the_socket(purpose: bytes) -> None:
    worker = Worker()
    door = worker.door.address()
    door.ClearField("shares_memory")
    passage = Passage(door, purpose, 7)
    sent = tensors(LARGE // 4)
    for sequence in (1, 2):
        if purpose == INPUTS:
            send(passage, sequence, sent)
            assert_same(worker.take(), sent)
        else:
            worker.door.give(Result(session_id=7, sequence=sequence, items=sent))
            assert_same(result(passage), sent)
    assert passage._outgoing is passage._incoming is None


def test_a_host_without_such_memory_is_served_by_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, flags: int) -> int:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "memfd_create", refused)
    worker = Worker()
    inputs, outputs = worker.passage(INPUTS), worker.passage(OUTPUTS)
    for sequence in (1, 2):
        sent = tensors(4000)
        send(inputs, sequence, sent)
        received = worker.take()
        assert_same(received, sent)
        worker.door.give(Result(session_id=7, sequence=sequence, items=received))
        assert_same(result(outputs), sent)


def memory(size_bytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) -> int:
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def read_only() -> int:
    descriptor = memory(3 * PAGE)
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    finally:
        os.close(descriptor)


def announce(passage: Passage, head: bytes, *descriptors: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    passage._socket.sendmsg([head], rights)
    for descriptor in descriptors:
        os.close(descriptor)


TWO_SLOTS = HEAD.pack(0, 0, 2, PAGE)
HOSTILE: dict[str, Callable[[Passage], None]] = {
    "no seals": lambda passage: announce(passage, TWO_SLOTS, memory(3 * PAGE, 0)),
    "could grow": lambda passage: announce(passage, TWO_SLOTS, memory(3 * PAGE, fcntl.F_SEAL_SHRINK)),
    "too small": lambda passage: announce(passage, TWO_SLOTS, memory(2 * PAGE)),
    "a file": lambda passage: announce(passage, TWO_SLOTS, os.open("/proc/self/exe", os.O_RDONLY)),
    "a counter": lambda passage: announce(passage, TWO_SLOTS, os.eventfd(0)),
    "read only": lambda passage: announce(passage, TWO_SLOTS, read_only()),
    "several": lambda passage: announce(passage, TWO_SLOTS, memory(3 * PAGE), memory(3 * PAGE)),
    "no descriptor": lambda passage: announce(passage, TWO_SLOTS),
    "no slots": lambda passage: announce(passage, HEAD.pack(0, 0, 0, PAGE), memory(PAGE)),
    "too large": lambda passage: announce(passage, HEAD.pack(0, 0, 2, MAX_MEMORY_BYTES), memory(2 * MAX_MEMORY_BYTES)),
    "no memory at all": lambda passage: announce(passage, HEAD.pack(1, 4, 1, 100) + b"four"),
    "a slot too many": lambda passage: announce(passage, TWO_SLOTS + HEAD.pack(1, 0, 3, 8), memory(3 * PAGE)),
    "more than a slot": lambda passage: announce(passage, TWO_SLOTS + HEAD.pack(1, 0, 2, PAGE + 1), memory(3 * PAGE)),
    "a long message": lambda passage: announce(passage, TWO_SLOTS + HEAD.pack(1, 1 << 20, 1, 8), memory(3 * PAGE)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_client_whose_memory_is_none_is_let_go_and_harms_nobody(what: str) -> None:
    worker = Worker()
    good = worker.passage(INPUTS, 2)
    before = num_descriptors()
    hostile = worker.passage(INPUTS, 1)
    HOSTILE[what](hostile)
    sent = tensors(LARGE)
    assert worker.ingress._gather(WAIT_SECONDS)
    assert hostile._socket.recv(1) == b""
    hostile.close()
    wait_for(lambda: num_descriptors() <= before, "what the hostile client gave to be closed")
    send(good, 1, sent)
    assert_same(worker.take(), sent)


def test_only_so_many_memories_are_kept_of_a_client() -> None:
    worker = Worker()
    hostile = worker.passage(INPUTS, 1)
    message, payloads = message_of(tensors(1))
    num_bytes = 64 * (len(payloads) - 1) + 4
    # The last one, and two that are in use.
    for sequence in (1, 2, 3):
        announce(hostile, TWO_SLOTS + HEAD.pack(sequence, len(message), 1, num_bytes) + message, memory(3 * PAGE))
        assert worker.ingress._gather(WAIT_SECONDS)
    assert len(worker.ingress._waiting) == 3
    assert len(worker.ingress._sources) == 1
    announce(hostile, TWO_SLOTS, memory(3 * PAGE))
    assert worker.ingress._gather(WAIT_SECONDS)
    assert worker.ingress._sources == {}


def test_a_sender_makes_no_more_memories_than_are_kept() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS)
    received = []
    for sequence in range(1, 9):
        sent = tensors(LARGE << (sequence // 2))
        send(passage, sequence, sent)
        received.append((sent, worker.take()))
    for sent, one in received:
        assert_same(one, sent)
    passage.close()


def test_junk_in_the_first_page_of_the_clients_memory_changes_nothing_for_the_worker() -> None:
    worker = Worker()
    inputs, outputs = worker.passage(INPUTS), worker.passage(OUTPUTS)
    sent = tensors(LARGE)
    for sequence in range(1, 6):
        worker.door.give(Result(session_id=7, sequence=sequence, items=sent))
        result(outputs)
        assert outputs._incoming is not None
        assert outputs._incoming._ring is not None
        outputs._incoming._ring._memory[:PAGE] = bytes([sequence % 2 * 0xFF]) * PAGE
        send(inputs, sequence, sent)
        ring_of(inputs)._memory[:PAGE] = bytes([sequence % 2 * 0xFF]) * PAGE
        assert_same(worker.take(), sent)


def test_descriptors_that_nothing_announces_are_closed() -> None:
    ours, theirs = socket.socketpair()
    reader, before = SlotReader(), num_descriptors()
    with ours, theirs:
        for _ in range(2):
            theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
        reader.receive(ours, memoryview(bytearray(8)))
        with pytest.raises(ConnectionError):
            reader.receive(ours, memoryview(bytearray(8)))
        assert num_descriptors() <= before


@pytest.mark.services
def test_a_client_that_is_killed_leaves_nothing() -> None:
    worker = Worker()
    before, names = num_descriptors(), named_memory()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        passages = [worker.passage(purpose) for purpose in (OUTPUTS, INPUTS)]
        inputs = passages[1]
        send(inputs, 1, tensors(LARGE))
        send(inputs, 2, tensors(LARGE))
        ring, descriptor = create_ring(4, 1 << 20)
        inputs._socket.sendmsg(
            [announcement(ring)[:5]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        )
        os.write(told, b"r")
        signal.pause()
    os.read(ready, 1)
    first = worker.take()
    worker.door.give(Result(session_id=7, sequence=1, items=first))
    mapped = named_memory(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert mapped == names
    assert_same(worker.take()[:2], tensors(LARGE)[:2])
    assert_same(first[:2], tensors(LARGE)[:2])
    del first
    os.close(ready)
    os.close(told)
    assert worker.ingress._gather(WAIT_SECONDS)
    wait_for(lambda: num_descriptors() <= before, "the killed client's memories to be closed")
    assert named_memory() == names


def test_a_payload_behind_its_message_comes_by_a_connection_that_shares_memory() -> None:
    worker = Worker()
    passage = worker.passage(INPUTS)
    sent = tensors(LARGE)
    message, payloads = message_of(sent)
    assert passage._outgoing is not None
    passage._outgoing._can_create = False
    passage.send(1, message, payloads, WAIT_SECONDS)
    assert_same(worker.take(), sent)
    assert passage._outgoing._ring is None
    assert BEHIND == 0


@pytest.mark.services
def test_results_outlive_a_worker_that_is_killed() -> None:
    before, names = num_descriptors(), named_memory()
    sent = tensors(LARGE)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        worker = Worker()
        os.write(told, worker.door.address().SerializeToString())
        received = worker.take()
        worker.door.give(Result(session_id=7, sequence=1, items=received))
        signal.pause()
    door = stage_daemon_pb2.WorkerDoor.FromString(os.read(ready, 1 << 10))
    inputs, outputs = Passage(door, INPUTS, 7), Passage(door, OUTPUTS, 7)
    send(inputs, 1, sent)
    kept = result(outputs)
    mapped = named_memory(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert mapped == names
    assert outputs.take(WAIT_SECONDS) is None
    with pytest.raises(OSError, match="pipe"):
        send(inputs, 2, sent)
    for passage in (inputs, outputs):
        passage.close()
    del passage, inputs, outputs
    os.close(ready)
    os.close(told)
    assert_same(kept, sent)
    # What the results lie in, and nothing else.
    assert num_descriptors() <= before + 1
    del kept
    assert num_descriptors() <= before
    assert named_memory() == names
