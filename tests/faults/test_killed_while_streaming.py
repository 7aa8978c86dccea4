"""Everything killed, or stopped for a while, under a stream: each batch has its answer once, in order, bit for bit.

tests/stage_daemon/control/test_deaths.py has a little of it for `make test`.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import CutMode
from tests.contract.databases import empty_database
from tests.faults.scale import IS_SOAK, KINDS_NAMED, MOST_SECONDS, random_moments, scaled, tell
from tests.faults.streams import BREAKS, BREAKS_NOTHING, stream_under_kills
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(MOST_SECONDS),
    pytest.mark.skipif(not IS_SOAK, reason="make soak"),
]
MEBIBYTE = 2**20
NUM_BATCHES = scaled(0, 10_000)
NUM_KILLS = scaled(0, 104)
# Of 95 % of those that are killed and whose deployment goes on on the devices that are left. The others are noticed
# once they have been silent for as long as they may.
FIRST_ANSWER_SECONDS = 3.0
BY_SIGKILL = frozenset({"worker", "daemon", "planner", "database"})
# A device that is lost for good is test_lost_devices.py's.
KINDS = KINDS_NAMED or tuple(sorted((BREAKS | BREAKS_NOTHING) - {"device"}))


@pytest.mark.parametrize(("recovery", "num_devices"), [(RecoveryPolicy.RESTART, 2), (RecoveryPolicy.REPLAN, 3)])
def test_each_batch_is_answered_once_and_right(tmp_path: Path, recovery: RecoveryPolicy, num_devices: int) -> None:
    moments = random_moments()
    kills = list(itertools.islice(itertools.cycle(KINDS), NUM_KILLS))
    moments.shuffle(kills)
    with empty_database("postgresql", tmp_path) as url:
        environment = {
            "OMP_NUM_THREADS": "1",
            "PLANNER_DATABASE_URL": url,
            "PLANNER_CLAIM_SECONDS": "2",
            "STAGE_DAEMON_WORKER_SILENCE_SECONDS": "3",
        }
        with (
            LocalCluster(
                data_dir=tmp_path, memory_bytes=(64 * MEBIBYTE,) * num_devices, environment=environment
            ) as cluster,
            PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
        ):
            module = two_layers()
            graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
            plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
            waits = stream_under_kills(
                cluster,
                client,
                plan.id,
                module,
                kills=kills,
                num_batches=NUM_BATCHES,
                moments=moments,
                recovery=recovery,
                database=url.rpartition("/")[2].partition("?")[0],
            )
    tell(f"{recovery.value}: {NUM_BATCHES} batches, {len(kills)} kills and stops, each batch answered once and right")
    told(recovery.value, "each that breaks it", [seconds for kill, seconds in waits if kill in BREAKS])
    told(recovery.value, "each that breaks nothing", [seconds for kill, seconds in waits if kill in BREAKS_NOTHING])
    for kind in dict.fromkeys(KINDS):
        told(recovery.value, kind, [seconds for kill, seconds in waits if kill == kind])
    p95 = told(recovery.value, "each that is killed", [seconds for kill, seconds in waits if kill in BY_SIGKILL])
    assert p95 <= FIRST_ANSWER_SECONDS or recovery is not RecoveryPolicy.REPLAN


def told(recovery: str, what: str, seconds: list[float]) -> float:
    """Prints them, and returns the 95th percentile."""
    seconds, p95 = sorted(seconds), 0.0
    if seconds:
        p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
        figures = f"p50 {p50:.2f} s, p95 {p95:.2f} s, most {seconds[-1]:.2f} s"
        tell(f"{recovery}, first answer after {what} ({len(seconds)}): {figures}")
    return p95
