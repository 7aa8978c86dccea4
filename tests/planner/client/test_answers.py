"""What a stream is answered, read on a thread of its own: in order, on demand, and to the end, told of it or not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest

from planner.client import answers
from planner.client.answers import AnswerReader, answers_of
from planner.client.failover import Restarts, stub_of_any
from protos.v1 import planner_pb2
from tests.planner.client.untold import Untold
from tests.waiting import WAIT_SECONDS, wait_for


class Told(Untold):
    """Answers numbers up to a count, then fails, or ends where it has a status of OK."""

    def __init__(self, count: int, status: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        super().__init__()
        self.num_asked_for, self._count, self._status = 0, count, status

    def __next__(self) -> int:
        self.num_asked_for += 1
        if self.num_asked_for <= self._count:
            return self.num_asked_for
        if self._status is grpc.StatusCode.OK:
            raise StopIteration
        raise self

    def add_callback(self, callback: object) -> bool:
        return True

    def cancel(self) -> bool:
        self._count = 0
        return True

    def code(self) -> grpc.StatusCode:
        return self._status


def test_all_is_taken_in_order_and_then_the_end() -> None:
    taken: queue.SimpleQueue[object] = queue.SimpleQueue()
    AnswerReader(Told(3), taken.put, taken.put).join()
    assert [taken.get(timeout=WAIT_SECONDS) for _ in range(4)] == [1, 2, 3, None]
    failing = Told(1, grpc.StatusCode.INTERNAL)
    AnswerReader(failing, taken.put, taken.put).join()
    assert [taken.get(timeout=WAIT_SECONDS) for _ in range(2)] == [1, failing]


def test_a_reader_that_is_not_told_ends_for_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "UNTOLD_SECONDS", 0.05)
    untold, ends = Untold(), queue.SimpleQueue[object]()
    reader = AnswerReader(untold, lambda answer: None, ends.put)
    assert ends.get(timeout=WAIT_SECONDS) is untold
    reader.join()
    untold.is_over.set()
    wait_for(lambda: not reader._thread.is_alive(), "the reader to be told after all")
    assert ends.empty()


def test_an_answer_is_read_once_it_is_asked_for() -> None:
    call = Told(5)
    with closing(answers_of(call)) as one_by_one:
        assert call.num_asked_for == 0
        assert [next(one_by_one), next(one_by_one)] == [1, 2]
        threading.Event().wait(0.1)
        assert call.num_asked_for == 2
    wait_for(lambda: call.num_asked_for == 3, "the reader to see that the call was cancelled")
    assert list(answers_of(Told(3))) == [1, 2, 3]


def test_what_ends_a_call_is_raised() -> None:
    failing, read = Told(2, grpc.StatusCode.INTERNAL), list[int]()
    with pytest.raises(grpc.RpcError) as raised:
        read.extend(answers_of(failing))
    assert (raised.value, read) == (failing, [1, 2])


def test_a_stream_of_a_planner_that_is_gone_without_a_word_is_asked_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "UNTOLD_SECONDS", 0.05)
    untold = Untold()

    class Stub:
        def __init__(self, call: Iterator[object]) -> None:
            self._call = call

        def WatchDeployment(self, request: object, timeout: float | None) -> Iterator[object]:
            return self._call

    stubs = iter([Stub(untold), Stub(Told(2))])
    service = planner_pb2.DESCRIPTOR.services_by_name["PlannerService"]
    restarts = Restarts(["one", "other"], seconds=WAIT_SECONDS)
    stub = stub_of_any([None, None], lambda channel: next(stubs), service, restarts)  # type: ignore[list-item]
    assert list(stub.WatchDeployment(planner_pb2.WatchDeploymentRequest())) == [1, 2]  # type: ignore[attr-defined]
    untold.is_over.set()
