"""How the passes of a step are computed: as they are called, or launched on a device that computes by itself.

Such a device is given the next pass while it computes the one before, and another thread waits for it and lets go what
leaves with it: the thread that follows the step's actions is ahead of both. What a step orders stays in order, for
passes share a stream, and what leaves does so as the actions have it. That a message leaves later than the passes
behind it were launched holds nobody up who waited before: it waits for less.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol

import torch

from stage_daemon.runtime.actions import Kind
from stage_daemon.runtime.failures import raise_if_ruinous
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import COMPUTE, DeviceTimeline, SingleTimeline, TimedAction, Timeline, clock
from stage_daemon.transport.streams import Event, Streams

# One that is computed, and the next. As many messages wait to leave: they hold memory.
_MOST_WAITING = 2
_LEAVING = frozenset({Kind.SEND, Kind.SEND_GRADIENT, Kind.GIVE_OUTPUT})


class Passes(Protocol):
    """`action` is a position in the step's actions, `number` the step's."""

    timelines: Sequence[Timeline]

    def threads(self) -> Mapping[str, Callable[[], None]]:
        """What each runs beside the thread that follows the actions; they return after `end`."""
        ...

    def times_elsewhere(self, kind: Kind) -> bool:
        """Actions of that kind do not stand in the first of the timelines, which that thread writes."""
        ...

    def wait_for_room(self) -> None:
        """Before each pass. Raises what went wrong with those before it."""
        ...

    def computing(self, stage: Stage, number: int, action: int) -> AbstractContextManager[None]:
        """Around the calls of a pass. What they raise is the pass's fault alone."""
        ...

    def hand_on(self, number: int, action: int, leave: Callable[[], object]) -> None:
        """Calls it once all is computed that was launched by now."""
        ...

    def settle(self) -> None:
        """Returns once everything launched is computed, and what is to leave has left. Raises what went wrong."""
        ...

    def end(self) -> None: ...


class PassesAtOnce:
    """Of a device that is done with a call when it returns."""

    def __init__(self, actions: Sequence[TimedAction]) -> None:
        self.timelines: Sequence[Timeline] = (Timeline(actions),)

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {}

    def times_elsewhere(self, kind: Kind) -> bool:
        return False

    def wait_for_room(self) -> None:
        pass

    def computing(self, stage: Stage, number: int, action: int) -> AbstractContextManager[None]:
        return nullcontext()

    def hand_on(self, number: int, action: int, leave: Callable[[], object]) -> None:
        leave()

    def settle(self) -> None:
        pass

    def end(self) -> None:
        pass


class PassesAhead:
    """Of a device with streams. `_launched` and `_leaving` count what is not done of what was asked for."""

    def __init__(self, actions: Sequence[TimedAction], streams: Streams) -> None:
        self._streams = streams
        self._way_out = streams.new_stream()
        self._device, self._departures = DeviceTimeline(actions), SingleTimeline(actions)
        self.timelines: Sequence[Timeline] = (Timeline(actions), self._device, self._departures)
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._launched = self._leaving = 0
        self._failure: BaseException | None = None
        self._is_over = False

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"training-out": self._run}

    def times_elsewhere(self, kind: Kind) -> bool:
        return kind in COMPUTE or kind in _LEAVING

    def wait_for_room(self) -> None:
        self._wait_until(lambda: self._launched < _MOST_WAITING)

    @contextmanager
    def computing(self, stage: Stage, number: int, action: int) -> Iterator[None]:
        streams = self._streams
        begins = streams.mark(streams.compute, timed=True)
        self._device.launching(action)
        try:
            yield
        except BaseException:
            self._device.given_up()
            raise
        ends = streams.mark(streams.compute, timed=True)
        with self._changed:
            self._launched += 1
            self._add(partial(self._finish, stage, number, begins, ends))

    def hand_on(self, number: int, action: int, leave: Callable[[], object]) -> None:
        self._wait_until(lambda: self._leaving < _MOST_WAITING)
        computed = self._streams.mark(self._streams.compute)
        with self._changed:
            self._leaving += 1
            self._add(partial(self._leave, number, action, computed, leave))

    def settle(self) -> None:
        self._wait_until(lambda: not self._launched and not self._leaving)

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or condition())
            if self._failure is not None:
                raise self._failure

    def _add(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._changed.notify_all()

    def _run(self) -> None:
        with torch.no_grad(), self._streams.use(self._way_out):
            while (work := self._next()) is not None:
                try:
                    work()
                except BaseException as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    raise
                # What it holds is memory.
                del work

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._is_over)
            return self._work.popleft() if self._work else None

    def _finish(self, stage: Stage, number: int, begins: Event, ends: Event) -> None:
        try:
            ends.synchronize()
            seconds = self._streams.seconds_between(begins, ends)
        except Exception as error:
            raise_if_ruinous(stage, error)
            raise
        self._device.done(number, seconds)
        with self._changed:
            self._launched -= 1
            self._changed.notify_all()

    def _leave(self, number: int, action: int, computed: Event, leave: Callable[[], object]) -> None:
        computed.synchronize()
        began = clock()
        leave()
        self._departures.enter(number, action, clock() - began)
        with self._changed:
            self._leaving -= 1
            self._changed.notify_all()


def passes_of(actions: Sequence[TimedAction], streams: Streams | None) -> Passes:
    """As the device needs it."""
    return PassesAtOnce(actions) if streams is None else PassesAhead(actions, streams)
