"""Who divides a host's CPU cores among the workers there. Imports no torch, for the supervisor asks it too."""

from __future__ import annotations

import os
import sys

from access.container import cpu_quota

# Whoever sets one of these has shared the cores out.
SHARED_OUT_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def workers_share_cores() -> bool:
    """Whether each worker takes its share by itself, as no environment variable says what it may use."""
    return not any(name in os.environ for name in SHARED_OUT_BY)


def room_for_neighbours(num_threads: int) -> int:
    """How many more processes of `num_threads` each, or where that is 0 of as many as the environment says, the host
    has cores for. None where one takes all cores by itself."""
    threads = num_threads or _threads_shared_out()
    return max(0, min(len(os.sched_getaffinity(0)), most_cores()) // threads - 1) if threads else 0


def most_cores() -> int:
    """How many the process may keep busy: fewer than the host has where its container has a quota."""
    quota = cpu_quota()
    return max(1, int(quota)) if quota is not None else sys.maxsize


def _threads_shared_out() -> int:
    """0 where nothing, or no number, is set."""
    text = next((os.environ[name] for name in SHARED_OUT_BY if name in os.environ), "")
    return int(text) if text.isascii() and text.isdigit() else 0
