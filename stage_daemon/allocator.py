"""What glibc's malloc keeps of the memory that a process frees.

As it comes, it gives large blocks back to the kernel, and memory of threads other than the main one in whole: the next
microbatch takes it again page by page, at a microsecond or two each, which for a tensor of 16 MiB is longer than most
stages compute with it.
"""

from __future__ import annotations

import ctypes
import os

# malloc.h: parameters of mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# The most that glibc takes. Larger blocks still come from the kernel, and go back there.
_MMAP_THRESHOLD_BYTES = 1 << 25
# Whoever sets these knows better, or has another malloc.
_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")


def keep_freed_memory(num_bytes: int) -> None:
    """So many bytes at the end of the heap stay with the process; all threads share one heap. Call it before threads
    start; forked processes inherit it. Does nothing where malloc is not glibc's, or the environment says otherwise.
    """
    if any(os.environ.get(name) for name in _SETTINGS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, num_bytes)
