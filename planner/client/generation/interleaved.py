"""Several calls that each ask a pipeline again and again, one batch at a time: one run has a batch of each under way.

A call is a function in a thread of its own that stands still wherever it has asked. Only one of them goes on at a time,
in the order of answers, so that what they draw at random is the same each time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol, cast

from planner.client.batches import Batch
from planner.client.pipeline import Pipeline
from planner.errors import StateLost

Inputs = Mapping[str, Any]


class Caller(Protocol):
    """Asks from its place. `epoch`: of what the inputs take to be written there."""

    @property
    def place(self) -> int: ...
    def ask(self, inputs: Inputs, epoch: int) -> Any: ...


class _Current(threading.local):
    """The call that a thread is."""

    call: Caller | None = None


_current = _Current()


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """What this thread asks meanwhile is asked by `caller`."""
    before, _current.call = _current.call, caller
    try:
        yield
    finally:
        _current.call = before


def ask(pipeline: Pipeline, inputs: Inputs, epoch: int = 0) -> Any:
    """One batch's output, whether or not the caller is one of several."""
    return pipeline(**inputs) if _current.call is None else _current.call.ask(inputs, epoch)


def place() -> int | None:
    """Of the call that this thread is; None outside of one."""
    return None if _current.call is None else _current.call.place


def run_interleaved(pipeline: Pipeline, functions: Sequence[Callable[[], Any]], num_places: int) -> list[Any]:
    """What each returns, in order; at most `num_places` have begun and not ended, each in a place of its own.

    What one raises ends the others. StateLost is raised in all that are under way, where they ask.
    """
    group = _Group(pipeline, functions, num_places)
    try:
        group.begin()
        while group.has_work():
            group.run()
    finally:
        group.end()
    return group.results


class _Ended(BaseException):
    """Raised in a call that nobody waits for, where it asks."""


@dataclass(slots=True, eq=False)
class _Call:
    index: int
    place: int
    function: Callable[[], Any]
    inputs: Inputs | None = None
    _asked: SimpleQueue[Inputs | None] = field(default_factory=SimpleQueue)
    _answers: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _result: Any = None
    _error: BaseException | None = None

    def begin(self) -> None:
        threading.Thread(target=self._run, name=f"call-{self.index}", daemon=True).start()
        self.inputs = self._asked.get()

    def go_on(self, answer: Any) -> None:
        """Until it asks again, or ends: then `inputs` is None."""
        self._answers.put(answer)
        self.inputs = self._asked.get()

    def end(self) -> None:
        """Wherever it is."""
        self._answers.put(_Ended())
        while self._asked.get() is not None:
            self._answers.put(_Ended())

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def ask(self, inputs: Inputs, epoch: int) -> Any:
        self._asked.put(inputs)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        try:
            with calling(self):
                self._result = self.function()
        except BaseException as error:
            self._error = error
        self._asked.put(None)


class _Group:
    def __init__(self, pipeline: Pipeline, functions: Sequence[Callable[[], Any]], num_places: int) -> None:
        self.results: list[Any] = [None] * len(functions)
        self._pipeline, self._num_places = pipeline, num_places
        self._left = deque(enumerate(functions))
        self._begun: set[_Call] = set()
        self._asking: deque[_Call] = deque()
        self._under_way: deque[_Call] = deque()

    def begin(self) -> None:
        for place in range(self._num_places):
            self._begin_at(place)

    def has_work(self) -> bool:
        return bool(self._asking)

    def run(self) -> None:
        """Until nobody asks while others are waited for, or what was written is lost."""
        run = self._pipeline.run(self._batches(), window=self._num_places, raise_failures=False)
        try:
            # One that is left in the middle keeps other runs out.
            with closing(cast(Generator[Any, None, None], run)) as outputs:
                for output in outputs:
                    self._go_on(self._under_way.popleft(), output)
        except StateLost as lost:
            self._asking.extendleft(reversed(self._under_way))
            self._under_way.clear()
            for _ in range(len(self._asking)):
                self._go_on(self._asking.popleft(), lost)

    def end(self) -> None:
        for call in self._begun:
            call.end()

    def _batches(self) -> Iterator[Batch]:
        while self._asking:
            self._under_way.append(self._asking.popleft())
            inputs = self._under_way[-1].inputs
            assert inputs is not None
            yield Batch(kwargs=inputs)

    def _go_on(self, call: _Call, answer: Any) -> None:
        call.go_on(answer)
        if not self._asks(call):
            self._begin_at(call.place)

    def _begin_at(self, place: int) -> None:
        """The next one that asks, at once, so that the order of those that ask is the order of answers."""
        while self._left:
            index, function = self._left.popleft()
            call = _Call(index, place, function)
            self._begun.add(call)
            call.begin()
            if self._asks(call):
                return

    def _asks(self, call: _Call) -> bool:
        if call.inputs is not None:
            self._asking.append(call)
            return True
        self._begun.remove(call)
        self.results[call.index] = call.result()
        return False
