"""What compiles the kernels ahead calls all of them; run without the compiler, it shows which it calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib, pkgutil, sys
import planner.partition
from planner.compile_kernels import SEARCHES
from planner.partition.placement.compiled import KERNELS

for module in pkgutil.walk_packages(planner.partition.__path__, "planner.partition."):
    importlib.import_module(module.name)
called = set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
for search in SEARCHES:
    search()
sys.setprofile(None)
compiled = [kernel for kernel in KERNELS if kernel.__code__ in called]
# What a kernel names is compiled with it, whether these problems come to it or not.
for kernel in compiled:
    named = [kernel.__globals__.get(name) for name in kernel.__code__.co_names]
    compiled += [other for other in KERNELS if other in named and other not in compiled]
print(len(KERNELS), sorted(kernel.__qualname__ for kernel in KERNELS if kernel not in compiled))
"""


@pytest.mark.slow
@pytest.mark.services
def test_no_kernel_is_left_for_a_users_plan() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    count, left_out = finished.stdout.strip().split(" ", 1)
    assert int(count) > 50
    assert left_out == "[]"
