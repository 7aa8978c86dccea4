"""Weight files made of pieces of others are what safetensors reads, from any byte on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import load

from planner.client.uploads import CHUNK_BYTES, Blob
from planner.client.weight_layout import FileRange, TensorSource, weight_blobs
from planner.graph.ir import Dtype

# More than a chunk, and no multiple of one.
ROWS = 3 * CHUNK_BYTES // 8 + 5
NUMBERS = numpy.arange(2 * ROWS, dtype=numpy.float32).reshape(ROWS, 2)


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, TensorSource]:
    """The rows of one tensor lie apart and in the other order, between bytes that belong to nothing."""
    file = tmp_path / "stored"
    half = ROWS // 2 * 8
    content = NUMBERS.tobytes()
    file.write_bytes(b"before" + content[half:] + b"between" + content[:half] + b"behind")
    later = FileRange(path=file, offset_bytes=6, length_bytes=len(content) - half)
    earlier = FileRange(path=file, offset_bytes=6 + len(content) - half + 7, length_bytes=half)
    return {
        "rows": TensorSource(dtype=Dtype.FLOAT32, dims=(ROWS, 2), pieces=(earlier, later)),
        "empty": TensorSource(dtype=Dtype.INT64, dims=(0, 3), pieces=(b"",)),
        "flags": TensorSource(dtype=Dtype.BOOL, dims=(3,), pieces=(b"\1\0\1",)),
    }


def read(blob: Blob, offset: int = 0) -> bytes:
    with blob.open() as file:
        file.seek(offset)
        return b"".join(iter(lambda: file.read(CHUNK_BYTES), b""))


def test_one_file_holds_every_tensor(tensors: dict[str, TensorSource]) -> None:
    (blob,) = weight_blobs(tensors, 2**40)

    content = read(blob)

    assert (blob.size_bytes, blob.sha256) == (len(content), hashlib.sha256(content).digest())
    loaded = load(content)
    assert numpy.array_equal(loaded["rows"], NUMBERS)
    assert loaded["flags"].tolist() == [True, False, True]
    assert loaded["empty"].shape == (0, 3)


def test_files_are_no_larger_than_asked_for(tensors: dict[str, TensorSource]) -> None:
    blobs = list(weight_blobs(tensors, 16))

    assert [sorted(load(read(blob))) for blob in blobs] == [["rows"], ["empty", "flags"]]
    assert [blob.name for blob in blobs] == ["weights-00001.safetensors", "weights-00002.safetensors"]


def test_an_upload_goes_on_from_any_byte(tensors: dict[str, TensorSource]) -> None:
    (blob,) = weight_blobs(tensors, 2**40)
    content = read(blob)

    for offset in (1, 100, len(content) // 2, CHUNK_BYTES, len(content) - 4, len(content)):
        assert read(blob, offset) == content[offset:], offset
