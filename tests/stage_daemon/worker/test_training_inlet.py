"""Steps that a client of the worker's host asks for at its door, by the client's own end of it."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from access.door import MIN_SLOT_BYTES, MOST_REQUEST_BYTES, TRAINING, SlotReader, framed
from access.host import host_identity
from access.tensor_fields import LARGE_BYTES
from planner.client.door import Passage
from planner.client.tensors import to_raw
from planner.client.training.streams import StepRequest
from planner.graph.ir import Dtype
from protos.v1 import stage_daemon_pb2
from stage_daemon.runtime.ingress import Ingress
from stage_daemon.runtime.training.records import Step, StepOutcome
from stage_daemon.runtime.training.step import StepInterpreter
from stage_daemon.transport.streams import Copies
from stage_daemon.worker import training_inlet
from stage_daemon.worker.door import Door
from stage_daemon.worker.training import Training
from stage_daemon.worker.training_inlet import Request, TrainingInlet
from tests.stage_daemon.runtime.training.modules import rows
from tests.stage_daemon.runtime.training.test_checkpoints import cluster_of
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.waiting import WAIT_SECONDS

# As the module was exported.
MOST_ROWS = 64
FILL_A_SLOT = 16
_Request, _Response = stage_daemon_pb2.TrainRequest, stage_daemon_pb2.TrainResponse


class Worker:
    """`answers` are what its supervisor is told."""

    def __init__(self, copies: Copies | None) -> None:
        self.answers: queue.SimpleQueue[_Response] = queue.SimpleQueue()
        cluster = cluster_of("layers", (0,))
        [told] = cluster.told.values()
        told = replace(told, inputs=replace(told.inputs, copies=copies))
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
        self.training.submit(Request(_Request(**content).SerializeToString()))
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
def working(copies: Copies | None = None) -> Iterator[Worker]:
    worker = Worker(copies)
    yield worker
    worker.training.take_no_more()


def step(number: int, num_microbatches: int) -> StepRequest:
    return StepRequest(
        step=stage_daemon_pb2.TrainingStep(number=number, weights=[1.0] * num_microbatches, learning_rates=[0.01]),
        microbatches=[
            (sequence, [to_raw(tensor, Dtype.FLOAT32) for tensor in rows(MOST_ROWS, number + sequence)])
            for sequence in range(1, num_microbatches + 1)
        ],
    )


def send(passage: Passage, number: int, request: StepRequest) -> None:
    passage.send(number, *request.beside(), WAIT_SECONDS)


def answer(passage: Passage) -> _Response | None:
    frame = passage.take(WAIT_SECONDS)
    return _Response.FromString(frame[1]) if frame is not None else None


# Behind its head, in shared memory, and where the supervisor's are skimmed. In one piece, or its tensors beside it.
@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.parametrize("num_microbatches", [1, FILL_A_SLOT, 8 * FILL_A_SLOT])
def test_a_step_at_the_door_is_the_step_that_the_supervisor_is_asked_for(
    num_microbatches: int, is_beside: bool
) -> None:
    with working() as worker, working() as other:
        passage = worker.passage()
        other.open()
        for number in (1, 2):
            request = step(number, num_microbatches)
            serialized = request.serialized()
            assert (len(serialized) >= MIN_SLOT_BYTES) == (num_microbatches > 1)
            assert (len(serialized) > LARGE_BYTES) == (num_microbatches > FILL_A_SLOT)
            if is_beside:
                send(passage, number, request)
            else:
                passage.send(number, b"", [memoryview(serialized)], WAIT_SECONDS)
            at_door = answer(passage)
            assert at_door is not None
            other.training.submit(Request(serialized))
            by_supervisor = other.answers.get(timeout=WAIT_SECONDS)
            for one in (at_door, by_supervisor):
                assert one.step.applied
                one.step.seconds = one.step.busy_seconds = 0.0
            assert at_door == by_supervisor
        assert worker.answers.empty()


def test_a_batch_lets_go_of_its_shared_memory_before_its_answer_goes() -> None:
    """So each lies where the one before did."""
    with working() as worker:
        passage = worker.passage()
        for number in range(1, 21):
            send(passage, number, step(number, FILL_A_SLOT))
            assert answer(passage) is not None
            if number > 1:
                assert passage.memory is not None
                assert not passage.memory.has_taken()


def test_what_the_client_writes_once_its_step_is_under_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each microbatch has memory of its own when it is run."""
    with working() as worker, working() as other:
        passage = worker.passage()
        other.open()
        for number in (1, 2):
            request = step(number, FILL_A_SLOT)
            send(passage, number, request)
            expected = answer(passage)
        ring = passage.memory
        assert ring is not None
        run = StepInterpreter.run

        def writing_over(self: StepInterpreter, asked: Step) -> StepOutcome:
            taken = {place: take() for place, take in asked.microbatches.items()}
            ring.memory_of(0)[:] = bytes(ring.slot_bytes)
            return run(self, replace(asked, microbatches={place: partial(tuple, one) for place, one in taken.items()}))

        for number in (1, 2):
            other.training.submit(Request(step(number, FILL_A_SLOT).serialized()))
            by_supervisor = other.answers.get(timeout=WAIT_SECONDS)
        assert expected is not None
        assert by_supervisor.step.gradient_norm == expected.step.gradient_norm
        monkeypatch.setattr(StepInterpreter, "run", writing_over)
        send(passage, 3, step(3, FILL_A_SLOT))
        written_over = answer(passage)
        monkeypatch.undo()
        other.training.submit(Request(step(3, FILL_A_SLOT).serialized()))
        by_supervisor = other.answers.get(timeout=WAIT_SECONDS)
        assert written_over is not None
        assert written_over.step.gradient_norm == by_supervisor.step.gradient_norm


