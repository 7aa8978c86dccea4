"""Whether a process that takes and frees large blocks again and again takes them from the kernel each time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BLOCK_BYTES = 1 << 24
ROUNDS = 20
# Several blocks of a thread, as a stage's activations are. Each page of a block that comes from the kernel is a fault.
SCRIPT = f"""
import ctypes, resource, threading
from stage_daemon.allocator import keep_freed_memory
KEEP
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def work():
    for round in range({ROUNDS} + 1):
        if round == 1:
            began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc({BLOCK_BYTES}) for _ in range(5)]
        for block in blocks:
            ctypes.memset(block, 1, {BLOCK_BYTES})
        for block in blocks:
            libc.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
PAGES = BLOCK_BYTES // 4096


def faults(keep: str, **environment: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    script = SCRIPT.replace("KEEP", keep)
    completed = subprocess.run(
        [sys.executable, "-c", script], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return int(completed.stdout)


@pytest.mark.services
def test_memory_that_is_freed_is_taken_again_without_the_kernel() -> None:
    assert faults("") > ROUNDS * PAGES
    assert faults(f"keep_freed_memory({8 * BLOCK_BYTES})") < PAGES


@pytest.mark.services
def test_who_sets_malloc_by_the_environment_is_listened_to() -> None:
    assert faults(f"keep_freed_memory({8 * BLOCK_BYTES})", MALLOC_TRIM_THRESHOLD_="65536") > ROUNDS * PAGES
