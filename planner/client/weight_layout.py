"""Weight files that are never written: a safetensors header, and behind it ranges of files that are there already."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from planner.client.uploads import Blob
from planner.errors import Corrupt, InvalidArgument
from planner.graph.ir import SAFETENSORS_DTYPES, Dtype, WeightFile
from planner.store.weights import index_safetensors

# Which file has which tensor, where a checkpoint has several.
INDEX_FILE = "model.safetensors.index.json"
_CHUNK_BYTES = 1 << 20
_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    path: Path
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """A tensor's bytes: its pieces one after the other, each in a file or here."""

    dtype: Dtype
    dims: tuple[int, ...]
    pieces: tuple[FileRange | bytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(_length, self.pieces))

    def read(self) -> bytes:
        return b"".join(chunk for piece in self.pieces for chunk in _chunks(piece, 0))


def stored_tensors(path: Path) -> Iterator[tuple[str, TensorSource]]:
    """Those of a safetensors file, by name. Raises Corrupt where it is none."""

    def read_range(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(offset)
            yield file.read(length)

    try:
        locations = index_safetensors(read_range, WeightFile(sha256=b"", size_bytes=path.stat().st_size), str(path))
    except InvalidArgument as error:
        raise Corrupt(error.message) from error
    for name, place in locations.items():
        piece = FileRange(path=path, offset_bytes=place.offset_bytes, length_bytes=place.length_bytes)
        yield name, TensorSource(dtype=place.dtype, dims=place.dims, pieces=(piece,))


def weight_blobs(tensors: Mapping[str, TensorSource], max_file_bytes: int) -> Iterator[Blob]:
    """Files of at most `max_file_bytes` of tensors each, or of one larger tensor. Reads every byte once, to hash it."""
    for index, shard in enumerate(_shards(tensors, max_file_bytes), start=1):
        header = safetensors_header({name: (tensor.dtype, tensor.dims) for name, tensor in shard.items()})
        pieces = (header, *(piece for tensor in shard.values() for piece in tensor.pieces))
        digest = hashlib.sha256()
        with _open(pieces) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        yield Blob(
            name=f"weights-{index:05d}.safetensors",
            sha256=digest.digest(),
            size_bytes=sum(map(_length, pieces)),
            open=lambda pieces=pieces: _open(pieces),  # type: ignore[misc]
        )


def _shards(tensors: Mapping[str, TensorSource], max_file_bytes: int) -> Iterator[dict[str, TensorSource]]:
    shard: dict[str, TensorSource] = {}
    filled_bytes = 0
    for name, tensor in tensors.items():
        if shard and filled_bytes + tensor.size_bytes > max_file_bytes:
            yield shard
            shard, filled_bytes = {}, 0
        shard[name] = tensor
        filled_bytes += tensor.size_bytes
    if shard:
        yield shard


def safetensors_header(tensors: Mapping[str, tuple[Dtype, tuple[int, ...]]]) -> bytes:
    """What stands before the bytes of these tensors, one after another."""
    entries, end = {}, 0
    for name, (dtype, dims) in tensors.items():
        begin, end = end, end + math.prod(dims) * dtype.size_bytes
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(dims), "data_offsets": [begin, end]}
    content = json.dumps(entries).encode()
    # The format aligns what follows to 8 bytes.
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


def _length(piece: FileRange | bytes) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.length_bytes


def _open(pieces: Sequence[FileRange | bytes]) -> BinaryIO:
    return cast(BinaryIO, _Joined(pieces))


class _Joined(io.RawIOBase):
    """Pieces read as one file; of those on disk one is open at a time."""

    def __init__(self, pieces: Iterable[FileRange | bytes]) -> None:
        self._pieces = tuple(piece for piece in pieces if _length(piece))
        self._chunks = self._read_from(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, whence
        self._chunks = self._read_from(offset)
        return offset

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most a chunk of them; empty at the end."""
        assert size >= _CHUNK_BYTES, size
        return next(self._chunks, b"")

    def close(self) -> None:
        self._chunks = iter(())
        super().close()

    def _read_from(self, offset: int) -> Iterator[bytes]:
        for piece in self._pieces:
            length = _length(piece)
            if offset < length:
                yield from _chunks(piece, offset)
            offset = max(0, offset - length)


def _chunks(piece: FileRange | bytes, offset: int) -> Iterator[bytes]:
    if isinstance(piece, bytes):
        yield piece[offset:]
        return
    with piece.path.open("rb") as file:
        file.seek(piece.offset_bytes + offset)
        remaining_bytes = piece.length_bytes - offset
        while remaining_bytes and (chunk := file.read(min(remaining_bytes, _CHUNK_BYTES))):
            remaining_bytes -= len(chunk)
            yield chunk
