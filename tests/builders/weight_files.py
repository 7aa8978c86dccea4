"""Weight files on disk as the daemon meets them: places of states, and ranges of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.graph.ir import Graph, WeightFile
from planner.store.weights import locate_states
from protos.v1 import stage_daemon_pb2 as daemon_pb

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Files by their sha256, as a blob store has them."""

    paths: dict[bytes, Path]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> WeightFiles:
        return cls({hashlib.sha256(path.read_bytes()).digest(): path for path in paths})

    def read_range(self, sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        with self.paths[sha256].open("rb") as file:
            file.seek(offset)
            while length and (chunk := file.read(min(length, _CHUNK_BYTES))):
                length -= len(chunk)
                yield chunk

    def locations(self, graph: Graph) -> list[daemon_pb.StateLocation]:
        files = [WeightFile(sha256=sha256, size_bytes=path.stat().st_size) for sha256, path in self.paths.items()]
        return [
            daemon_pb.StateLocation(
                name=name,
                file_sha256=place.file_sha256,
                offset_bytes=place.offset_bytes,
                length_bytes=place.length_bytes,
            )
            for name, place in locate_states(graph, files, self.read_range).items()
        ]
