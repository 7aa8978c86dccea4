"""Kernels are compiled also where nothing may be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
from planner.partition.placement.compiled import compiled

@compiled
def doubled(number):
    return number * 2

assert doubled(4) == 8
"""


@pytest.mark.services
def test_without_a_place_for_a_cache(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[4]
    finished = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
