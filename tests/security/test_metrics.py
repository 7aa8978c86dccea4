"""What both services tell a scrape, over mutual TLS, while a deployment runs."""

from __future__ import annotations

import pytest
import torch

from access.files import TlsFiles
from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment
from tests.security.scraping import scrape
from tests.waiting import wait_for

pytestmark = pytest.mark.services


def test_a_planner_tells_of_devices_plans_and_deployments(
    cluster: LocalCluster, deployment: Deployment, client: PlannerClient, user: TlsFiles
) -> None:
    assert cluster.planner is not None
    before = scrape(cluster.planner, user)
    assert before["planner_state_known", ()] == 1
    assert before["planner_devices", ("cpu",)] == 2
    assert before["planner_deployments", ("ready",)] >= 1
    assert before["planner_plan_workers", ()] == 2
    assert before["planner_calls_total", ("Deploy", "OK")] >= 1
    promised = {labels[0]: value for (name, labels), value in before.items() if name == "planner_device_promised_bytes"}
    memory = {labels[0]: value for (name, labels), value in before.items() if name == "planner_device_memory_bytes"}
    assert memory == {device.device.id: device.device.memory_bytes for device in client.list_devices()}
    assert all(promised[stage.device_id] > 0 for stage in deployment.stages)

    plan = client.get_plan(deployment.plan_id)
    client.create_plan(plan.graph_id, plan.options)
    after = scrape(cluster.planner, user)
    for name, labels in (
        ("planner_plan_operations", ("succeeded",)),
        ("planner_plan_wait_seconds_count", ()),
        ("planner_plan_busy_seconds_count", ("OK",)),
    ):
        assert after[name, labels] == before[name, labels] + 1


def test_daemons_tell_of_their_stages(
    cluster: LocalCluster, deployment: Deployment, client: PlannerClient, user: TlsFiles
) -> None:
    def of_stages(name: str) -> list[float]:
        labels = [(deployment.id, str(stage.stage)) for stage in deployment.stages]
        return [
            scrape(cluster.daemons[stage.device_id], user)[f"stage_daemon_stage_{name}_total", label]
            for stage, label in zip(deployment.stages, labels, strict=True)
        ]

    num_before = of_stages("microbatches")
    with client.pipeline(deployment.id) as pipeline:
        list(pipeline.run([torch.zeros(2, 8)] * 3))
    assert of_stages("microbatches") == [number + 3 for number in num_before]
    assert min(of_stages("busy_seconds")) > 0
    assert of_stages("received_bytes")[1] > 0
    # Bytes are counted once they are sent, when the answer may be there already.
    wait_for(lambda: of_stages("sent_bytes")[0] == of_stages("received_bytes")[1], "what is sent to be counted")
    for stage in deployment.stages:
        page = scrape(cluster.daemons[stage.device_id], user)
        assert page["stage_daemon_registered", ()] == 1
        assert page["stage_daemon_deployments", ("running",)] == 1
        assert page["stage_daemon_memory_bytes", (stage.device_id, "cpu")] > 0
        assert page["stage_daemon_worker_resident_bytes", (deployment.id,)] > 1 << 20
        assert page["stage_daemon_waiting_results", (deployment.id,)] == 0
        assert page["stage_daemon_calls_total", ("LoadStages", "OK")] >= 1
        assert ("stage_daemon_sessions", (deployment.id,)) in page
