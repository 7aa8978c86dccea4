"""Weights that outlive the worker that loaded them, so that the next generation of its deployment need not read them.

They lie in memory without a name that the supervisor and its workers have open: one record after the other, each a page
that says which bytes of which file follow, then these bytes. Workers map them privately, so that what a stage writes to
its tensors is gone with it. The page is written last: of a worker that ended in the middle nothing is taken for whole.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Set
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

_HEAD = struct.Struct("<B32sQQ")
_WHOLE, _FREED = 1, 2
# FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE: gives pages back from the middle of a file.
_PUNCH_HOLE = 3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a state's bytes come from. Files are named by their content, so they are always the same."""

    file_sha256: bytes
    offset_bytes: int
    length_bytes: int


class KeptStates:
    """Of one deployment. Processes that it is passed to at their start see what others have added until then.

    One of them at a time changes it.
    """

    def __init__(self, descriptor: int) -> None:
        # Closed with the last reference to it.
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._records: dict[Place, int] = {}
        self._end = self._read()
        # Gives back what a worker left unfinished.
        os.ftruncate(descriptor, self._end)

    @classmethod
    def create(cls) -> KeptStates:
        return cls(os.memfd_create("states"))

    def __reduce__(self) -> tuple[Callable[[Any], KeptStates], tuple[Any]]:
        return _open_duplicate, (reduction.DupFd(self._descriptor),)

    @property
    def _descriptor(self) -> int:
        return self._file.fileno()

    @property
    def size_bytes(self) -> int:
        return sum(place.length_bytes for place in self._records)

    def find(self, place: Place) -> mmap.mmap | None:
        """The bytes, which may be written to and stay what they are for everybody else."""
        start = self._records.get(place)
        if start is None:
            return None
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(self._descriptor, place.length_bytes, flags=mmap.MAP_PRIVATE, prot=protection, offset=start)

    def grow(self, place: Place) -> mmap.mmap:
        """Memory to be filled with the bytes of a place that is not here. It counts once `add` is called.

        Raises OSError where there is none.
        """
        start = self._end + mmap.PAGESIZE
        os.ftruncate(self._descriptor, start + place.length_bytes)
        return mmap.mmap(self._descriptor, place.length_bytes, offset=start)

    def add(self, place: Place) -> None:
        """What `grow` gave last is whole now."""
        self._records[place] = self._end + mmap.PAGESIZE
        self._write_head(_WHOLE, place)
        self._end += _record_bytes(place.length_bytes)

    def keep_only(self, places: Set[Place]) -> None:
        """Gives the memory of all others back."""
        for place in self._records.keys() - places:
            self._write_head(_FREED, place)
            span = ctypes.c_int64(self._records.pop(place)), ctypes.c_int64(place.length_bytes)
            if _libc.fallocate(self._descriptor, _PUNCH_HOLE, *span):
                raise OSError(ctypes.get_errno(), "memory of weights cannot be given back")

    def close(self) -> None:
        """Memory that is mapped still stays until it is not."""
        self._file.close()

    def _read(self) -> int:
        """Where the last whole record ends."""
        end, size_bytes = 0, os.fstat(self._descriptor).st_size
        while end < size_bytes:
            kind, file_sha256, offset_bytes, length_bytes = _HEAD.unpack(os.pread(self._descriptor, _HEAD.size, end))
            if kind not in (_WHOLE, _FREED):
                break
            if kind == _WHOLE:
                self._records[Place(file_sha256, offset_bytes, length_bytes)] = end + mmap.PAGESIZE
            end += _record_bytes(length_bytes)
        return end

    def _write_head(self, kind: int, place: Place) -> None:
        head = _HEAD.pack(kind, place.file_sha256, place.offset_bytes, place.length_bytes)
        os.pwrite(self._descriptor, head, self._records[place] - mmap.PAGESIZE)


def _record_bytes(length_bytes: int) -> int:
    return mmap.PAGESIZE * (1 - -length_bytes // mmap.PAGESIZE)


def _open_duplicate(duplicate: Any) -> KeptStates:
    return KeptStates(duplicate.detach())
