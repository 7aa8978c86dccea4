"""Kernels are compiled also where nothing may be written, and where there is no compiler it is said once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.partition.placement.compiled import WITHOUT_COMPILER

ROOT = Path(__file__).parents[4]
NO_CACHE = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
from planner.partition.placement.compiled import compiled

@compiled
def doubled(number):
    return number * 2

assert doubled(4) == 8
"""
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\n"
PLACEMENT = """
from planner.cli.__main__ import main

instance = "benchmarks/instances/throughput/LayerGraphs_resnet50_inference.json"
sys.argv = ["planner-cli", "solve", instance, "--time-limit", "1"]
main()
"""


def _run(script: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


@pytest.mark.services
def test_without_a_place_for_a_cache() -> None:
    assert WITHOUT_COMPILER not in _run(NO_CACHE).stderr


@pytest.mark.services
@pytest.mark.slow
def test_a_placement_by_two_processes_says_once_that_there_is_no_compiler() -> None:
    assert _run(WITHOUT_NUMBA + PLACEMENT).stderr.count(WITHOUT_COMPILER) == 1
