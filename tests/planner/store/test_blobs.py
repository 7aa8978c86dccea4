"""The blob store on a folder and on another fsspec file system: one contract for both."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Corrupt, InvalidArgument, NotFound, ResourceExhausted, WrongOffset
from planner.store import blobs as blobs_module
from planner.store.blobs import BlobStore
from tests.random_examples import random_examples


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
    with pytest.raises(ResourceExhausted, match="full") as refused:
        write(blobs, b"def", size=6, offset=3, digest=digest)
    assert refused.value.metadata["retry_after_seconds"] == "30.0"
    monkeypatch.undo()
    assert blobs.committed_bytes(digest) == 6
    assert write(blobs, b"", size=6, offset=6, digest=digest)


def test_what_the_kernel_still_takes_of_a_chunk_stays(blobs: BlobStore) -> None:
    content = bytes(range(256)) * 32
    digest = sha256(content)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(ResourceExhausted, match="full"):
            write(blobs, content, size=len(content), digest=digest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert blobs.committed_bytes(digest) == 5000
    assert write(blobs, content[5000:], size=len(content), offset=5000, digest=digest)
    assert blobs.read(digest) == content


def test_unknown_file_system(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nonsense"):
        BlobStore("nonsense://x", tmp_path)


def test_chunks_are_a_mebibyte_at_most_and_together_the_range(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path.as_uri(), tmp_path / "staging")
    content = bytes(range(256)) * (4096 * 2) + b"the end of it"
    digest = blobs.put(content)
    chunks = list(blobs.read_range(digest, 5, len(content) - 6))
    assert [len(chunk) for chunk in chunks] == [1 << 20, 1 << 20, len(content) - 6 - (2 << 20)]
    assert b"".join(chunks) == content[5:-1]


def test_a_range_that_is_not_in_the_blob_is_refused_before_the_first_chunk(blobs: BlobStore) -> None:
    digest = blobs.put(b"content")
    for offset, length in ((8, 0), (0, 8), (7, 1), (-1, 2), (3, -2)):
        with pytest.raises(InvalidArgument, match="has 7 bytes"):
            blobs.read_range(digest, offset, length)
    assert b"".join(blobs.read_range(digest, 7)) == b""


def test_a_file_that_was_cut_short_is_told(tmp_path: Path) -> None:
    blobs = BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")
    digest = blobs.put(b"content")
    chunks = blobs.read_range(digest)
    [path] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert path.relative_to(tmp_path / "blobs").parts == (digest.hex()[:2], digest.hex())
    path.write_bytes(b"cont")
    with pytest.raises(Corrupt, match="ends at byte 4, needs 7"):
        list(chunks)


def path_of(blobs: BlobStore, digest: bytes) -> Path:
    return Path(blobs._path(digest))


@pytest.mark.parametrize("damage", [b"abcdeX", b"abc", b"abcdefg", b""])
def test_a_blob_that_was_damaged_is_told_put_away_and_written_anew(tmp_path: Path, damage: bytes) -> None:
    blobs = BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")
    digest = blobs.put(b"abcdef")
    path_of(blobs, digest).write_bytes(damage)
    with pytest.raises(Corrupt, match=r"was damaged on the planner's disk.*upload it again") as caught:
        blobs.read(digest)
    assert caught.value.metadata == {"found": sha256(damage).hex(), "needed": digest.hex()}
    assert blobs.size_bytes(digest) is None
    assert [path.read_bytes() for path in (tmp_path / "blobs" / "damaged").iterdir()] == [damage]
    assert write(blobs, b"abcdef", size=6, digest=digest)
    assert blobs.read(digest) == b"abcdef"
    path_of(blobs, digest).write_bytes(damage)
    assert blobs.put(b"abcdef") == digest
    assert blobs.read(digest) == b"abcdef"


def test_scrubbing_reads_every_blob(blobs: BlobStore) -> None:
    assert list(blobs.scrub()) == []
    whole, damaged = sorted(blobs.put(content) for content in (b"one", b"two"))
    with blobs._files.open(blobs._path(damaged), "wb") as file:
        file.write(b"three")
    assert list(blobs.scrub()) == [(whole, True), (damaged, False)]
    assert list(blobs.scrub()) == [(whole, True)]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def watched_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    blobs.put(b"abc")
    assert write(blobs, b"def", size=3, digest=sha256(b"def"))
    assert steps == ["file", "rename", "folder", "folder"] * 2


def test_the_largest_blob_and_the_largest_read(blobs: BlobStore) -> None:
    content = bytes(10_000)
    assert write(blobs, content, size=10_000, digest=sha256(content))
    assert blobs.read(sha256(content), max_bytes=10_000) == content
    with pytest.raises(InvalidArgument, match="has 10000 bytes, at most 9999"):
        blobs.read(sha256(content), max_bytes=9_999)


def test_pieces_of_any_size_count_as_they_come(blobs: BlobStore) -> None:
    digest = sha256(b"abcdef")
    writer = blobs.write(digest, 6, 0).open()
    committed = []
    for piece in (b"a", b"", b"bcd"):
        writer.append(piece)
        committed.append(writer.committed_bytes)
    assert committed == [1, 1, 4]
    assert not writer.finish()
    writer.close()
    again = blobs.write(digest, 6, 4).open()
    assert again.committed_bytes == 4
    again.append(b"ef")
    assert again.finish()
    again.close()
    assert blobs.read(digest) == b"abcdef"


def test_nothing_at_all_is_a_blob_too(blobs: BlobStore) -> None:
    assert blobs.committed_bytes(sha256(b"")) == 0
    assert blobs.size_bytes(sha256(b"")) is None
    assert write(blobs, b"", size=0, digest=sha256(b""))
    assert blobs.read(sha256(b"")) == b""


def test_a_blob_that_is_whole_is_not_written_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"abcdef")
    with pytest.raises(WrongOffset, match="but 6 are here"):
        blobs.write(digest, 6, 0)


def test_two_stores_on_one_folder_see_the_same_blobs(url: str, blobs: BlobStore, tmp_path: Path) -> None:
    digest = blobs.put(b"content")
    assert BlobStore(url, tmp_path / "other").read(digest) == b"content"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
def test_staging_on_another_file_system(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as staging:
        blobs = BlobStore((tmp_path / "blobs").as_uri(), Path(staging))
        digest = sha256(b"abcdef")
        assert write(blobs, b"abcdef", size=6, digest=digest)
        assert blobs.read(digest) == b"abcdef"
        assert list(Path(staging).iterdir()) == []
    files = [path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert files == [digest.hex()]


def test_an_error_that_is_not_of_space_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("a file where a folder is needed")
    with pytest.raises(FileExistsError):
        BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")


@random_examples(60)
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


def test_blobs_are_named_aged_and_deleted(blobs: BlobStore) -> None:
    assert blobs.names() == ()
    first, second = blobs.put(b"first"), blobs.put(b"second")
    blobs.use_for("database")
    assert blobs.names() == tuple(sorted((first, second)))
    written_at = blobs.used_at(first)
    assert written_at is not None
    assert abs((datetime.now(UTC) - written_at).total_seconds()) < 3600
    blobs.renew(first)
    assert blobs.used_at(first) >= written_at
    for _ in range(2):
        blobs.delete(first)
        assert blobs.used_at(first) is None
    assert blobs.names() == (second,)
    assert blobs.put(b"second") == second
    assert (blobs.databases(), blobs.read(second)) == (("database",), b"second")
