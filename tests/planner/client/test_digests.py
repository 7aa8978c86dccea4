"""What is remembered of a file counts only while the file is as it was."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from planner.client import digests
from planner.client.digests import file_sha256

LONG_AGO_SECONDS = 1_000_000_000


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # No test's file has been at rest for long.
    monkeypatch.setattr(digests, "AT_REST_SECONDS", -1.0)


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a file is read and hashed."""
    calls: list[int] = []
    real = hashlib.file_digest

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return calls


def written(folder: Path, content: bytes) -> Path:
    path = folder / "weights.safetensors"
    path.write_bytes(content)
    return path


def test_an_unchanged_file_is_read_once(tmp_path: Path, num_read: list[int]) -> None:
    path = written(tmp_path, b"weights")
    assert file_sha256(path) == file_sha256(path) == hashlib.sha256(b"weights").digest()
    assert len(num_read) == 1


def test_another_content_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, b"weights")
    os.utime(path, (LONG_AGO_SECONDS, LONG_AGO_SECONDS))
    file_sha256(path)
    path.write_bytes(b"WEIGHTS")
    os.utime(path, (LONG_AGO_SECONDS, LONG_AGO_SECONDS))
    assert file_sha256(path) == hashlib.sha256(b"WEIGHTS").digest()


def test_what_was_written_just_now_is_not_remembered(
    tmp_path: Path, num_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "AT_REST_SECONDS", 3600.0)
    path = written(tmp_path, b"weights")
    file_sha256(path)
    file_sha256(path)
    assert len(num_read) == 2


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"PATH": 3}', '{"PATH": {"standing": STANDING, "sha256": "no"}}'])
def test_a_damaged_cache_is_no_cache(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path, b"weights")
    file_sha256(path)
    [cache] = digests.cache_folder().iterdir()
    standing = str(digests._standing(path))
    cache.write_text(damage.replace("PATH", str(path)).replace("STANDING", standing))
    assert file_sha256(path) == hashlib.sha256(b"weights").digest()


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    path = written(tmp_path, b"weights")
    assert file_sha256(path) == hashlib.sha256(b"weights").digest()


def test_the_oldest_is_forgotten(tmp_path: Path, num_read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_FILES", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text(path.name)
        file_sha256(path)
    file_sha256(paths[2])
    assert len(num_read) == 3
    file_sha256(paths[0])
    assert len(num_read) == 4


def test_a_file_that_changed_is_the_newest(
    tmp_path: Path, num_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_FILES", 2)
    for name in ("a", "b", "a", "c"):
        (tmp_path / name).write_text(f"{name} {len(num_read)}")
        file_sha256(tmp_path / name)
    file_sha256(tmp_path / "a")
    assert len(num_read) == 4
    file_sha256(tmp_path / "b")
    assert len(num_read) == 5


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "none")
