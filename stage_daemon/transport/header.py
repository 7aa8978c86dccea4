"""The fixed-size head of every parcel: whose it is, and the shape of all that follows it.

int64 words. A longer message than the posted buffer would abort the process, and a shorter one would pass in silence,
so the size follows from the edge's declaration alone, and everything that it says is checked before memory is taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import torch

from stage_daemon.transport.declared import DeclaredValue, Found, ValueKind, find_mismatch
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.layout import MAX_EXTENT_FACTOR, TensorLayout
from stage_daemon.transport.parcel import ParcelKind

MAGIC = 0x5041525449544E31
# magic, deployment hash, generation, edge, kind, microbatch, session id, sequence
_NUM_FIXED_WORDS = 8

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)

Content = TensorLayout | int | float | bool


class BadHeader(ValueError):
    """`args[0]` says what was found and what was needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """`contents` only with DATA: one per value that the edge declares."""

    kind: ParcelKind
    microbatch: int = 0
    session_id: int = 0
    sequence: int = 0
    contents: tuple[Content, ...] = ()


@dataclass(frozen=True)
class HeaderFormat:
    """How headers of one edge are laid out. No tensor may need more than `max_tensor_bytes`."""

    edge: Edge
    max_tensor_bytes: int

    @cached_property
    def num_words(self) -> int:
        return _NUM_FIXED_WORDS + sum(_num_words(value) for value in self.edge.values)

    def new_buffer(self) -> torch.Tensor:
        return torch.zeros(self.num_words, dtype=torch.int64)

    def encode(self, header: Header) -> torch.Tensor:
        """Raises BadHeader if the contents are not what the edge declares."""
        words = [
            MAGIC,
            self.edge.deployment_hash,
            self.edge.generation,
            self.edge.id,
            int(header.kind),
            header.microbatch,
            _signed(header.session_id),
            _signed(header.sequence),
        ]
        if header.kind is ParcelKind.DATA:
            self._check_contents(header.contents)
            for content in header.contents:
                words.extend(_content_words(content))
        words.extend([0] * (self.num_words - len(words)))
        return torch.tensor(words, dtype=torch.int64)

    def decode(self, buffer: torch.Tensor) -> Header:
        """Raises BadHeader with what was found and what was needed."""
        words: list[int] = buffer.tolist()
        self._check_origin(words)
        try:
            kind = ParcelKind(words[4])
        except ValueError:
            raise BadHeader(f"header of kind {words[4]}, needs one of {[int(kind) for kind in ParcelKind]}") from None
        contents: tuple[Content, ...] = ()
        if kind is ParcelKind.DATA:
            contents = self._read_contents(words[_NUM_FIXED_WORDS:])
            self._check_contents(contents)
        return Header(
            kind=kind,
            microbatch=words[5],
            session_id=_unsigned(words[6]),
            sequence=_unsigned(words[7]),
            contents=contents,
        )

    def _check_origin(self, words: list[int]) -> None:
        if len(words) != self.num_words:
            raise BadHeader(f"header of {len(words)} words, needs {self.num_words}")
        needed = (
            ("magic number", MAGIC),
            ("deployment hash", self.edge.deployment_hash),
            ("generation", self.edge.generation),
            ("edge", self.edge.id),
        )
        for (name, value), found in zip(needed, words, strict=False):
            if found != value:
                raise BadHeader(f"header with {name} {found}, needs {value}: it is not from this deployment's peer")

    def _read_contents(self, words: list[int]) -> tuple[Content, ...]:
        contents: list[Content] = []
        position = 0
        for value in self.edge.values:
            width = _num_words(value)
            contents.append(_read_content(value, words[position : position + width]))
            position += width
        return tuple(contents)

    def _check_contents(self, contents: tuple[Content, ...]) -> None:
        found: list[Found] = [
            (content.dtype, content.dims) if isinstance(content, TensorLayout) else content for content in contents
        ]
        if (message := find_mismatch(self.edge.values, found, self.edge.symbols)) is not None:
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
        raise BadHeader(f"{value.name!r}: {error}, needs none below 0") from None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _unsigned(number: int) -> int:
    return number + (1 << 64) if number < 0 else number
