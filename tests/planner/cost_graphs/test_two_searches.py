"""A free placement by two processes: as good as one finds alone, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from planner.cli import exit_codes
from planner.cost_graphs.limits import Limits
from planner.cost_graphs.placement.costs import device_loads
from planner.cost_graphs.two_searches import place_by_two
from planner.errors import Infeasible
from tests.job_signals import in_background, in_foreground
from tests.planner.cost_graphs.placement.one_process import best_free
from tests.planner.cost_graphs.placement.small_problems import random_problem
from tests.waiting import WAIT_SECONDS, is_gone, wait_for

pytestmark = pytest.mark.services

INSTANCE = Path(__file__).parents[3] / "benchmarks" / "instances" / "throughput" / "LayerGraphs_resnet50_inference.json"


def _children(process_id: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{process_id}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (task / "children").read_text().split())
    return children


def _ignores(process_id: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
    return bool(mask >> (number - 1) & 1)


@contextmanager
def _searching(started: Callable[[list[str]], list[str]]) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """`solve` with its two processes."""
    command = started([sys.executable, "-m", "planner.cli", "solve", str(INSTANCE), "--time-limit", "600"])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: len(_children(process.pid)) == 2, "two processes to start")
            yield process, _children(process.pid)
        finally:
            process.kill()


def test_proves_what_one_process_proves() -> None:
    problem = random_problem(11, nodes=18, classes=(1, 2))
    alone = best_free(problem, effort=200_000)
    children = _children(os.getpid())
    limits = Limits()
    placement = place_by_two(problem, limits)
    assert not limits.has_cut
    assert placement.value_seconds == pytest.approx(alone.value_seconds, rel=1e-5)
    assert placement.gap <= 1e-5
    assert placement.value_seconds == device_loads(problem, np.array(placement.device_of_node)).max()
    assert _children(os.getpid()) == children


def test_a_short_limit_still_gives_a_placement() -> None:
    problem = random_problem(12, nodes=60, classes=(1, 3))
    limits = Limits(seconds=0.05)
    placement = place_by_two(problem, limits)
    assert limits.has_cut
    assert placement.value_seconds == device_loads(problem, np.array(placement.device_of_node)).max()


def test_what_cannot_be_placed_is_an_error() -> None:
    problem = random_problem(1, nodes=3, classes=(2,), groups=3)
    problem.node_bytes[:] = 60.0
    problem.class_bytes[:] = 100.0
    with pytest.raises(Infeasible, match="hold 180 bytes and the devices have 200 bytes"):
        place_by_two(problem, Limits())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_both_processes_end_with_the_one_that_started_them(how: signal.Signals) -> None:
    with _searching(in_foreground) as (process, children):
        process.send_signal(how)
        assert process.wait(WAIT_SECONDS) == (exit_codes.INTERRUPTED if how is signal.SIGINT else -how)
        wait_for(lambda: all(map(is_gone, children)), "both to end")


def test_a_background_job_goes_on_at_ctrl_c_and_ends_when_terminated() -> None:
    with _searching(in_background) as (process, children):
        assert _ignores(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == -signal.SIGTERM
        wait_for(lambda: all(map(is_gone, children)), "both to end")
