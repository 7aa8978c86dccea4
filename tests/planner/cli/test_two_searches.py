"""A free placement by two processes: as good as one finds alone, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from planner.cli.two_searches import place_by_two
from planner.errors import Infeasible
from planner.partition.placement.free import best_free
from planner.partition.placement.loads import device_loads
from tests.planner.partition.placement.small_problems import random_problem

INSTANCE = Path(__file__).parents[3] / "benchmarks" / "instances" / "throughput" / "LayerGraphs_resnet50_inference.json"
_PATIENCE_SECONDS = 60.0


def _children(process_id: int) -> list[int]:
    tasks = Path(f"/proc/{process_id}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def _is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _wait_until(what: str, happened: object) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    assert callable(happened)
    while not happened():
        assert time.monotonic() < end, f"{what} within {_PATIENCE_SECONDS} s"
        time.sleep(0.05)


def test_proves_what_one_process_proves() -> None:
    problem = random_problem(11, nodes=20, classes=(1, 2))
    alone = best_free(problem, effort=200_000)
    children = _children(os.getpid())
    found = place_by_two(problem, started_seconds=time.monotonic(), limit_seconds=_PATIENCE_SECONDS)
    assert found.value_seconds == pytest.approx(alone.value_seconds, rel=1e-5)
    assert found.gap <= 1e-5
    assert found.value_seconds == device_loads(problem, np.array(found.device_of_node)).max()
    assert _children(os.getpid()) == children


def test_a_short_limit_still_gives_a_placement() -> None:
    problem = random_problem(12, nodes=60, classes=(1, 3))
    found = place_by_two(problem, started_seconds=time.monotonic(), limit_seconds=0.05)
    assert found.value_seconds == device_loads(problem, np.array(found.device_of_node)).max()


def test_what_cannot_be_placed_is_an_error() -> None:
    problem = random_problem(1, nodes=3, classes=(2,), groups=3)
    problem.node_bytes[:] = 60.0
    problem.class_bytes[:] = 100.0
    with pytest.raises(Infeasible, match="hold 180 bytes and the devices have 200 bytes"):
        place_by_two(problem, started_seconds=time.monotonic(), limit_seconds=_PATIENCE_SECONDS)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_both_processes_end_with_the_one_that_started_them(how: signal.Signals) -> None:
    arguments = [sys.executable, "-m", "planner.cli", "solve", str(INSTANCE), "--time-limit", "600"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until("two processes start", lambda: len(_children(process.pid)) == 2)
            children = _children(process.pid)
            process.send_signal(how)
            assert process.wait(_PATIENCE_SECONDS) != 0
            _wait_until("both end", lambda: not any(map(_is_running, children)))
        finally:
            process.kill()
