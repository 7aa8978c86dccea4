"""kill -9 of a worker, of a daemon, of the planner: what is reported, and that a new deployment works."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState, StoredPlan
from planner.errors import StateLost
from planner.plan.options import CutMode
from tests.faults.rounds import come_through, failpoint
from tests.faults.scale import random_moments
from tests.faults.streams import stream_under_kills, streaming, wait_until_ready
from tests.waiting import WAIT_SECONDS, is_gone, wait_for
from tests.worker_processes import worker_at

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


def assert_runs(client: PlannerClient, deployment: Deployment, module: torch.nn.Module) -> None:
    with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
        for size in (1, 5, 2):
            x = torch.randn(size, 8)
            assert torch.equal(pipeline(x), module(x))


def wait_until_failed(client: PlannerClient, deployment_id: str) -> Deployment:
    events = list(client.watch(deployment_id))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].state is DeploymentState.FAILED
    failed = client.get_deployment(deployment_id)
    assert failed.failure == events[-1].failure
    return failed


def test_killed_worker(client: PlannerClient, plan: StoredPlan, module: torch.nn.Module) -> None:
    for stage in (0, 1):
        deployment = client.deploy(plan.id)
        workers = [worker_at(place.daemon_address, deployment.id) for place in deployment.stages]
        os.kill(workers[stage], signal.SIGKILL)
        failure = wait_until_failed(client, deployment.id).failure
        assert failure is not None
        assert (failure.reason, failure.stage) == ("WORKER_DIED", stage)
        assert failure.device_id == plan.stages[stage].device_ids[0]
        assert "SIGKILL" in failure.message
        wait_for(lambda workers=workers: all(map(is_gone, workers)), "the other worker to be let go of")
    deployment = client.deploy(plan.id)
    assert_runs(client, deployment, module)
    assert client.stop(deployment.id).state is DeploymentState.STOPPED


def test_a_stream_goes_on_where_a_worker_is_killed(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    stream_under_kills(cluster, client, plan.id, module, kills=("worker",), num_batches=100, moments=random_moments())


class Remembers(torch.nn.Module):
    """Each stage adds what it has seen to a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("seen_by_first", torch.zeros(8))
        self.register_buffer("seen_by_second", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) + self.seen_by_first.add_(x.sum(0))
        return self.second(y) + self.seen_by_second.add_(y.sum(0))


def test_what_stages_remembered_is_not_lost_in_silence(client: PlannerClient, cluster: LocalCluster) -> None:
    """A sequence that a recovery interrupts would go on with answers that no module gives."""
    torch.manual_seed(0)
    module, batches = Remembers().eval(), [torch.randn(1, 8) for _ in range(3)]
    exported = export(module, (batches[0],))
    plan = client.create_plan(client.submit(exported).id, CutMode(module_paths=("first",)))
    deployment = client.deploy(plan.id, recovery=RecoveryPolicy.RESTART)
    with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
        first = [module(x) for x in batches]
        assert all(torch.equal(pipeline(x), y) for x, y in zip(batches[:2], first[:2], strict=True))
        os.kill(worker_at(deployment.stages[1].daemon_address, deployment.id), signal.SIGKILL)
        with pytest.raises(StateLost, match=r"generation 2.*seen_by_first, seen_by_second is lost"):
            list(pipeline.run(batches[2:] * 100))
        assert all(torch.equal(pipeline(x), y) for x, y in zip(batches, first, strict=True))
    client.stop(deployment.id)


def test_a_stream_goes_on_where_a_daemon_is_restarted(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    deployment = client.deploy(plan.id, recovery=RecoveryPolicy.RESTART)
    daemon = cluster.daemons[cluster.device_id(1)]
    with streaming(client, deployment.id, module, width=8):
        daemon.stop(timeout_seconds=WAIT_SECONDS)
        cluster.start_daemon(1)
        wait_until_ready(client, deployment.id, 2)
    assert daemon.exit_status == 0
    client.stop(deployment.id)


def test_killed_daemon_is_found_out_by_its_neighbour(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    """Long before its lease ends."""
    deployment = client.deploy(plan.id)
    workers = [worker_at(place.daemon_address, deployment.id) for place in deployment.stages]
    device_id = plan.stages[1].device_ids[0]
    cluster.daemons[device_id].kill()
    failure = wait_until_failed(client, deployment.id).failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("DAEMON_UNREACHABLE", 1, device_id)
    wait_for(lambda: all(map(is_gone, workers)), "both workers to end")


def test_daemon_that_came_back_has_lost_its_deployments(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    deployment = client.deploy(plan.id)
    device_id = cluster.device_id(0)
    cluster.daemons[device_id].kill()
    cluster.start_daemon(0)
    failure = wait_until_failed(client, deployment.id).failure
    assert failure is not None
    assert failure.device_id == device_id
    deployment = client.deploy(plan.id)
    assert_runs(client, deployment, module)
    client.stop(deployment.id)


def test_planner_that_was_killed_finds_its_deployments_running(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    deployment = client.deploy(plan.id)
    assert cluster.planner is not None
    with client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as pipeline, torch.no_grad():
        cluster.planner.kill()
        x = torch.randn(3, 8)
        assert torch.equal(pipeline(x), module(x))
        cluster.start_planner()
        assert torch.equal(pipeline(x), module(x))
    assert client.get_deployment(deployment.id).state is DeploymentState.READY
    assert_runs(client, deployment, module)
    assert client.stop(deployment.id).state is DeploymentState.STOPPED


def test_what_was_asked_for_comes_through_where_a_planner_dies_in_a_rollout(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    assert cluster.planner is not None
    cluster.planner.stop()
    with failpoint("planner.store.deployments:append_event before crash #2"):
        cluster.start_planner()
    doomed = cluster.planner
    come_through(cluster, client, plan.graph_id, module)
    assert doomed.exit_status == -signal.SIGKILL


def test_daemon_that_is_asked_to_end_stops_its_deployments_in_order(
    client: PlannerClient, plan: StoredPlan, module: torch.nn.Module, cluster: LocalCluster
) -> None:
    deployment = client.deploy(plan.id)
    assert_runs(client, deployment, module)
    device_id = cluster.device_id(1)
    cluster.daemons[device_id].stop(timeout_seconds=WAIT_SECONDS)
    assert cluster.daemons[device_id].exit_status == 0
    events = list(client.watch(deployment.id))
    assert events[-1].state is DeploymentState.STOPPED
    assert any(f"the daemon of {device_id} is shutting down" in event.message for event in events)
