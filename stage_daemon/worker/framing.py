"""Microbatches and results beside their tensors, as they cross the door of a worker: see WorkerDoor.

What a message says follows from the shapes in it alone, so messages of one shape are made once, and read and checked
once.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from google.protobuf.message import DecodeError

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidMicrobatch
from stage_daemon.runtime.egress import Result
from stage_daemon.runtime.ingress import InputFormat, RawItem, RawTensor
from stage_daemon.transport.layout import memory_of
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.ring import aligned
from stage_daemon.worker import wire

# Sequence, bytes of the message, bytes of the tensors.
HEAD = struct.Struct("<QQQ")
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


class InputReader:
    """What clients send, as the deployment's inputs."""

    def __init__(self, input_format: InputFormat) -> None:
        self._format = input_format
        self._places_of: dict[tuple[bytes, int], tuple[_Place | Item, ...]] = {}

    def read(self, message: bytes, payload: torch.Tensor) -> tuple[Item, ...]:
        """Raises InvalidMicrobatch."""
        key = message, payload.numel()
        places = self._places_of.get(key)
        if places is None:
            places = self._checked(message, payload)
            if len(self._places_of) >= _MAX_SHAPES:
                self._places_of.clear()
            self._places_of[key] = places
        return self._format.on_device(
            [place.tensor(payload) if isinstance(place, _Place) else place for place in places]
        )

    def copy(self, message: bytes, address: int, payload_bytes: int) -> tuple[Item, ...] | None:
        """As read, with the tensors copied from that address, on the CPU; None where the message is not known yet."""
        places = self._places_of.get((message, payload_bytes))
        if places is None:
            return None
        return tuple([place.copied(address) if isinstance(place, _Place) else place for place in places])

    def on_device(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        return self._format.on_device(items)

    def _checked(self, message: bytes, payload: torch.Tensor) -> tuple[_Place | Item, ...]:
        try:
            items = wire.raw_items(stage_daemon_pb2.Microbatch.FromString(message))
        except DecodeError:
            raise InvalidMicrobatch("a message that is no Microbatch") from None
        memory, end = payload.numpy().data, 0
        places: list[_Place | RawItem] = []
        for position, item in enumerate(items):
            if not isinstance(item, RawTensor) or item.dtype is None:
                places.append(item)
                continue
            begin = aligned(end)
            end = begin + math.prod(item.dims) * item.dtype.itemsize
            items[position] = replace(item, data=memory[begin:end])
            places.append(_Place(item.dtype, item.dims, begin, end))
        self._format.check(items)
        # Neither None nor a tensor without its place has passed.
        return cast("tuple[_Place | Item, ...]", tuple(places))


class ResultWriter:
    """Results as buffers to send; each keeps the memory that it is of."""

    def __init__(self) -> None:
        self._messages: dict[_Key, bytes] = {}

    def buffers(self, result: Result) -> list[bytes | memoryview]:
        key = _key(result)
        message = self._messages.get(key) if key is not None else None
        if message is not None:
            items = [item for item in result.items if isinstance(item, torch.Tensor)]
            return framed(result.sequence, message, [memory_of(item, item.nbytes) for item in items])
        payloads: list[torch.Tensor] = []
        message = wire.result_to_bytes(replace(result, sequence=0), payloads)
        if key is not None and len(payloads) == len(result.items):
            if len(self._messages) >= _MAX_SHAPES:
                self._messages.clear()
            self._messages[key] = message
        return framed(result.sequence, message, [payload.numpy().data for payload in payloads])


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
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def framed(sequence: int, message: bytes, payloads: Sequence[memoryview]) -> list[bytes | memoryview]:
    """What goes over the connection, in either direction."""
    buffers: list[bytes | memoryview] = [b""]
    num_bytes = 0
    for payload in payloads:
        if padding := aligned(num_bytes) - num_bytes:
            buffers.append(bytes(padding))
        buffers.append(payload)
        num_bytes += padding + len(payload)
    buffers[0] = HEAD.pack(sequence, len(message), num_bytes) + message
    return buffers
