"""The fixed-size head of every parcel: whose it is, the shape of all that follows it, and where that is.

int64 words, little-endian. The size follows from the edge's declaration alone, and everything that a head says is
checked before memory is taken. Heads of one shape differ in their first words only: what was read and checked once is
remembered.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from access.ring import aligned
from stage_daemon.transport.declared import DeclaredValue, Outline, ValueKind, find_mismatch
from stage_daemon.transport.dtypes import DTYPES
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.layout import MAX_EXTENT_FACTOR, TensorLayout
from stage_daemon.transport.parcel import ParcelKind

MAGIC = 0x5041525449544E31
# magic, deployment hash, generation, edge
_ORIGIN = struct.Struct("<4q")
# kind, microbatch, session id, sequence, payload's bytes, place
_COURSE = struct.Struct("<2q2Q2q")
_FIXED_BYTES = _ORIGIN.size + _COURSE.size
_WORD_BYTES = 8

# Where the payload is, if not in the slot of that number.
PLACE_BEHIND_HEADER = -1
PLACE_PIPE = -2

# Shapes that are remembered at the same time.
_MAX_SHAPES = 256

_DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPES)

_KINDS = {int(kind): kind for kind in ParcelKind}

Content = TensorLayout | int | float | bool


class BadHeader(ValueError):
    """`args[0]` says what was found and what was needed."""


class Contents(tuple[Content, ...]):
    """What a header says of its values. All headers of one shape share it, and what follows from it."""

    @cached_property
    def layouts(self) -> tuple[TensorLayout, ...]:
        """Of the tensors whose payloads follow: those that are not empty."""
        return tuple(content for content in self if isinstance(content, TensorLayout) and content.num_core_elements)

    @cached_property
    def payload_bytes(self) -> int:
        return sum(layout.size_bytes for layout in self.layouts)

    @cached_property
    def slot_bytes(self) -> int:
        return sum(aligned(layout.size_bytes) for layout in self.layouts)

    @cached_property
    def are_all_payloads(self) -> bool:
        """Neither scalars nor empty tensors are among them."""
        return len(self.layouts) == len(self)


_NO_CONTENTS = Contents()


class Header(NamedTuple):
    """`contents` only with DATA: one per value that the edge declares. RING: `place` slots of `payload_bytes` each."""

    kind: ParcelKind
    microbatch: int = 0
    session_id: int = 0
    sequence: int = 0
    contents: Contents = _NO_CONTENTS
    payload_bytes: int = 0
    place: int = PLACE_BEHIND_HEADER


@dataclass(frozen=True)
class HeaderFormat:
    """How headers of one edge are laid out. No tensor may need more than `max_tensor_bytes`."""

    edge: Edge
    max_tensor_bytes: int

    @cached_property
    def num_bytes(self) -> int:
        return _FIXED_BYTES + _WORD_BYTES * sum(_num_words(value) for value in self.edge.values)

    def encode(self, header: Header) -> bytes:
        """Raises BadHeader if the contents are not what the edge declares."""
        is_data = header.kind is ParcelKind.DATA
        return self.encode_around(
            self.encode_contents(header.contents) if is_data else self.no_contents,
            header.kind,
            header.microbatch,
            header.session_id,
            header.sequence,
            header.payload_bytes,
            header.place,
        )

    @cached_property
    def no_contents(self) -> bytes:
        """What stands in the contents' place where there are none."""
        return bytes(self.num_bytes - _FIXED_BYTES)

    def encode_contents(self, contents: tuple[Content, ...]) -> bytes:
        """What stands behind the first words, the same for all tensors of one shape. Raises BadHeader as encode."""
        self._check_contents(contents)
        words = [word for content in contents for word in _content_words(content)]
        return struct.pack(f"<{len(words)}q", *words)

    def encode_around(
        self,
        encoded_contents: bytes,
        kind: ParcelKind,
        microbatch: int,
        session_id: int,
        sequence: int,
        payload_bytes: int,
        place: int,
    ) -> bytes:
        """The header of these fields."""
        course = _COURSE.pack(kind, microbatch, session_id, sequence, payload_bytes, place)
        return self._origin + course + encoded_contents

    def decode(self, buffer: bytes) -> Header:
        """Raises BadHeader with what was found and what was needed."""
        if len(buffer) != self.num_bytes or not buffer.startswith(self._origin):
            raise self._wrong_origin(buffer)
        number, microbatch, session_id, sequence, payload_bytes, place = _COURSE.unpack_from(buffer, _ORIGIN.size)
        kind = _KINDS.get(number)
        if kind is None:
            raise BadHeader(f"header of kind {number}, needs one of {list(_KINDS)}")
        contents = self._contents(buffer[_FIXED_BYTES:]) if kind is ParcelKind.DATA else _NO_CONTENTS
        return Header(kind, microbatch, session_id, sequence, contents, payload_bytes, place)

    @cached_property
    def _origin(self) -> bytes:
        return _ORIGIN.pack(MAGIC, self.edge.deployment_hash, self.edge.generation, self.edge.id)

    @cached_property
    def _read(self) -> dict[bytes, Contents]:
        return {}

    def _contents(self, encoded: bytes) -> Contents:
        cached = self._read.get(encoded)
        if cached is not None:
            return cached
        contents = self._read_contents(list(struct.unpack(f"<{len(encoded) // _WORD_BYTES}q", encoded)))
        self._check_contents(contents)
        if len(self._read) >= _MAX_SHAPES:
            self._read.clear()
        self._read[encoded] = contents
        return contents

    def _wrong_origin(self, buffer: bytes) -> BadHeader:
        if len(buffer) != self.num_bytes:
            return BadHeader(f"header of {len(buffer)} bytes, needs {self.num_bytes}")
        names = ("magic number", "deployment hash", "generation", "edge")
        needed, actual = _ORIGIN.unpack(self._origin), _ORIGIN.unpack_from(buffer)
        name, value, wrong = next(
            (name, value, wrong) for name, value, wrong in zip(names, needed, actual, strict=True) if value != wrong
        )
        return BadHeader(f"header with {name} {wrong}, needs {value}: it is not from this deployment's peer")

    def _read_contents(self, words: list[int]) -> Contents:
        contents: list[Content] = []
        position = 0
        for value in self.edge.values:
            width = _num_words(value)
            contents.append(_read_content(value, words[position : position + width]))
            position += width
        return Contents(contents)

    def _check_contents(self, contents: tuple[Content, ...]) -> None:
        outlines: list[Outline] = [
            (content.dtype, content.dims) if isinstance(content, TensorLayout) else content for content in contents
        ]
        if (message := find_mismatch(self.edge.values, outlines, self.edge.symbols)) is not None:
            raise BadHeader(message)
        for value, content in zip(self.edge.values, contents, strict=True):
            if isinstance(content, TensorLayout):
                self._check_size(value, content)

    def _check_size(self, value: DeclaredValue, layout: TensorLayout) -> None:
        if layout.size_bytes > self.max_tensor_bytes:
            raise BadHeader(
                f"{value.name!r}: {layout.size_bytes} bytes for dims {list(layout.dims)}, at most"
                f" {self.max_tensor_bytes} fit here"
            )
        if layout.extent > MAX_EXTENT_FACTOR * layout.num_core_elements:
            raise BadHeader(
                f"{value.name!r}: strides {list(layout.strides)} spread {layout.num_core_elements} elements over"
                f" {layout.extent}, at most {MAX_EXTENT_FACTOR} times as many"
            )


