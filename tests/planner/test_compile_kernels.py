"""What compiles the kernels ahead calls all of them; run as plain Python, it shows which it calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import functools, importlib, pkgutil
from planner.partition.placement import compiled

called = set()

def recorded(kernel):
    @functools.wraps(kernel)
    def call(*arguments):
        called.add(kernel)
        return kernel(*arguments)
    compiled.KERNELS.append(kernel)
    return call

compiled.compiled = recorded
import planner.cost_graphs, planner.partition
from planner.compile_kernels import SEARCHES

for package in (planner.partition, planner.cost_graphs):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for search in SEARCHES:
    search()
reached = [kernel for kernel in compiled.KERNELS if kernel in called]
# What a kernel names is compiled with it, whether these problems come to it or not.
for kernel in reached:
    named = [kernel.__globals__.get(name) for name in kernel.__code__.co_names]
    others = {getattr(other, "__wrapped__", None) for other in named if callable(other)}
    reached += [other for other in compiled.KERNELS if other in others and other not in reached]
print(len(compiled.KERNELS), sorted(kernel.__qualname__ for kernel in compiled.KERNELS if kernel not in reached))
"""


@pytest.mark.slow
@pytest.mark.services
def test_no_kernel_is_left_for_a_users_plan() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    count, left_out = finished.stdout.strip().split(" ", 1)
    assert int(count) > 50
    assert left_out == "[]"
