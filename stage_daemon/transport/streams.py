"""What is asked of a GPU's streams and events, and in which order: the one place that names torch.cuda for it.

Tests give a device that only writes down what is asked. Events sleep while they wait: nothing polls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from stage_daemon.transport.parcel import Item


class Event(Protocol):
    def synchronize(self) -> None:
        """Raises torch.AcceleratorError where the device failed at what came before the event."""
        ...


class Streams(Protocol):
    """One device's. A stream is whatever `new_stream` gives; `compute` is the one that stages run on, and `current` the
    calling thread's: `compute`, if it uses no other."""

    @property
    def compute(self) -> Any: ...

    @property
    def current(self) -> Any: ...

    def new_stream(self) -> Any: ...

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """What is launched and allocated inside is of this stream."""
        ...

    def mark(self, stream: Any, *, timed: bool = False) -> Event:
        """Done once all that the stream has been given is."""
        ...

    def seconds_between(self, before: Event, after: Event) -> float:
        """Two timed marks of one stream, both done: by the device's clock."""
        ...

    def wait(self, stream: Any, event: Event) -> None:
        """What the stream is given from now on waits for the event; the caller does not."""
        ...

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """Its memory is no other tensor's before what the stream has been given by then is done."""
        ...

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the host that the device copies from and to by itself."""
        ...


class CudaStreams:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def compute(self) -> Any:
        return torch.cuda.default_stream(self._device)

    @property
    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def new_stream(self) -> Any:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def mark(self, stream: Any, *, timed: bool = False) -> Event:
        event: Event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)  # type: ignore[attr-defined]
        return event

    def seconds_between(self, before: Event, after: Event) -> float:
        milliseconds: float = before.elapsed_time(after)  # type: ignore[attr-defined]
        return 1e-3 * milliseconds

    def wait(self, stream: Any, event: Event) -> None:
        stream.wait_event(event)

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def streams_of(device: torch.device) -> Streams | None:
    """None on a CPU, which is done with a call when it returns."""
    return CudaStreams(device) if device.type == "cuda" else None


def waiting_until_computed(streams: Streams | None) -> Callable[[], None]:
    """Returns once all that was launched on the stream of stages is done, and raises what the device failed at."""
    if streams is None:
        return lambda: None
    return lambda: streams.mark(streams.compute).synchronize()


class Copies:
    """Between the host and a device, on a stream of their own, through pinned memory."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self._streams = streams
        self._device = device
        self._stream = streams.new_stream()

    def to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Stages may be launched on them at once: the caller's stream waits for the copies."""
        pinned = [tensor if tensor.is_pinned() else self._in_pinned(tensor) for tensor in tensors]
        with self._streams.use(self._stream):
            copied = [tensor.to(self._device, non_blocking=True) for tensor in pinned]
        current = self._streams.current
        self._streams.wait(current, self._streams.mark(self._stream))
        for tensor in copied:
            self._streams.keep_for(tensor, current)
        return copied

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of the caller's stream. Returns once they are there."""
        self._streams.wait(self._stream, self._streams.mark(self._streams.current))
        with self._streams.use(self._stream):
            copied = [self._streams.pinned(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
        self._streams.mark(self._stream).synchronize()
        return copied

    def _in_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = self._streams.pinned(tensor)
        if tensor.is_contiguous():
            # By this thread alone: torch's copy wakes as many as it has, and they are slow to come on a busy host.
            ctypes.memmove(pinned.data_ptr(), tensor.data_ptr(), tensor.nbytes)
            return pinned
        return pinned.copy_(tensor)


def moved(items: Sequence[Item], move: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> tuple[Item, ...]:
    """The tensors among the items all at once; the others as they are."""
    tensors = iter(move([item for item in items if isinstance(item, torch.Tensor)]))
    return tuple(next(tensors) if isinstance(item, torch.Tensor) else item for item in items)


def copies_of(device: torch.device) -> Copies | None:
    streams = streams_of(device)
    return Copies(streams, device) if streams is not None else None
