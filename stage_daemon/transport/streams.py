"""What is asked of a GPU's streams and events, and in which order: the one place that names torch.cuda for it.

Tests give a device that only writes down what is asked. Events sleep while they wait: nothing polls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch

from access.ring import Ring, aligned
from stage_daemon.transport.parcel import Item

# From here on copying to pinned memory and from there costs more than pinning a slot, once, and copying there.
PINNED_BYTES = 1 << 18


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

    def pin(self, address: int, num_bytes: int) -> bool:
        """Memory of the host that the device copies from and to by itself from now on; False where it cannot."""
        ...

    def is_pinned(self, tensor: torch.Tensor) -> bool: ...

    def unpin(self, address: int) -> None:
        """What `pin` was given. Has to come before the memory goes."""
        ...


class CudaStreams:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Asking for it takes some microseconds each time.
        self.compute: Any = torch.cuda.default_stream(device)

    @property
    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def new_stream(self) -> Any:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        # A third of what torch.cuda.stream takes, which also looks for other devices.
        before = torch.cuda.current_stream(self._device)
        torch.cuda.set_stream(stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(before)

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

    def pin(self, address: int, num_bytes: int) -> bool:
        if int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0)) == 0:  # type: ignore[no-untyped-call]
            return True
        # Else whatever is launched next would be blamed for it.
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        return False

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def unpin(self, address: int) -> None:
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def streams_of(device: torch.device) -> Streams | None:
    """None on a CPU, which is done with a call when it returns."""
    return CudaStreams(device) if device.type == "cuda" else None


class Copies:
    """Between the host and a device.

    Large ones from and to slots of shared memory, which the device does by itself: a slot is pinned when it is used
    first. For all others the driver has pinned memory of its own, which nothing here was seen to beat.
    """

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self._streams = streams
        self._device = device
        # Of their own: on that of the stages they would come behind a pass.
        self._inwards = streams.new_stream()
        self._pinned: weakref.WeakKeyDictionary[Ring, dict[int, bool]] = weakref.WeakKeyDictionary()

    def pin(self, ring: Ring, slot: int, num_bytes: int) -> bool:
        """Whether a payload of so many bytes is copied from or to that slot by the device itself. Of a ring, one thread
        asks."""
        if num_bytes < PINNED_BYTES:
            return False
        pinned = self._pinned.setdefault(ring, {})
        if slot not in pinned:
            address = ring.address_of(slot)
            pinned[slot] = self._streams.pin(address, ring.slot_bytes)
            if pinned[slot]:
                ring.before_unmapping(partial(self._streams.unpin, address))
        return pinned[slot]

    def to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """For what the caller's stream is given from now on. Their own memory may be used for something else then.

        Copied on that stream, if it is none that stages run on."""
        streams, current = self._streams, self._streams.current
        is_own = current != streams.compute
        with nullcontext() if is_own else streams.use(self._inwards):
            copied = [tensor.to(self._device, non_blocking=True, copy=True) for tensor in tensors]
        # Of any size: a slot stays pinned, whatever comes in it later, and holds small ones beside large ones.
        is_read_by_device = any(map(streams.is_pinned, tensors))
        if is_own and not is_read_by_device:
            return copied
        done = streams.mark(current if is_own else self._inwards)
        if not is_own:
            streams.wait(current, done)
            for tensor in copied:
                streams.keep_for(tensor, current)
        if is_read_by_device:
            done.synchronize()
        return copied

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """On the caller's stream. Returns once they are there."""
        return [tensor.to("cpu") for tensor in tensors]

    def to_slot(self, tensors: Sequence[torch.Tensor], ring: Ring, slot: int) -> None:
        """One behind the other, each from a multiple of 64 bytes on, on the caller's stream, to a slot that is pinned.
        Returns once they are there."""
        offset = 0
        for tensor in tensors:
            if tensor.nbytes:
                memory = ring.memory_of(slot)[offset : offset + tensor.nbytes]
                target = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
                target.copy_(tensor, non_blocking=True)
            offset += aligned(tensor.nbytes)
        self._streams.mark(self._streams.current).synchronize()


def moved(items: Sequence[Item], move: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]) -> tuple[Item, ...]:
    """The tensors among the items all at once; the others as they are."""
    tensors = iter(move([item for item in items if isinstance(item, torch.Tensor)]))
    return tuple(next(tensors) if isinstance(item, torch.Tensor) else item for item in items)


def copies_of(device: torch.device) -> Copies | None:
    streams = streams_of(device)
    return Copies(streams, device) if streams is not None else None
