"""Headers: everything that they say is checked before memory is taken."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch

from stage_daemon.transport.declared import DeclaredValue, ValueKind
from stage_daemon.transport.header import BadHeader, Contents, Header, HeaderFormat
from stage_daemon.transport.layout import TensorLayout
from stage_daemon.transport.parcel import ParcelKind
from tests.stage_daemon.transport.edges import edge_of, tensor

COUNT = DeclaredValue(value_id=2, name="count", kind=ValueKind.INTEGER)
EDGE = edge_of(tensor(1, "hidden", torch.float32, "b", 4), COUNT)
FORMAT = HeaderFormat(edge=EDGE, max_tensor_bytes=1 << 20)
# Of the words: 10 fixed ones, dtype, two dims, two strides, the scalar.
DTYPE, DIMS, STRIDES = 10, 11, 13


def with_word(position: int, word: int) -> bytes:
    words = list(struct.unpack(f"<{FORMAT.num_bytes // 8}q", FORMAT.encode(header())))
    words[position] = word
    return struct.pack(f"<{len(words)}q", *words)


def header(rows: int = 3, count: int = 7) -> Header:
    layout = TensorLayout(dtype=torch.float32, dims=(rows, 4), strides=(4, 1))
    return Header(
        kind=ParcelKind.DATA, microbatch=5, session_id=2**64 - 1, sequence=2**63, contents=Contents((layout, count))
    )


def test_what_is_encoded_is_decoded() -> None:
    assert FORMAT.decode(FORMAT.encode(header())) == header()


@pytest.mark.parametrize("kind", [ParcelKind.ERROR, ParcelKind.RING, ParcelKind.END])
def test_headers_are_of_one_size(kind: ParcelKind) -> None:
    encoded = FORMAT.encode(Header(kind=kind, microbatch=1))
    assert len(encoded) == len(FORMAT.encode(header())) == FORMAT.num_bytes
    assert FORMAT.decode(encoded) == Header(kind=kind, microbatch=1)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"generation": 2}, "generation 2, needs 1"),
        ({"deployment_id": "dep-2"}, "deployment hash"),
        ({"id": 4}, "edge 4, needs 3"),
    ],
)
def test_a_header_from_elsewhere_is_refused(other: dict[str, object], words: str) -> None:
    stranger = HeaderFormat(edge=replace(EDGE, **other), max_tensor_bytes=1 << 20)
    with pytest.raises(BadHeader, match=words):
        FORMAT.decode(stranger.encode(header()))


@pytest.mark.parametrize(
    ("position", "word", "words"),
    [
        (0, 0, "magic number 0"),
        (4, 99, "kind 99"),
        (DTYPE, -1, "dtype number -1"),
        (DTYPE, 1000, "dtype number 1000"),
        (DTYPE, 0, "found dtype torch.float64, needs torch.float32"),
        (DIMS, -3, "none below 0"),
        (DIMS, 1 << 40, "batch to be at most"),
        (DIMS + 1, 5, "dimension 1 is 5, needs 4"),
        (STRIDES, -4, "none below 0"),
        (STRIDES, 1 << 50, "spread 12 elements"),
    ],
)
def test_one_wrong_word_is_refused(position: int, word: int, words: str) -> None:
    with pytest.raises(BadHeader, match=words):
        FORMAT.decode(with_word(position, word))


def test_more_bytes_than_fit_are_refused() -> None:
    with pytest.raises(BadHeader, match=r"'hidden': 2097152 bytes.*at most 1048576"):
        FORMAT.decode(with_word(DIMS, 1 << 17))


def test_an_integer_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(BadHeader, match="64 bits"):
        FORMAT.encode(header(count=1 << 63))
