"""What this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_descriptors() -> set[tuple[str, int]]:
    """(number, inode): what is open now and was not before is told so from what earlier tests close meanwhile."""
    opened = set[tuple[str, int]]()
    for number in os.listdir("/proc/self/fd"):
        # The folder that is listed is closed by now.
        with suppress(FileNotFoundError):
            opened.add((number, Path(f"/proc/self/fd/{number}").stat().st_ino))
    return opened
