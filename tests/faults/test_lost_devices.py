"""Devices lost for good under a stream: it goes on on what is left, and says so where nothing fits any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import DeploymentState
from planner.plan.options import CutMode, SingleMode
from tests.faults.history import History
from tests.faults.scale import IS_SOAK
from tests.faults.streams import streaming, wait_until_planned_ahead, wait_until_ready
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
MEBIBYTE = 2**20
NUM_ROUNDS = 3


class ThreeLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(512, 512)
        self.second = torch.nn.Linear(512, 512)
        self.third = torch.nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


@contextmanager
def three_stages(
    folder: Path, memory_bytes: int, recovery_seconds: float = WAIT_SECONDS
) -> Iterator[tuple[LocalCluster, PlannerClient, str, ThreeLayers]]:
    """(cluster of three devices, client, plan of a layer on each, the module)."""
    environment = {"OMP_NUM_THREADS": "1", "PLANNER_RECOVERY_SECONDS": str(recovery_seconds)}
    torch.manual_seed(0)
    module = ThreeLayers().eval()
    with (
        LocalCluster(data_dir=folder, memory_bytes=(memory_bytes,) * 3, environment=environment) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        graph = client.submit(export(module, (torch.zeros(2, 512),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, CutMode(module_paths=("first", "second")))
        assert len(plan.stages) == 3
        yield cluster, client, plan.id, module


def test_a_daemon_that_holds_a_deployment_alone_is_missed_at_once(tmp_path: Path) -> None:
    """No neighbour sees its end, the next heartbeat is due in twenty minutes, and its lease lasts an hour."""
    environment = {"OMP_NUM_THREADS": "1", "PLANNER_LEASE_SECONDS": "3600"}
    module = two_layers()
    with (
        LocalCluster(data_dir=tmp_path, memory_bytes=(64 * MEBIBYTE,) * 2, environment=environment) as cluster,
        PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client,
    ):
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        plan = client.create_plan(graph.id, SingleMode())
        deployment = client.deploy(plan.id, recovery=RecoveryPolicy.REPLAN)
        [place] = deployment.stages
        with streaming(client, deployment.id, module, width=8):
            cluster.daemons[place.device_id].kill()
            wait_until_ready(client, deployment.id, 2)
        assert place.device_id not in {stage.device_id for stage in client.get_deployment(deployment.id).stages}
        client.stop(deployment.id)


def test_a_stream_goes_on_by_the_plan_that_was_made_ahead(tmp_path: Path) -> None:
    """Two layers fit on a device and three do not: with the second loss nothing fits."""
    with three_stages(tmp_path, 5 * MEBIBYTE // 2, recovery_seconds=1) as (cluster, client, plan_id, module):
        deployment = client.deploy(plan_id, recovery=RecoveryPolicy.REPLAN)
        wait_until_planned_ahead(tmp_path, deployment)
        assert [summary.id for summary in client.list_plans()] == [plan_id]
        lost = deployment.stages[1].device_id
        history = History()
        with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():

            def batches() -> Iterator[torch.Tensor]:
                for number in range(40):
                    if number == 20:
                        cluster.daemons[lost].kill()
                    history.asked.append(torch.randn(1 + number % 5, 512))
                    yield history.asked[-1]

            for answer in pipeline.run(batches()):
                history.answered.append((len(history.answered), answer))
            assert history.faults(lambda x, y: torch.equal(module(x), y)) == []
        after = client.get_deployment(deployment.id)
        assert (after.generation, after.asked_plan_id) == (2, plan_id)
        assert lost not in {place.device_id for place in after.stages}
        assert after.plan_reason.startswith(f"without {lost}, planned ahead: ")
        assert {summary.id for summary in client.list_plans()} == {plan_id, after.plan_id}
        cluster.daemons[after.stages[0].device_id].kill()
        events = list(client.watch(deployment.id))
        assert events[-1].state is DeploymentState.FAILED
        failure = events[-1].failure
        assert failure is not None
        assert (failure.reason, "nothing fits on" in failure.message) == ("INFEASIBLE", True), failure
        assert "MiB" in failure.message


@pytest.mark.skipif(not IS_SOAK, reason="make soak; tests/stage_daemon/control/test_deaths.py has a little of it")
@pytest.mark.parametrize("recovery", [RecoveryPolicy.REPLAN, RecoveryPolicy.RESTART])
def test_a_stream_notices_nothing_of_daemons_that_are_restarted_in_turn(
    tmp_path: Path, recovery: RecoveryPolicy
) -> None:
    with three_stages(tmp_path, 64 * MEBIBYTE) as (cluster, client, plan_id, module):
        deployment = client.deploy(plan_id, recovery=recovery)
        with streaming(client, deployment.id, module, width=512):
            for _ in range(NUM_ROUNDS):
                for index in range(3):
                    before = client.get_deployment(deployment.id)
                    daemon = cluster.daemons[cluster.device_id(index)]
                    daemon.stop(timeout_seconds=WAIT_SECONDS)
                    assert daemon.exit_status == 0
                    cluster.start_daemon(index)
                    has_moved = any(place.device_id == cluster.device_id(index) for place in before.stages)
                    wait_until_ready(client, deployment.id, before.generation + has_moved)
        assert client.get_deployment(deployment.id).generation > NUM_ROUNDS
        client.stop(deployment.id)
