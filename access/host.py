"""Which host a process is on, and which clock it reads, as the services tell each other."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_TIME = Path("/proc/self/ns/time")


def host_identity() -> str:
    """Equal for two processes that can reach each other by Unix sockets and shared memory; empty where none can."""
    return _within_boot(_NETWORK)


def clock_identity() -> str:
    """Equal for two processes whose `time.monotonic` is the same; empty where that cannot be told."""
    return _within_boot(_TIME)


def _within_boot(namespace: Path) -> str:
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.stat(namespace).st_ino}"
    except OSError:
        return ""
