"""A device that only writes down what its streams are asked: the order of work as data, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class MadeUpEvent:
    """`after` is how many things its stream had been asked by then."""

    streams: MadeUpStreams
    stream: str
    after: int

    def synchronize(self) -> None:
        if self.streams.failure is not None:
            raise self.streams.failure
        self.streams.log.append(("host waits for", self.stream))


@dataclass(slots=True)
class MadeUpStreams:
    """`log` has (what, stream) in the order asked; `current` is the stream in use."""

    failure: Exception | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    current: str = "compute"
    compute: str = "compute"
    num_made: int = 0

    def new_stream(self) -> str:
        self.num_made += 1
        return f"stream {self.num_made}"

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def mark(self, stream: str) -> MadeUpEvent:
        return MadeUpEvent(self, stream, len(self.log))

    def wait(self, stream: str, event: MadeUpEvent) -> None:
        assert event.after == len(self.log), "marked before something that it is to stand for"
        self.log.append((f"waits for {event.stream}", stream))

    def keep_for(self, tensor: torch.Tensor, stream: str) -> None:
        self.log.append(("kept for", stream))

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self.log.append(("pinned", self.current))
        return torch.empty_like(like)
