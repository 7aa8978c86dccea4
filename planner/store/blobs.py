"""Blobs by content: graphs and weights, under the sha256 of their bytes, in a folder or a bucket.

A blob that is still arriving is a partial file in a local staging folder; its length is what has been committed, so an
upload survives a broken stream and a restart. Nothing is readable before all of it is there and hashes to its name.
What is read whole is hashed again: a blob that was damaged since goes into the folder `damaged`, and can be uploaded
anew.
Every method blocks: callers on an event loop use threads. One process owns a staging folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from planner.errors import (
    FULL_DISK_RETRY_SECONDS,
    Corrupt,
    InvalidArgument,
    NotFound,
    PlannerError,
    ResourceExhausted,
    WrongOffset,
)
from planner.redaction import without_secrets

CHUNK_BYTES = 1 << 20
DEFAULT_MAX_BYTES = 256 << 30
DAMAGED = "damaged"
DATABASES = "databases"
_NAME = re.compile(r"[0-9a-f]{64}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class BlobStore:
    """`url` is anything that fsspec knows (file:///..., s3://...); `staging` is a local folder."""

    def __init__(self, url: str, staging: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._url = url
        with self._usable():
            self._files, self._root = fsspec.core.url_to_fs(url)
        self._staging = staging
        self._max_bytes = max_bytes
        with _space_errors():
            staging.mkdir(parents=True, exist_ok=True)

    def size_bytes(self, sha256: bytes) -> int | None:
        """None unless the blob is complete."""
        try:
            return int(self._files.info(self._path(sha256))["size"])
        except FileNotFoundError:
            return None

    def committed_bytes(self, sha256: bytes) -> int:
        """Bytes held, of a partial blob too."""
        size = self.size_bytes(sha256)
        if size is not None:
            return size
        try:
            return self._partial(sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def write(self, sha256: bytes, size_bytes: int, offset_bytes: int) -> BlobWriter:
        """Goes on with a blob at `offset_bytes`. At most one writer per blob at a time, which the caller sees to."""
        if size_bytes > self._max_bytes:
            raise InvalidArgument(
                f"blob of {size_bytes} bytes: at most {self._max_bytes} are taken; split the file",
                size_bytes=size_bytes,
                max_bytes=self._max_bytes,
            )
        committed = self.committed_bytes(sha256)
        if committed > size_bytes:
            # Bytes of an upload that declared another size cannot be the start of this one.
            self._partial(sha256).unlink(missing_ok=True)
            committed = 0
        if offset_bytes != committed:
            raise WrongOffset(
                f"blob {sha256.hex()}: upload at byte {offset_bytes}, but {committed} are here; go on from {committed}",
                committed_bytes=committed,
            )
        return BlobWriter(self, sha256, size_bytes, self._partial(sha256))

    def put(self, content: bytes) -> bytes:
        """Stores whole bytes and returns their sha256; in the place of a damaged blob too."""
        sha256 = hashlib.sha256(content).digest()
        if self.size_bytes(sha256) is not None and self.is_whole(sha256) and self.renew(sha256):
            return sha256
        waiting = self._staging / f"{sha256.hex()}.{uuid.uuid4().hex}"
        try:
            with _space_errors(), waiting.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.adopt(sha256, waiting)
        finally:
            waiting.unlink(missing_ok=True)
        return sha256

    def adopt(self, sha256: bytes, path: Path) -> None:
        """Makes a whole and checked local file the blob; readers see all of it or nothing."""
        target = self._path(sha256)
        with _space_errors():
            self._files.makedirs(self._files._parent(target), exist_ok=True)
            if isinstance(self._files, LocalFileSystem):
                _move_local(path, Path(target))
                return
            self._files.put_file(str(path), target)
        path.unlink(missing_ok=True)

    def read_range(self, sha256: bytes, offset_bytes: int = 0, length_bytes: int = 0) -> Iterator[bytes]:
        """Chunks of at most 1 MiB; length 0 means to the end. The range is checked before the first chunk.

        Where the range is the whole blob, Corrupt is raised after the last chunk if they do not hash to its name.
        """
        size = self.size_bytes(sha256)
        if size is None:
            raise NotFound(f"no blob {sha256.hex()} is complete here; upload it first", sha256=sha256.hex())
        end = offset_bytes + length_bytes if length_bytes else size
        if not 0 <= offset_bytes <= end <= size:
            raise InvalidArgument(
                f"blob {sha256.hex()} has {size} bytes; bytes {offset_bytes} to {end} are not in it", size_bytes=size
            )
        chunks = self._chunks(self._path(sha256), offset_bytes, end)
        return self._checked_chunks(sha256, chunks) if end - offset_bytes == size else chunks

    def read(self, sha256: bytes, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
        """The whole blob, where it is no larger than `max_bytes`."""
        chunks = self.read_range(sha256)
        size = self.size_bytes(sha256) or 0
        if size > max_bytes:
            raise InvalidArgument(f"blob {sha256.hex()} has {size} bytes, at most {max_bytes} are read here")
        return b"".join(chunks)

    def is_whole(self, sha256: bytes) -> bool:
        """Reads all of it. A damaged one is no longer there afterwards."""
        try:
            for _ in self.read_range(sha256):
                pass
        except Corrupt:
            return False
        return True

    def names(self) -> tuple[bytes, ...]:
        """The sha256 of every complete blob, in order."""
        self._files.invalidate_cache()
        paths = self._files.find(self._root) if self._files.exists(self._root) else ()
        # What another planner deletes meanwhile is not remembered either.
        self._files.invalidate_cache()
        parts = (path.removeprefix(self._root).strip("/").rpartition("/") for path in paths)
        return tuple(
            sorted(bytes.fromhex(name) for folder, _, name in parts if _NAME.fullmatch(name) and folder == name[:2])
        )

    def scrub(self) -> Iterator[tuple[bytes, bool]]:
        """Each blob's sha256 and whether it is whole, by name; the damaged ones are put away on the way."""
        for sha256 in self.names():
            yield sha256, self.is_whole(sha256)

    def used_at(self, sha256: bytes) -> datetime | None:
        """When it was written or last renewed; None unless it is complete."""
        try:
            moment: datetime = self._files.modified(self._path(sha256))
        except FileNotFoundError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def renew(self, sha256: bytes) -> bool:
        """Makes a complete blob as young as a new one. False where that takes writing it anew, as in a bucket."""
        if not isinstance(self._files, LocalFileSystem):
            return False
        with suppress(FileNotFoundError):
            os.utime(self._path(sha256))
        return True

    def delete(self, sha256: bytes) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(sha256))

    def drop_partial(self, before: datetime) -> int:
        """Drops what arrived of blobs and was not gone on with since that moment; the bytes that it had."""
        size_bytes = 0
        for path in self._staging.iterdir():
            with suppress(FileNotFoundError):
                facts = path.stat()
                if _NAME.fullmatch(path.name.partition(".")[0]) and facts.st_mtime < before.timestamp():
                    path.unlink()
                    size_bytes += facts.st_size
        return size_bytes

    def use_for(self, database_id: str) -> None:
        """Writes down that this database refers to the blobs: no other may collect them."""
        with self._usable(), _space_errors():
            folder = f"{self._root}/{DATABASES}"
            self._files.makedirs(folder, exist_ok=True)
            self._files.pipe_file(f"{folder}/{database_id}", b"")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Raises InvalidArgument where it is not. What a bucket's library raises then is of any kind."""
        try:
            yield
        except PlannerError:
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise InvalidArgument(without_secrets(f"blob URL {self._url!r} cannot be used: {reason}")) from error

    def databases(self) -> tuple[str, ...]:
        """Those that were written down, in order."""
        folder = f"{self._root}/{DATABASES}"
        self._files.invalidate_cache()
        paths = self._files.find(folder) if self._files.exists(folder) else ()
        return tuple(sorted(path.rpartition("/")[2] for path in paths))

    def _put_away(self, sha256: bytes) -> None:
        """Out of the readers' way, and kept for whoever wants to know what became of it."""
        folder = f"{self._root}/{DAMAGED}"
        self._files.makedirs(folder, exist_ok=True)
        # Another reader may have put it away meanwhile.
        with suppress(FileNotFoundError):
            self._files.mv(self._path(sha256), f"{folder}/{sha256.hex()}.{uuid.uuid4().hex[:8]}")

    def _checked_chunks(self, sha256: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
            yield chunk
        if digest.digest() == sha256:
            return
        self._put_away(sha256)
        raise Corrupt(
            f"blob {sha256.hex()} was damaged on the planner's disk: its bytes hash to {digest.hexdigest()}; it was "
            f"put into the folder {DAMAGED}, upload it again",
            found=digest.hexdigest(),
            needed=sha256.hex(),
        )

    def _chunks(self, path: str, offset: int, end: int) -> Iterator[bytes]:
        with self._files.open(path, "rb") as file:
            file.seek(offset)
            while offset < end:
                chunk = file.read(min(CHUNK_BYTES, end - offset))
                if not chunk:
                    raise Corrupt(f"blob file {path} ends at byte {offset}, needs {end}; upload it again")
                offset += len(chunk)
                yield chunk

    def _path(self, sha256: bytes) -> str:
        name = _checked(sha256).hex()
        return f"{self._root}/{name[:2]}/{name}"

    def _partial(self, sha256: bytes) -> Path:
        return self._staging / f"{_checked(sha256).hex()}.partial"


class BlobWriter:
    """Open, append, finish, close. What was written stays, unless all of it came and the digest is wrong."""

    def __init__(self, blobs: BlobStore, sha256: bytes, size_bytes: int, partial: Path) -> None:
        self._blobs = blobs
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._partial = partial
        self._digest = hashlib.sha256()
        self.committed_bytes = 0

    def open(self) -> BlobWriter:
        """Reads what is here already, for the digest: as slow as the disk."""
        with _space_errors():
            self._file = self._partial.open("a+b", buffering=0)
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            self._digest.update(chunk)
            self.committed_bytes += len(chunk)
        return self

    def close(self) -> None:
        self._file.close()

    def append(self, chunk: bytes) -> None:
        if self.committed_bytes + len(chunk) > self._size_bytes:
            raise InvalidArgument(
                f"blob {self._sha256.hex()}: more bytes came than the {self._size_bytes} that were announced"
            )
        view = memoryview(chunk)
        with _space_errors():
            while view:
                written = self._file.write(view)
                self._digest.update(view[:written])
                self.committed_bytes += written
                view = view[written:]

    def finish(self) -> bool:
        """Makes the blob readable once all of it is here; False where bytes are missing. Corrupt drops all of it."""
        if self.committed_bytes < self._size_bytes:
            return False
        if self._digest.digest() != self._sha256:
            self._partial.unlink(missing_ok=True)
            raise Corrupt(
                f"blob {self._sha256.hex()}: the {self._size_bytes} bytes that came hash to "
                f"{self._digest.hexdigest()}; nothing was kept, upload the right file from byte 0",
                found=self._digest.hexdigest(),
                needed=self._sha256.hex(),
            )
        with _space_errors():
            os.fsync(self._file.fileno())
        self._blobs.adopt(self._sha256, self._partial)
        return True


def _checked(sha256: bytes) -> bytes:
    if len(sha256) != 32:
        raise InvalidArgument(f"a sha256 of {len(sha256)} bytes, needs 32")
    return sha256


def _move_local(source: Path, target: Path) -> None:
    """The bytes are on the disk before the name is, and the name before this returns."""
    _rename_local(source, target)
    for folder in (target.parent, target.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rename_local(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
        shutil.copyfile(source, beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
        source.unlink()


@contextmanager
def _space_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ResourceExhausted(
            "the planner's blob disk is full; free space there and go on with the upload",
            retry_after_seconds=FULL_DISK_RETRY_SECONDS,
        ) from None