def _num_words(value: DeclaredValue) -> int:
    return 1 + 2 * len(value.dims) if value.kind is ValueKind.TENSOR else 1


def _content_words(content: Content) -> list[int]:
    if isinstance(content, TensorLayout):
        return [_DTYPES.index(content.dtype), *content.dims, *content.strides]
    if isinstance(content, float):
        return [int(struct.unpack("<q", struct.pack("<d", content))[0])]
    if not -(1 << 63) <= content < 1 << 63:
        raise BadHeader(f"the integer {content}, needs one of 64 bits")
    return [int(content)]


def _read_content(value: DeclaredValue, words: list[int]) -> Content:
    if value.kind is ValueKind.FLOATING:
        return float(struct.unpack("<d", struct.pack("<q", words[0]))[0])
    if value.kind is ValueKind.BOOLEAN:
        return bool(words[0])
    if value.kind is ValueKind.INTEGER:
        return words[0]
    rank = len(value.dims)
    if not 0 <= words[0] < len(_DTYPES):
        raise BadHeader(f"{value.name!r}: dtype number {words[0]}, needs 0 to {len(_DTYPES) - 1}")
    try:
        return TensorLayout(
            dtype=_DTYPES[words[0]], dims=tuple(words[1 : 1 + rank]), strides=tuple(words[1 + rank : 1 + 2 * rank])
        )
    except ValueError as error:
        raise BadHeader(f"{value.name!r}: {error}") from None
