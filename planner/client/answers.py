"""What a stream's call is answered, read on a thread of its own.

gRPC (1.85) now and then never tells the reader of a call that this has its status, as where nobody listens any more:
that reader waits for ever. So whoever waits for what it reads is told of the end some seconds after the status, and
closing leaves such a reader behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from typing import Any

import grpc

from planner.client.interruption import interruptible

# From a call's status until its reader has ended, which takes no time, at most.
UNTOLD_SECONDS = 5.0


class AnswerReader:
    """`take` is given each answer and `end`, once, what the call has failed with, or None. On the reader's thread;
    `end` on a timer's where the reader is not told."""

    def __init__(
        self,
        call: Any,
        take: Callable[[Any], object],
        end: Callable[[grpc.RpcError | None], object],
        name: str | None = None,
    ) -> None:
        self._call, self._take, self._when_ended = call, take, end
        self._may_end = threading.Lock()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()
        if not call.add_callback(self._end_later):
            self._end_later()

    def cancel(self) -> None:
        self._call.cancel()

    def join(self) -> None:
        """Waits for the end, not for ever."""
        self._thread.join(UNTOLD_SECONDS)

    def _read(self) -> None:
        failure: grpc.RpcError | None = None
        try:
            for answer in self._call:
                self._take(answer)
        except grpc.RpcError as error:
            failure = error
        self._end(failure)

    def _end_later(self) -> None:
        if self._call.code() not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            timer = threading.Timer(UNTOLD_SECONDS, self._end, (self._call,))
            timer.daemon = True
            timer.start()

    def _end(self, failure: grpc.RpcError | None) -> None:
        if self._may_end.acquire(blocking=False):
            self._when_ended(failure)


def answers_of(call: Any) -> Generator[Any, None, None]:
    """Each when it is asked for, none before. An interruption cancels the call, and so does leaving off. Raises
    grpc.RpcError."""
    arrived: queue.SimpleQueue[tuple[Any] | grpc.RpcError | None] = queue.SimpleQueue()
    is_taken = threading.Semaphore(0)

    def take(answer: Any) -> None:
        arrived.put((answer,))
        is_taken.acquire()

    AnswerReader(call, take, arrived.put)
    try:
        with interruptible(call.cancel):
            while isinstance(answer := arrived.get(), tuple):
                yield answer[0]
                is_taken.release()
            if answer is not None:
                raise answer
    finally:
        call.cancel()
        is_taken.release()
