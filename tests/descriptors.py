"""Which memory of rings this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_rings() -> set[tuple[str, int]]:
    """(number, inode) of each descriptor: what is open now and was not before is told so from what earlier tests close.

    Of rings alone, since threads that earlier tests left open and close others meanwhile.
    """
    opened = set[tuple[str, int]]()
    for number in os.listdir("/proc/self/fd"):
        path = Path(f"/proc/self/fd/{number}")
        # The folder that is listed is closed by now.
        with suppress(FileNotFoundError):
            if path.readlink().name.startswith("memfd:ring"):
                opened.add((number, path.stat().st_ino))
    return opened
