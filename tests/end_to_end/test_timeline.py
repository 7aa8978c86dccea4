"""What daemons measured, on one clock, beside the prediction: by the SDK and by the command line."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import nn

from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import RecoveryPolicy
from planner.client.timelines import DeploymentTimeline
from planner.errors import Conflict
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from planner.schedule.measured import Span
from planner.schedule.timeline import Activity
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.stage_daemon.runtime.training.modules import Tied, tokens
from tests.worker_processes import worker_at

pytestmark = [pytest.mark.services, pytest.mark.slow]

NUM_BATCHES = 12


def passes(timeline: DeploymentTimeline, activity: Activity) -> list[Span]:
    return [span for thread in timeline.measured.threads for span in thread.spans if span.activity is activity]


def command(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--server", cluster.planner_address])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out


def test_microbatches_through_two_stages(
    cluster: LocalCluster, client: PlannerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, sample = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).eval(), torch.ones(2, 16)
    plan = client.create_plan(client.submit(export(module, (sample,))).id, BalancedMode(num_stages=2))
    deployment = client.deploy(plan.id, num_threads=2)
    assert (deployment.num_threads, [stage.num_threads for stage in deployment.stages]) == (2, [2, 2])
    with client.pipeline(deployment.id) as pipeline:
        list(pipeline.run([sample] * NUM_BATCHES))
    timeline = client.deployment_timeline(deployment.id)
    printed = command(cluster, capsys, "deployment", "top", deployment.id, "--once")
    document = json.loads(command(cluster, capsys, "deployment", "top", deployment.id, "--once", "-o", "json"))
    file = tmp_path / "trace.json"
    command(cluster, capsys, "deployment", "trace", deployment.id, "--out", str(file))
    with grpc.insecure_channel(deployment.stages[0].daemon_address) as channel:
        request = stage_daemon_pb2.GetTimelineRequest(deployment_id=deployment.id)
        with pytest.raises(grpc.RpcError, match="ticket"):
            stage_daemon_pb2_grpc.StageDaemonServiceStub(channel).GetTimeline(request)
    with closing(client.timelines(deployment.id, every_seconds=0.05)) as readings:
        once, again = next(readings), next(readings)
        assert once.measured.read_at_seconds < again.measured.read_at_seconds
        # Since the reading before, both stages have waited for microbatches.
        waiting = again.summary(once.measured.read_at_seconds)
        assert all(0 < stage.receive_wait_share <= 1.001 for stage in waiting.stages)
        assert waiting.bubble_share is None
        client.stop(deployment.id)
        assert list(readings) == []
    with pytest.raises(Conflict, match="is stopped, needs to be ready"):
        client.deployment_timeline(deployment.id)

    # The daemons are on this host: nothing is estimated.
    assert timeline.measured.error_seconds == 0
    assert [times.count for thread in timeline.measured.threads for times in thread.times] == [NUM_BATCHES] * 6
    for thread in timeline.measured.threads:
        ends = [span.end_seconds for span in thread.spans]
        assert ends == sorted(ends)
        assert thread.under_way is not None
        assert thread.under_way.activity.is_receive
        assert (thread.under_way.run, thread.under_way.microbatch) == (NUM_BATCHES + 1,) * 2
        assert ends[-1] <= timeline.measured.read_at_seconds
    first, second = ([span for span in passes(timeline, Activity.FORWARD) if span.stage == stage] for stage in (0, 1))
    for early, late in zip(first, second, strict=True):
        assert early.microbatch == late.microbatch
        assert early.end_seconds <= late.start_seconds
    summary = timeline.summary()
    assert summary.bubble_share is not None
    assert 0 < summary.bubble_share < 1
    assert 0 <= timeline.predicted_bubble_share < 1
    assert [(stage.stage, stage.device_id) for stage in summary.stages] == [
        (placement.stage, placement.device_id) for placement in deployment.stages
    ]
    for stage in summary.stages:
        shares = stage.busy_share, stage.receive_wait_share, stage.send_wait_share
        assert all(share > 0 for share in shares)
        assert sum(shares) <= 1.001

    assert all(placement.device_id in printed for placement in deployment.stages)
    assert "predicted" in printed
    assert document["deployment"] == deployment.id
    assert [stage["stage"] for stage in document["stages"]] == [0, 1]
    assert [entry["args"]["name"] for entry in read_entries(file) if entry["name"] == "process_name"] == [
        *(f"measured: {placement.device_id}" for placement in deployment.stages),
        *(f"predicted: {placement.device_id}" for placement in deployment.stages),
        "predicted: links",
    ]


def test_passes_of_training_steps(
    cluster: LocalCluster, client: PlannerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(schedule=PipelineSchedule.ZERO_BUBBLE, microbatches=4)
    graph = client.submit(export(Tied().train(), tokens(4, 0)))
    plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=2), training=training))
    deployment = client.deploy(plan.id)
    with client.train(deployment.id, "sgd:lr=0.1") as trainer:
        results = [trainer.step_microbatches([tokens(4, seed)] * 4) for seed in range(3)]
    timeline = client.deployment_timeline(deployment.id)
    file = tmp_path / "trace.json"
    command(cluster, capsys, "deployment", "trace", deployment.id, "--out", str(file))
    client.stop(deployment.id)

    for activity, per_step in (
        (Activity.FORWARD, 8),
        (Activity.BACKWARD_INPUT, 8),
        (Activity.BACKWARD_WEIGHT, 8),
        (Activity.REDUCE, 2),
        (Activity.AGREE, 2),
        (Activity.OPTIMIZER_STEP, 2),
    ):
        spans = passes(timeline, activity)
        assert [sum(span.run == step for span in spans) for step in (1, 2, 3)] == [per_step] * 3
    for step in (1, 2, 3):
        last_backward = max(span.end_seconds for span in passes(timeline, Activity.BACKWARD_WEIGHT) if span.run == step)
        assert all(
            span.start_seconds >= last_backward
            for span in passes(timeline, Activity.OPTIMIZER_STEP)
            if span.run == step
        )
    # What steps' answers say, from the same readings of the clock: of all of them, since one device may begin late.
    begun = min(span.start_seconds for thread in timeline.measured.threads for span in thread.spans)
    share = timeline.summary(begun).bubble_share
    assert share is not None
    assert 0 < share <= max(result.bubble_share for result in results) + 1e-9
    for stage in timeline.summary().stages:
        assert stage.busy_share + stage.receive_wait_share + stage.send_wait_share + stage.reduce_share <= 1.001
    steps = [entry for entry in read_entries(file) if entry.get("cat") == "step"]
    assert sorted(entry["name"] for entry in steps) == sorted(["step 1", "step 2", "step 3"] * 2)
    for one, next_one in pairwise(entry for entry in steps if entry["pid"] == 0):
        assert one["ts"] + one["dur"] <= next_one["ts"]


def test_readings_go_on_in_the_next_generation(client: PlannerClient) -> None:
    module, sample = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)).eval(), torch.ones(2, 16)
    plan = client.create_plan(client.submit(export(module, (sample,))).id, BalancedMode(num_stages=2))
    deployment = client.deploy(plan.id, recovery=RecoveryPolicy.RESTART)
    with closing(client.timelines(deployment.id, every_seconds=0.05)) as readings:
        assert next(readings).generation == 1
        os.kill(worker_at(deployment.stages[1].daemon_address, deployment.id), signal.SIGKILL)
        assert next(timeline for timeline in readings if timeline.generation == 2).measured.threads
    client.stop(deployment.id)


def read_entries(file: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return entries
