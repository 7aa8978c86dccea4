"""Shared memory: by name, which a process that is killed would leave behind, and without one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


def named_memory(process_id: int | str = "self") -> set[str]:
    """What the process has mapped of it; others' comes and goes meanwhile."""
    return set(re.findall("/dev/shm/.*", Path(f"/proc/{process_id}/maps").read_text()))


def memory_descriptors() -> set[tuple[str, int]]:
    """(descriptor, inode) of this process's anonymous memory. What earlier tests left may close at any time."""
    open_ones = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith("/memfd:"):
                open_ones.add((descriptor.name, descriptor.stat().st_ino))
    return open_ones
