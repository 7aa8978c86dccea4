"""A device that only writes down what its streams are asked: the order of work as data, without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from stage_daemon.transport.streams import Event
from tests.waiting import WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class MadeUpEvent:
    """`after` is how many things its stream had been asked by then; other threads ask other streams meanwhile."""

    streams: MadeUpStreams
    stream: str
    after: int

    def synchronize(self) -> None:
        if self.streams.is_done is not None:
            assert self.streams.is_done.wait(WAIT_SECONDS)
        if self.streams.failure is not None:
            raise self.streams.failure
        self.streams.log.append(("host waits for", self.stream))


@dataclass(slots=True)
class MadeUpStreams:
    """`log` has (what, stream) in the order asked, `pinned` bytes by address. It is done with what it was asked once
    `is_done` is set, where there is that, and took `seconds` between any two marks."""

    failure: Exception | None = None
    seconds: float = 0.0
    is_done: threading.Event | None = None
    can_pin: bool = True
    pinned: dict[int, int] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    compute: str = "compute"
    num_made: int = 0
    _of_threads: threading.local = field(default_factory=threading.local)

    @property
    def current(self) -> str:
        stream: str = getattr(self._of_threads, "stream", self.compute)
        return stream

    def new_stream(self) -> str:
        self.num_made += 1
        return f"stream {self.num_made}"

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        before, self._of_threads.stream = self.current, stream
        try:
            yield
        finally:
            self._of_threads.stream = before

    def seconds_between(self, before: Event, after: Event) -> float:
        return self.seconds

    def mark(self, stream: str, *, timed: bool = False) -> MadeUpEvent:
        return MadeUpEvent(self, stream, self._num_asked(stream))

    def wait(self, stream: str, event: MadeUpEvent) -> None:
        assert event.after == self._num_asked(event.stream), "marked before something that it is to stand for"
        self.log.append((f"waits for {event.stream}", stream))

    def keep_for(self, tensor: torch.Tensor, stream: str) -> None:
        self.log.append(("kept for", stream))

    def pin(self, address: int, num_bytes: int) -> bool:
        if self.can_pin:
            self.pinned[address] = num_bytes
        return self.can_pin

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(begin <= tensor.data_ptr() < begin + size for begin, size in self.pinned.items())

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def _num_asked(self, stream: str) -> int:
        return sum(asked == stream for _, asked in self.log)
