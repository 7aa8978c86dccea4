"""Services that end, or stand still, at each named point of what they do: what was asked for comes through.

tests/stage_daemon/control/test_deaths.py has a little of it for `make test`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from tests.faults.rounds import come_through, failpoint
from tests.faults.scale import IS_SOAK, MOST_SECONDS, random_moments, tell
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.services, pytest.mark.timeout(MOST_SECONDS)]
MEBIBYTE = 2**20
# Of daemons and their workers, once the deployment runs: what breaks before it was ever ready has failed, by design.
# Which call it is at which something happens, at most: of a microbatch taken, of one answered, of an end.
DAEMON_STEPS = {
    "stage_daemon.worker.door:Inlet._submission": 10,
    "stage_daemon.worker.framing:ResultWriter.content": 10,
    "stage_daemon.control.hosted:HostedDeployment.release": 1,
}
KINDS = ("crash", "stall")


def test_a_process_ends_at_its_failpoint_and_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def take(): return 1\nasync def wait(): return 2\n")
    script = "import asyncio, step; [step.take() for _ in range(2)]; asyncio.run(step.wait())"

    def run(point: str, once: Path | None = None) -> int:
        with failpoint(point, stall_seconds=0.0, once=once):
            environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"}
        return subprocess.run([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL).returncode

    assert run("step:take before crash #2") == -signal.SIGKILL
    assert run("step:take after crash #3") == 0
    assert run("step:wait after raise 1.0") == 1
    assert run("step:wait before stall 1.0; step:take before crash 0.0") == 0
    once = "step:take before crash #2", tmp_path / "reached"
    assert [run(*once), run(*once)] == [-signal.SIGKILL, 0]


@pytest.mark.slow
@pytest.mark.skipif(not IS_SOAK, reason="make soak")
def test_what_was_asked_for_comes_through(tmp_path: Path) -> None:
    moments = random_moments()
    points = [
        f"{step} before {what} #{moments.randint(1, most_calls)}"
        for step, most_calls in DAEMON_STEPS.items()
        for what in KINDS
    ]
    moments.shuffle(points)
    with (
        LocalCluster(
            data_dir=tmp_path, memory_bytes=(64 * MEBIBYTE,) * 2, environment={"OMP_NUM_THREADS": "1"}
        ) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        module = two_layers()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        for number, point in enumerate(points):
            reached = tmp_path / f"reached{number}"
            # Else the worker that takes the place of one that ended would end at the same call, and so on.
            with failpoint(point, once=reached):
                for index in range(2):
                    cluster.daemons[cluster.device_id(index)].stop()
                    cluster.start_daemon(index)
            come_through(cluster, client, graph.id, module)
            assert reached.exists(), f"{point} was not reached"
    tell(f"a process ended or stood still at each of {len(points)} failpoints, and what was asked for came through")
