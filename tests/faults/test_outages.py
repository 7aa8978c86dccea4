"""A database that is away and a planner that stands still, for several leases: a stream goes on, nothing ends.

tests/planner/dispatch/test_outages.py asks the same of the dispatcher alone.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.pipeline import Pipeline
from planner.client.records import Deployment, DeploymentState
from planner.errors import Unavailable
from planner.plan.options import CutMode
from tests.contract.databases import empty_database
from tests.contract.postgresql import postgresql
from tests.faults.scale import IS_SOAK, scaled, tell
from tests.faults.streams import stopped
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1800)]
MEBIBYTE = 2**20
# A planner that is told nothing else has leases of ten seconds.
LEASE_SECONDS = 10.0 if IS_SOAK else 5.0
STILL_SECONDS = scaled(8, 30)
KINDS = ("database shut down", "planner stopped", *(["database stopped"] if IS_SOAK else []))
PAUSE_SECONDS = 0.05
LONGEST_GAP_SECONDS = 1.0


class Stream(threading.Thread):
    """One batch after the other, until it is told to end."""

    def __init__(self, pipeline: Pipeline, module: torch.nn.Module) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._module = pipeline, module
        self._is_over = threading.Event()
        self.num_answers = 0
        # Between two right answers, since it was last set to 0.
        self.longest_gap_seconds = 0.0

    @torch.no_grad()
    def run(self) -> None:
        answered_at = time.monotonic()
        while not self._is_over.is_set():
            batch = torch.randn(3, 8)
            assert torch.equal(self._pipeline(batch), self._module(batch))
            now = time.monotonic()
            self.longest_gap_seconds, answered_at = max(self.longest_gap_seconds, now - answered_at), now
            self.num_answers += 1
            time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        assert self.is_alive(), f"it ended after {self.num_answers} answers"
        self._is_over.set()
        self.join(WAIT_SECONDS)


def test_nothing_ends_while_the_database_or_the_planner_stands_still(tmp_path: Path) -> None:
    with (
        empty_database("postgresql", tmp_path) as url,
        LocalCluster(
            data_dir=tmp_path,
            memory_bytes=(64 * MEBIBYTE,) * 2,
            planner_arguments=("--lease-seconds", str(LEASE_SECONDS)),
            environment={"OMP_NUM_THREADS": "1", "PLANNER_DATABASE_URL": url},
        ) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        module = two_layers()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        deployment = client.deploy(client.create_plan(graph.id, CutMode(module_paths=("first",))).id)
        with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline:
            stream = Stream(pipeline, module)
            stream.start()
            for what in KINDS:
                before = stream.num_answers
                wait_for(lambda before=before: stream.num_answers > before, "answers")  # type: ignore[misc]
                stream.longest_gap_seconds = 0.0
                with standing_still(what, cluster, url):
                    time.sleep(STILL_SECONDS)
                # Whoever was taken for silent would end with the next look at leases.
                time.sleep(LEASE_SECONDS / 2)
                deployment_after = answered(client, deployment.id)
                assert (deployment_after.state, deployment_after.generation) == (DeploymentState.READY, 1), what
                gap_seconds = stream.longest_gap_seconds
                tell(f"{what} for {STILL_SECONDS} s: answers at most {gap_seconds:.2f} s apart")
                assert gap_seconds <= LONGEST_GAP_SECONDS or not IS_SOAK
            stream.end()


def standing_still(what: str, cluster: LocalCluster, database_url: str) -> AbstractContextManager[None]:
    if what == "database shut down":
        return postgresql().shut_down()
    if what == "database stopped":
        return postgresql().stopped(database_url.rpartition("/")[2].partition("?")[0])
    assert cluster.planner is not None
    return stopped(cluster.planner.process_id)


def answered(client: PlannerClient, deployment_id: str) -> Deployment:
    """Once the planner reaches its database again."""
    replies: list[Deployment] = []

    def is_answered() -> bool:
        try:
            replies.append(client.get_deployment(deployment_id))
        except Unavailable:
            return False
        return True

    wait_for(is_answered, "the planner to answer")
    return replies[0]
