"""Steps that a client of the worker's host asks for at its door, by the client's own end of it."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from access.door import MIN_SLOT_BYTES, MOST_REQUEST_BYTES, TRAINING, SlotReader, framed
from access.host import host_identity
from access.tensor_fields import LARGE_BYTES
from planner.client.door import Passage
from planner.client.microbatches import fill
from planner.client.tensors import to_raw
from planner.graph.ir import Dtype
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.ingress import Ingress
from stage_daemon.worker import training_inlet
from stage_daemon.worker.door import Door
from stage_daemon.worker.training import Training
from stage_daemon.worker.training_inlet import TrainingInlet
from tests.stage_daemon.runtime.training.modules import rows
from tests.stage_daemon.runtime.training.test_checkpoints import cluster_of
from tests.waiting import WAIT_SECONDS

# As the module was exported.
MOST_ROWS = 64
FILL_A_SLOT = 16
_Request, _Response = stage_daemon_pb2.TrainRequest, stage_daemon_pb2.TrainResponse


class Worker:
    """`answers` are what its supervisor is told."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[_Response] = queue.SimpleQueue()
        cluster = cluster_of("layers", (0,))
        [told] = cluster.told.values()
        self.door = Door(
            Ingress(lambda _: None),
            told.inputs,
            lambda _: None,
            on_trainer=lambda session_id, connection: self.training.let_in(session_id, connection),
        )
        self.training = Training(replace(told, door=self.door.address), lambda response, _: self.answers.put(response))
        [output] = cluster.graph.outputs
        content: Any = output.content
        self.loss_value = content.value_id
        threading.Thread(target=self.training.run, daemon=True).start()

    def ask(self, **content: Any) -> _Response:
        """By its supervisor."""
        self.training.submit(_Request(**content).SerializeToString())
        return self.answers.get(timeout=WAIT_SECONDS)

    def open(self, host: str | None = None) -> stage_daemon_pb2.TrainingOpened:
        opened = stage_daemon_pb2.OpenTraining(
            deployment_id="dep-test",
            optimizer={"name": "sgd", "groups": [{}]},
            loss_value=self.loss_value,
            seed="seed",
            host=host_identity() if host is None else host,
        )
        return self.ask(open=opened).opened

    def passage(self) -> Passage:
        opened = self.open()
        return Passage(opened.door, TRAINING, opened.session_id)


@contextmanager
def working() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.training.take_no_more()


def step(number: int, num_microbatches: int) -> bytes:
    request = _Request(step={"number": number, "weights": [1.0] * num_microbatches, "learning_rates": [0.01]})
    for sequence in range(1, num_microbatches + 1):
        microbatch = request.step.microbatches.add(sequence=sequence)
        fill(microbatch.values, [to_raw(tensor, Dtype.FLOAT32) for tensor in rows(MOST_ROWS, number + sequence)])
    return request.SerializeToString()


def answer(passage: Passage) -> _Response | None:
    frame = passage.take(WAIT_SECONDS)
    return _Response.FromString(frame[1]) if frame is not None else None


# Behind its head, in shared memory, and in shared memory where its tensors are skimmed.
@pytest.mark.parametrize("num_microbatches", [1, FILL_A_SLOT, 8 * FILL_A_SLOT])
def test_a_step_at_the_door_is_the_step_that_the_supervisor_is_asked_for(num_microbatches: int) -> None:
    with working() as worker, working() as other:
        passage = worker.passage()
        other.open()
        for number in (1, 2):
            request = step(number, num_microbatches)
            assert (len(request) >= MIN_SLOT_BYTES) == (num_microbatches > 1)
            assert (len(request) > LARGE_BYTES) == (num_microbatches > FILL_A_SLOT)
            passage.send(number, b"", [memoryview(request)], WAIT_SECONDS)
            at_door = answer(passage)
            assert at_door is not None
            other.training.submit(request)
            by_supervisor = other.answers.get(timeout=WAIT_SECONDS)
            for one in (at_door, by_supervisor):
                assert one.step.applied
                one.step.seconds = one.step.busy_seconds = 0.0
            assert at_door == by_supervisor
        assert worker.answers.empty()


