"""Threads that each ask one pipeline again and again, as those of a server do: each has a place of its own, and one run
has a batch of each under way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from queue import LifoQueue, SimpleQueue
from typing import Any, cast

from planner.client.batches import Batch
from planner.client.generation.interleaved import Inputs, calling
from planner.client.pipeline import Pipeline
from planner.errors import StateLost

# A run has nothing else to send: who has just been answered will most likely ask again.
_PATIENCE_SECONDS = 5e-3


class Places:
    """What `num_places` callers at once write to, in the stages' buffers, each for itself.

    `epoch` tells what was written before it was lost from what was written later.
    """

    def __init__(self, pipeline: Pipeline, num_places: int) -> None:
        self.num_places = num_places
        self.epoch = 0
        self._pipeline = pipeline
        self._free: LifoQueue[int] = LifoQueue()
        for place in reversed(range(num_places)):
            self._free.put(place)
        self._taking_all = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: deque[_Asked] = deque()
        self.callers: set[_Caller] = set()
        # Those that have an answer, and have not asked again.
        self._going_on: set[_Caller] = set()
        self._is_running = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Waits for a place. What the calling thread asks meanwhile is asked from there."""
        place = self._free.get()
        caller = _Caller(place, self)
        self.callers.add(caller)
        try:
            with calling(caller):
                yield
        finally:
            self._leave(caller)
            self._free.put(place)

    @contextmanager
    def all(self) -> Iterator[None]:
        """Waits for whoever has one."""
        with self._taking_all:
            taken = [self._free.get() for _ in range(self.num_places)]
        try:
            yield
        finally:
            for place in reversed(taken):
                self._free.put(place)

    def lose(self, epoch: int) -> None:
        """What was written in that epoch is no longer there."""
        with self._changed:
            self.epoch = max(self.epoch, epoch + 1)

    def ask(self, caller: _Caller, inputs: Inputs, epoch: int) -> Any:
        """Raises StateLost where what was written in `epoch` is lost."""
        if self.num_places == 1:
            return self._pipeline(**inputs)
        asked = _Asked(caller, inputs)
        with self._changed:
            if epoch != self.epoch:
                raise StateLost("what was written before is lost", deployment_id=self._pipeline.deployment_id)
            self._going_on.discard(caller)
            self._waiting.append(asked)
            self._changed.notify()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="places", daemon=True).start()
        answer = asked.answer.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _leave(self, caller: _Caller) -> None:
        with self._changed:
            self.callers.discard(caller)
            self._going_on.discard(caller)
            self._changed.notify()

    def _run(self) -> None:
        under_way: deque[_Asked] = deque()
        while self._has_work():
            run = self._pipeline.run(self._batches(under_way), window=_Present(self), raise_failures=False)
            try:
                with closing(cast(Generator[Any, None, None], run)) as outputs:
                    for output in outputs:
                        self._answer(under_way.popleft(), output)
            except BaseException as error:
                with self._changed:
                    if isinstance(error, StateLost):
                        self.epoch += 1
                    told = [*under_way, *self._waiting]
                    self._waiting.clear()
                under_way.clear()
                for asked in told:
                    asked.answer.put(error)

    def _has_work(self) -> bool:
        with self._changed:
            self._is_running = bool(self._waiting)
            return self._is_running

    def _answer(self, asked: _Asked, output: Any) -> None:
        with self._changed:
            # It may have been interrupted.
            if asked.caller in self.callers:
                self._going_on.add(asked.caller)
        asked.answer.put(output)

    def _batches(self, under_way: deque[_Asked]) -> Iterator[Batch]:
        while (asked := self._next()) is not None:
            under_way.append(asked)
            yield Batch(kwargs=asked.inputs)

    def _next(self) -> _Asked | None:
        """None where nobody asks, nor is likely to within milliseconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or not self._going_on, _PATIENCE_SECONDS):
                # Those who take their time are not waited for at every batch of the others.
                self._going_on.clear()
            return self._waiting.popleft() if self._waiting else None


@dataclass(frozen=True, slots=True)
class _Present:
    """Once a batch of each caller is under way, an answer comes before the next batch."""

    places: Places

    @property
    def size(self) -> int:
        return max(1, len(self.places.callers))

    def answered(self, arrival: object, sent: object) -> None:
        pass


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    place: int
    places: Places

    def ask(self, inputs: Inputs, epoch: int) -> Any:
        return self.places.ask(self, inputs, epoch)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    caller: _Caller
    inputs: Inputs
    answer: SimpleQueue[Any] = field(default_factory=SimpleQueue)