def test_too_few_bytes_beside_a_step_are_refused_and_the_next_is_done() -> None:
    with working() as worker:
        passage = worker.passage()
        message, data = step(1, FILL_A_SLOT).beside()
        passage.send(1, message, data[:-1], WAIT_SECONDS)
        refused = answer(passage)
        assert refused is not None
        assert refused.failure.reason == "INVALID_MICROBATCH"
        assert "found 0 bytes" in refused.failure.message
        send(passage, 2, step(2, FILL_A_SLOT))
        done = answer(passage)
        assert done is not None
        assert done.step.applied


def test_a_gpu_reads_a_batch_where_it_lies() -> None:
    """Each slot is pinned when it is used first."""
    made_up = MadeUpStreams()
    with working(Copies(made_up, torch.device("cpu"))) as worker:
        passage = worker.passage()
        for number in range(1, 4):
            send(passage, number, step(number, 8 * FILL_A_SLOT))
            done = answer(passage)
            assert done is not None
            assert done.step.applied
        assert passage.memory is not None
        assert list(made_up.pinned.values()) == [passage.memory.slot_bytes]


class _NoRoom(SlotReader):
    def announced(self, num_slots: int, slot_bytes: int) -> bool:
        os.close(self._descriptors.popleft())
        return False


def test_a_worker_that_cannot_have_the_memory_reads_the_batch_behind_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_inlet, "SlotReader", _NoRoom)
    with working() as worker:
        passage = worker.passage()
        for number in (1, 2, 3):
            send(passage, number, step(number, FILL_A_SLOT))
            done = answer(passage)
            assert done is not None
            assert done.step.applied
        assert passage.memory is None


def test_a_request_is_read_once_the_one_before_has_its_answer() -> None:
    here, there = socket.socketpair()
    read: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    inlet = TrainingInlet(there, lambda request, _: read.put(bytes(request.message)))
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


@pytest.mark.parametrize(("message_bytes", "num_bytes"), [(0, MOST_REQUEST_BYTES + 1), (MOST_REQUEST_BYTES + 1, 4)])
def test_who_sends_what_no_trainer_sends_is_let_go(message_bytes: int, num_bytes: int) -> None:
    with working() as worker:
        passage = worker.passage()
        # Told before all is sent, or after.
        with suppress(ConnectionError):
            passage.send(1, bytes(message_bytes), [memoryview(bytearray(num_bytes))], WAIT_SECONDS)
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
        worker.training.submit(Request(step(1, 1).serialized()), inlet)
        assert worker.open().states
        metrics = worker.training._training.around.metrics
        assert metrics[0].num_microbatches == 0
