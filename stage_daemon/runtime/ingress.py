"""Where clients' microbatches wait for the first stage, and what they must be to get in."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from stage_daemon.errors import Conflict, InvalidMicrobatch
from stage_daemon.transport.declared import DeclaredValue, Found, Symbol, find_mismatch
from stage_daemon.transport.parcel import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """A tensor as a client sent it: nothing is checked. `dtype` is None for one that is not known here."""

    dtype: torch.dtype | None
    dims: tuple[int, ...]
    # Contiguous, little-endian.
    data: bytes


RawItem = RawTensor | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFormat:
    """What the deployment takes: one declared value per non-constant input, in order."""

    values: tuple[DeclaredValue, ...]
    symbols: Mapping[int, Symbol]
    device: torch.device

    def read(self, items: Sequence[RawItem]) -> tuple[Item, ...]:
        """The values to run on. Raises InvalidMicrobatch naming the input, what was found and what was needed."""
        found = [self._found(position, item) for position, item in enumerate(items)]
        if (message := find_mismatch(self.values, found, self.symbols)) is not None:
            raise InvalidMicrobatch(f"input {message}" if len(found) == len(self.values) else message)
        for value, item in zip(self.values, items, strict=True):
            if isinstance(item, RawTensor):
                _check_bytes(value, item)
        return tuple(_tensor(item, self.device) if isinstance(item, RawTensor) else _scalar(item) for item in items)

    def _found(self, position: int, item: RawItem) -> Found:
        name = repr(self.values[position].name) if position < len(self.values) else str(position)
        if item is None:
            raise InvalidMicrobatch(f"input {name}: found no value, needs a tensor or a scalar")
        if not isinstance(item, RawTensor):
            return item
        if item.dtype is None:
            raise InvalidMicrobatch(f"input {name}: found a dtype that this version does not know")
        return item.dtype, item.dims


def _check_bytes(value: DeclaredValue, item: RawTensor) -> None:
    assert item.dtype is not None
    needed = math.prod(item.dims) * item.dtype.itemsize
    if needed != len(item.data):
        raise InvalidMicrobatch(
            f"input {value.name!r}: found {len(item.data)} bytes, dims {list(item.dims)} of {item.dtype} need {needed}"
        )


def _tensor(item: RawTensor, device: torch.device) -> torch.Tensor:
    assert item.dtype is not None
    if not item.data:
        return torch.empty(item.dims, dtype=item.dtype, device=device)
    flat = torch.frombuffer(bytearray(item.data), dtype=torch.uint8)
    # A bool is a byte of 0 or 1; torch computes nonsense from any other.
    typed = flat != 0 if item.dtype is torch.bool else flat.view(item.dtype)
    return typed.view(item.dims).to(device)


def _scalar(item: RawItem) -> Item:
    assert isinstance(item, (int, float, bool))
    return item


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One microbatch of a client. `read` decodes and checks it, raising InvalidMicrobatch."""

    session_id: int
    sequence: int
    read: Callable[[], tuple[Item, ...]]


class Ingress:
    """First in, first out. How much may wait is up to whoever submits: `on_taken` tells when one has left."""

    def __init__(self, on_taken: Callable[[Submission], None]) -> None:
        self._on_taken = on_taken
        self._changed = threading.Condition()
        self._waiting: deque[Submission] = deque()
        self._closed = False

    def submit(self, submission: Submission) -> None:
        with self._changed:
            if self._closed:
                raise Conflict("the deployment is draining and takes no more microbatches")
            self._waiting.append(submission)
            self._changed.notify()

    def take(self) -> Submission | None:
        """Waits for the next; None once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            if not self._waiting:
                return None
            submission = self._waiting.popleft()
        self._on_taken(submission)
        return submission

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