def test_a_batch_lets_go_of_its_shared_memory() -> None:
    """However many steps come, there are eight slots at least and no more than sixteen."""
    with working() as worker:
        passage = worker.passage()
        for number in range(1, 21):
            passage.send(number, b"", [memoryview(step(number, FILL_A_SLOT))], WAIT_SECONDS)
            assert answer(passage) is not None
        assert passage.memory is not None
        assert not passage.memory.has_taken()


class _NoRoom(SlotReader):
    def announced(self, num_slots: int, slot_bytes: int) -> bool:
        os.close(self._descriptors.popleft())
        return False


def test_a_worker_that_cannot_have_the_memory_reads_the_batch_behind_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_inlet, "SlotReader", _NoRoom)
    with working() as worker:
        passage = worker.passage()
        for number in (1, 2, 3):
            passage.send(number, b"", [memoryview(step(number, FILL_A_SLOT))], WAIT_SECONDS)
            done = answer(passage)
            assert done is not None
            assert done.step.applied
        assert passage.memory is None


def test_a_request_is_read_once_the_one_before_has_its_answer() -> None:
    here, there = socket.socketpair()
    read: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    inlet = TrainingInlet(there, lambda request, _: read.put(bytes(request)))
    here.sendall(b"".join(b"".join(framed(number, b"", [memoryview(b"%d" % number)])) for number in (1, 2, 3)))
    for number in (1, 2, 3):
        assert read.get(timeout=WAIT_SECONDS) == b"%d" % number
        with pytest.raises(queue.Empty):
            read.get(timeout=0.1)
        inlet.give(_Response())
    here.close()


def test_only_the_client_whose_stream_is_open_is_let_in_and_once() -> None:
    with working() as worker:
        address = worker.door.address()
        with pytest.raises(ConnectionError):
            Passage(address, TRAINING, 0)
        opened = worker.open()
        with pytest.raises(ConnectionError):
            Passage(address, TRAINING, opened.session_id + 1)
        first = Passage(address, TRAINING, opened.session_id)
        with pytest.raises(ConnectionError):
            Passage(address, TRAINING, opened.session_id)
        # Who opens anew lets go of it.
        assert worker.open().session_id != opened.session_id
        assert answer(first) is None


@pytest.mark.parametrize("host", ["", "elsewhere/1"])
def test_a_client_of_another_host_is_told_of_no_door(host: str) -> None:
    with working() as worker:
        opened = worker.open(host)
        assert opened.states
        assert (opened.HasField("door"), opened.session_id) == (False, 0)


def test_nothing_but_steps_is_done_there() -> None:
    with working() as worker:
        passage = worker.passage()
        request = _Request(read_states=stage_daemon_pb2.ReadStates()).SerializeToString()
        for content in (request, b"\xff"):
            passage.send(1, b"", [memoryview(content)], WAIT_SECONDS)
            refused = answer(passage)
            assert refused is not None
            assert refused.failure.reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("message", "num_bytes"), [(b"?", 4), (b"", MOST_REQUEST_BYTES + 1)])
def test_who_sends_what_no_trainer_sends_is_let_go(message: bytes, num_bytes: int) -> None:
    with working() as worker:
        passage = worker.passage()
        # Told before all is sent, or after.
        with suppress(ConnectionError):
            passage.send(1, message, [memoryview(bytearray(num_bytes))], WAIT_SECONDS)
            assert passage.take(WAIT_SECONDS) is None
        assert worker.open().states


def test_once_the_stream_has_ended_nothing_that_came_by_the_door_is_begun() -> None:
    with working() as worker:
        passage = worker.passage()
        inlet = worker.training._inlet
        assert inlet is not None
        assert worker.ask(leave=stage_daemon_pb2.LeaveTraining()).WhichOneof("content") is None
        assert answer(passage) is None
        # It was read before, and its turn comes after.
        worker.training.submit(step(1, 1), inlet)
        assert worker.open().states
        metrics = worker.training._training.around.metrics
        assert metrics[0].num_microbatches == 0
