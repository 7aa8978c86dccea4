"""Microbatches and results beside their tensors, as they cross the door of a worker: see WorkerDoor.

What a message says follows from the shapes in it alone, so messages of one shape are made once, and read and checked
once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from google.protobuf.message import DecodeError

from access.ring import Ring
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidMicrobatch
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import InputFormat, RawItem, RawTensor
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.streams import Copies, moved
from stage_daemon.worker import wire

# Messages that are remembered at the same time.
_MAX_SHAPES = 256

_Key = tuple[tuple[torch.dtype, torch.Size], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a tensor in the bytes beside its message."""

    dtype: torch.dtype
    dims: tuple[int, ...]
    begin: int
    end: int
    # Can be used from where another process may write.
    is_foreign: bool

    def tensor(self, payload: torch.Tensor) -> torch.Tensor:
        """In that memory. A bool is a byte of 0 or 1; torch computes nonsense from any other."""
        if self.begin == self.end:
            return torch.empty(self.dims, dtype=self.dtype)
        flat = payload[self.begin : self.end]
        return (flat != 0 if self.dtype is torch.bool else flat.view(self.dtype)).view(self.dims)

    def copied(self, address: int) -> torch.Tensor:
        """In memory of its own, where the bytes begin at that address."""
        is_flags = self.dtype is torch.bool
        tensor = torch.empty(self.dims, dtype=torch.uint8 if is_flags else self.dtype)
        ctypes.memmove(tensor.data_ptr(), address + self.begin, self.end - self.begin)
        return tensor != 0 if is_flags else tensor

    def foreign(self, payload: memoryview) -> torch.Tensor:
        """In memory that the client can write to, if that is allowed."""
        if not self.is_foreign or self.begin == self.end or self.dtype is torch.bool:
            return self.copied(ctypes.addressof(cast("ctypes.Array[ctypes.c_ubyte]", payload.obj)))
        num_elements = (self.end - self.begin) // self.dtype.itemsize
        return torch.frombuffer(payload, dtype=self.dtype, count=num_elements, offset=self.begin).view(self.dims)


class InputReader:
    """What clients send, as the deployment's inputs. `foreign_inputs`: see `Pipeline`; by default none.

    What a GPU computes with it has copied, so all of it may lie where a client can write until it has.
    """

    def __init__(self, input_format: InputFormat, foreign_inputs: Set[int] = frozenset()) -> None:
        self._format = input_format
        self._copies = input_format.copies
        self._foreign_inputs = foreign_inputs
        self._places_of: dict[tuple[bytes, int], tuple[_Place | Item, ...]] = {}

    def read(self, message: bytes, payload: torch.Tensor) -> tuple[Item, ...]:
        """Raises InvalidMicrobatch."""
        places = self._places(message, payload.numel(), lambda: payload.numpy().data)
        return self._format.on_device(
            [place.tensor(payload) if isinstance(place, _Place) else place for place in places]
        )

    def read_foreign(self, message: bytes, payload: memoryview) -> tuple[Item, ...]:
        """As `read`, of a payload that the client can still write to. What must not change while it is used is copied,
        before anything looks at it."""
        places = self._places(message, len(payload), lambda: payload)
        return self._format.on_device(
            [place.foreign(payload) if isinstance(place, _Place) else place for place in places]
        )

    def pin(self, ring: Ring, slot: int, num_bytes: int) -> None:
        """So that a GPU copies from there by itself."""
        if self._copies is not None:
            self._copies.pin(ring, slot, num_bytes)

    def copy(self, message: bytes, address: int, payload_bytes: int) -> Callable[[], tuple[Item, ...]] | None:
        """What reads it as `read` does, with the tensors copied from that address before this returns; None where the
        message is not known yet."""
        places = self._places_of.get((message, payload_bytes))
        if places is None:
            return None
        items = tuple([place.copied(address) if isinstance(place, _Place) else place for place in places])
        return partial(tuple, items) if self._copies is None else partial(self._format.on_device, items)

    def _places(self, message: bytes, num_bytes: int, payload: Callable[[], memoryview]) -> tuple[_Place | Item, ...]:
        key = message, num_bytes
        places = self._places_of.get(key)
        if places is None:
            places = self._checked(message, payload())
            if len(self._places_of) >= _MAX_SHAPES:
                self._places_of.clear()
            self._places_of[key] = places
        return places

    def _checked(self, message: bytes, memory: memoryview) -> tuple[_Place | Item, ...]:
        try:
            items, extents = wire.beside(wire.raw_items(stage_daemon_pb2.Microbatch.FromString(message)), memory)
        except DecodeError:
            raise InvalidMicrobatch("a message that is no Microbatch") from None
        places: list[_Place | RawItem] = []
        for position, (item, (begin, end)) in enumerate(zip(items, extents, strict=True)):
            if not isinstance(item, RawTensor) or item.dtype is None:
                places.append(item)
                continue
            is_foreign = self._copies is not None or (
                position in self._foreign_inputs and (item.dtype.is_floating_point or item.dtype.is_complex)
            )
            places.append(_Place(item.dtype, item.dims, begin, end, is_foreign))
        self._format.check(items)
        # Neither None nor a tensor without its place has passed.
        return cast("tuple[_Place | Item, ...]", tuple(places))


class ResultWriter:
    """Results as messages and the tensors that go beside them, contiguous and flat or as they are: on a GPU as long as
    nothing but where they go has to be known of them."""

    def __init__(self, copies: Copies | None = None) -> None:
        self._messages: dict[_Key, bytes] = {}
        self._copies = copies

    def content(self, result: Result) -> tuple[bytes, Sequence[torch.Tensor]]:
        key = _key(result)
        message = self._messages.get(key) if key is not None else None
        if message is not None:
            # Only tensors have a key.
            return message, cast("tuple[torch.Tensor, ...]", result.items)
        if self._copies is not None:
            result = replace(result, items=moved(result.items, self._copies.to_host))
        payloads: list[torch.Tensor] = []
        message = wire.result_to_bytes(replace(result, sequence=0), payloads)
        if key is not None and len(payloads) == len(result.items):
            if len(self._messages) >= _MAX_SHAPES:
                self._messages.clear()
            self._messages[key] = message
        return message, payloads


def _key(result: Result) -> _Key | None:
    """None where more than the shapes of contiguous tensors decides what is sent."""
    if result.failure is not None:
        return None
    key = []
    for item in result.items:
        if not isinstance(item, torch.Tensor) or not _is_plain(item):
            return None
        key.append((item.dtype, item.shape))
    return tuple(key)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
