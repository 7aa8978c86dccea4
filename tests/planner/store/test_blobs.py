"""The blob store on a folder and on another fsspec file system: one contract for both."""

from __future__ import annotations

import errno
import hashlib
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Corrupt, InvalidArgument, NotFound, ResourceExhausted, WrongOffset
from planner.store import blobs as blobs_module
from planner.store.blobs import BlobStore


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (tmp_path / "blobs").as_uri() if request.param == "file" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def blobs(url: str, tmp_path: Path) -> BlobStore:
    return BlobStore(url, tmp_path / "staging", max_bytes=10_000)


def write(blobs: BlobStore, content: bytes, *, size: int, offset: int = 0, digest: bytes) -> bool:
    writer = blobs.write(digest, size, offset).open()
    try:
        writer.append(content)
        return writer.finish()
    finally:
        writer.close()


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def test_in_two_pieces(blobs: BlobStore) -> None:
    digest = sha256(b"abcdef")
    assert not write(blobs, b"abc", size=6, digest=digest)
    assert (blobs.committed_bytes(digest), blobs.size_bytes(digest)) == (3, None)
    with pytest.raises(NotFound):
        blobs.read_range(digest)
    with pytest.raises(WrongOffset) as caught:
        blobs.write(digest, 6, 0)
    assert caught.value.metadata == {"committed_bytes": "3"}
    assert write(blobs, b"def", size=6, offset=3, digest=digest)
    assert blobs.read(digest) == b"abcdef"
    assert blobs.committed_bytes(digest) == 6


def test_wrong_digest_in_the_second_piece(blobs: BlobStore, tmp_path: Path) -> None:
    digest = sha256(b"abcdef")
    write(blobs, b"abc", size=6, digest=digest)
    with pytest.raises(Corrupt):
        write(blobs, b"dEf", size=6, offset=3, digest=digest)
    assert blobs.committed_bytes(digest) == 0
    assert list((tmp_path / "staging").iterdir()) == []


def test_more_than_announced_keeps_what_fits(blobs: BlobStore) -> None:
    digest = sha256(b"abcdef")
    write(blobs, b"abc", size=6, digest=digest)
    with pytest.raises(InvalidArgument):
        write(blobs, b"defg", size=6, offset=3, digest=digest)
    assert blobs.committed_bytes(digest) == 3


def test_part_of_an_upload_with_another_size_is_dropped(blobs: BlobStore) -> None:
    digest = sha256(b"abc")
    write(blobs, b"garbage", size=10, digest=digest)
    assert write(blobs, b"abc", size=3, digest=digest)


def test_put_and_put_again(blobs: BlobStore, tmp_path: Path) -> None:
    digest = blobs.put(b"content")
    assert digest == sha256(b"content") == blobs.put(b"content")
    assert blobs.read(digest) == b"content"
    assert list((tmp_path / "staging").iterdir()) == []


def test_limits(blobs: BlobStore) -> None:
    with pytest.raises(InvalidArgument, match="10000"):
        blobs.write(bytes(32), 10_001, 0)
    digest = blobs.put(b"content")
    with pytest.raises(InvalidArgument):
        blobs.read(digest, max_bytes=3)
    with pytest.raises(InvalidArgument, match="32"):
        blobs.size_bytes(b"../../etc/passwd")


def test_full_disk_keeps_what_was_written(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digest = sha256(b"abcdef")
    write(blobs, b"abc", size=6, digest=digest)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs_module.os, "fsync", full)
    with pytest.raises(ResourceExhausted, match="full"):
        write(blobs, b"def", size=6, offset=3, digest=digest)
    monkeypatch.undo()
    assert blobs.committed_bytes(digest) == 6
    assert write(blobs, b"", size=6, offset=6, digest=digest)


def test_unknown_file_system(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nonsense"):
        BlobStore("nonsense://x", tmp_path)


@given(content=st.binary(max_size=100), offset=st.integers(0, 120), length=st.integers(0, 120))
def test_any_range(tmp_path_factory: pytest.TempPathFactory, content: bytes, offset: int, length: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "ranges"
    blobs = BlobStore(folder.as_uri(), folder / "staging")
    digest = blobs.put(content)
    end = offset + length if length else len(content)
    if offset <= end <= len(content):
        assert b"".join(blobs.read_range(digest, offset, length)) == content[offset:end]
    else:
        with pytest.raises(InvalidArgument):
            blobs.read_range(digest, offset, length)
