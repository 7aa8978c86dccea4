"""Where clients' microbatches wait for the first stage, and what they must be to get in."""

from __future__ import annotations

import math
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from stage_daemon.errors import Conflict, InvalidMicrobatch
from stage_daemon.transport.declared import DeclaredValue, Outline, Symbol, find_mismatch
from stage_daemon.transport.layout import MAX_ELEMENTS, can_be_counted
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import Copies, moved


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """A tensor as a client sent it: nothing is checked. `dtype` is None for one that is not known here."""

    dtype: torch.dtype | None
    dims: tuple[int, ...]
    # Contiguous, little-endian. The tensor is made in a memoryview's own memory; bytes are copied.
    data: bytes | memoryview


RawItem = RawTensor | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFormat:
    """What the deployment takes: one declared value per non-constant input, in order. `copies` are of the device."""

    values: tuple[DeclaredValue, ...]
    symbols: Mapping[int, Symbol]
    copies: Copies | None = None

    def read(self, items: Sequence[RawItem]) -> tuple[Item, ...]:
        """The values to run on. Raises as `check`."""
        self.check(items)
        return self.on_device(list(map(_item, items)))

    def take_foreign(self, items: Sequence[RawItem]) -> tuple[Item, ...]:
        """The values to run on, of items that were checked and that lie where others may write, at any address."""
        if self.copies is None:
            items = list(map(in_own_memory, items))
        return self.on_device(list(map(_item, items)))

    def on_device(self, items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(items) if self.copies is None else moved(items, self.copies.to_device)

    def check(self, items: Sequence[RawItem]) -> None:
        """Raises InvalidMicrobatch naming the input, what was found and what was needed."""
        outlines = [self._outline(position, item) for position, item in enumerate(items)]
        if (message := find_mismatch(self.values, outlines, self.symbols)) is not None:
            raise InvalidMicrobatch(f"input {message}" if len(outlines) == len(self.values) else message)
        for value, item in zip(self.values, items, strict=True):
            if isinstance(item, RawTensor):
                _check_bytes(f"input {value.name!r}", item)

    def _outline(self, position: int, item: RawItem) -> Outline:
        name = repr(self.values[position].name) if position < len(self.values) else str(position)
        if item is None:
            raise InvalidMicrobatch(f"input {name}: found no value, needs a tensor or a scalar")
        if not isinstance(item, RawTensor):
            return item
        if item.dtype is None:
            raise InvalidMicrobatch(f"input {name}: found a dtype that this version does not know")
        return item.dtype, item.dims


def tensor_of(name: str, item: RawTensor) -> torch.Tensor:
    """On the CPU. Raises InvalidMicrobatch if it has other bytes than its dims need."""
    _check_bytes(f"state {name!r}", item)
    return _tensor(item)


def _check_bytes(where: str, item: RawTensor) -> None:
    assert item.dtype is not None
    needed = math.prod(item.dims) * item.dtype.itemsize
    if needed != len(item.data):
        raise InvalidMicrobatch(
            f"{where}: found {len(item.data)} bytes, dims {list(item.dims)} of {item.dtype} need {needed}"
        )
    if not can_be_counted(item.dims):
        raise InvalidMicrobatch(f"{where}: dims {list(item.dims)}, needs at most {MAX_ELEMENTS} elements")


def in_own_memory(item: RawItem) -> RawItem:
    """A tensor that lies in memory of somebody else's, copied to where one of any dtype may begin."""
    if not isinstance(item, RawTensor) or not isinstance(item.data, memoryview):
        return item
    copy: memoryview = torch.empty(len(item.data), dtype=torch.uint8).numpy().data
    copy[:] = item.data
    return replace(item, data=copy)


def _item(item: RawItem) -> Item:
    if isinstance(item, RawTensor):
        return _tensor(item)
    assert item is not None
    return item


def _tensor(item: RawTensor) -> torch.Tensor:
    assert item.dtype is not None
    if not len(item.data):
        return torch.empty(item.dims, dtype=item.dtype)
    memory = item.data if isinstance(item.data, memoryview) else bytearray(item.data)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    # A bool is a byte of 0 or 1; torch computes nonsense from any other.
    typed = flat != 0 if item.dtype is torch.bool else flat.view(item.dtype)
    return typed.view(item.dims)


class Submission(NamedTuple):
    """One microbatch of a client. `read` decodes and checks it, raising InvalidMicrobatch."""

    session_id: int
    sequence: int
    read: Callable[[], tuple[Item, ...]]
    # `Ingress.on_taken` is told of it.
    acknowledged: bool = True


class Source(Protocol):
    """A client's connection that the lane itself reads microbatches from."""

    def fileno(self) -> int: ...

    def advance(self) -> Sequence[Submission]:
        """Reads what is there, within bounds, and gives what is complete then. Raises OSError once nothing comes."""
        ...

    def close(self) -> None: ...


class Ingress:
    """What is submitted first is taken first; sources are read in turn, and only when nothing else waits.

    How much may be submitted is up to whoever submits: `on_taken` tells when one has left.
    """

    def __init__(self, on_taken: Callable[[Submission], None]) -> None:
        self._on_taken = on_taken
        self._lock = threading.Lock()
        self._waiting: deque[Submission] = deque()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sources: dict[int, Source] = {}
        self._poller = select.epoll()
        self._poller.register(self._wake, select.EPOLLIN)

    def submit(self, submission: Submission) -> None:
        with self._lock:
            if self._closed:
                raise Conflict("the deployment is draining and takes no more microbatches")
            self._waiting.append(submission)
        os.eventfd_write(self._wake, 1)

    def add(self, source: Source) -> None:
        """The source is closed once nothing more comes from it."""
        self._sources[source.fileno()] = source
        self._poller.register(source.fileno(), select.EPOLLIN)

    def take(self) -> Submission | None:
        """Waits for the next; None once closed and empty: what sources have sent when it closes is still taken."""
        while not self._waiting:
            if self._closed:
                self._take_leave()
                break
            self._gather(None)
        if not self._waiting:
            return None
        submission = self._waiting.popleft()
        if submission.acknowledged:
            self._on_taken(submission)
        return submission

    def close(self) -> None:
        with self._lock:
            self._closed = True
        os.eventfd_write(self._wake, 1)

    def _gather(self, timeout_seconds: float | None) -> bool:
        """Whether some source had something to read."""
        has_read = False
        for number, _ in self._poller.poll(timeout_seconds):
            if number == self._wake:
                os.eventfd_read(self._wake)
                continue
            has_read = True
            self._read(self._sources[number])
        return has_read

    def _take_leave(self) -> None:
        """Reads what the sources have sent and lets them go: they could send on for as long as they get results."""
        while self._gather(0):
            pass
        for source in tuple(self._sources.values()):
            self._drop(source)

    def _drop(self, source: Source) -> None:
        self._poller.unregister(source.fileno())
        del self._sources[source.fileno()]
        source.close()

    def _read(self, source: Source) -> None:
        try:
            self._waiting.extend(source.advance())
        except OSError:
            self._drop(source)
