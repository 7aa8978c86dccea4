"""The sha256 of files, remembered while they stay as they were, so that submitting a model again reads none of it.

A file is the same if its path, inode, size and both of its times are. Only what had been at rest for a while when it
was hashed is remembered: a later write within the same tick of the clock could not be told from none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_FILES = 4096
AT_REST_SECONDS = 2.0
_FILE = "file-digests.json"


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "partition-planner"


def file_sha256(path: Path) -> bytes:
    """Raises OSError for a file that cannot be read; a cache that cannot be read or written is none."""
    name, before = str(path.resolve()), _standing(path)
    remembered = _remembered()
    entry = remembered.get(name)
    if isinstance(entry, dict) and entry.get("standing") == before and _is_digest(entry.get("sha256")):
        return bytes.fromhex(entry["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    if _standing(path) == before and time.time_ns() - max(before[2:]) > AT_REST_SECONDS * 1e9:
        # The newest last, so that the oldest are forgotten.
        remembered.pop(name, None)
        remembered[name] = {"standing": before, "sha256": digest.hex()}
        _remember(dict(list(remembered.items())[-MAX_FILES:]))
    return digest


def _standing(path: Path) -> list[int]:
    """[inode, bytes, nanoseconds of the last write, of the last change of anything]."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(character in "0123456789abcdef" for character in text)


def _remembered() -> dict[str, Any]:
    try:
        entries = json.loads((cache_folder() / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(digests: dict[str, Any]) -> None:
    """Whole or not at all; of two that write at once the later one counts."""
    folder = cache_folder()
    partial = folder / f"{_FILE}.{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(digests))
        partial.replace(folder / _FILE)
