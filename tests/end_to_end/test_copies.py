"""Plans whose stages have copies, deployed for inference: bitwise the unsplit module, in order, through losses too."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from planner.client import PlannerClient, RecoveryPolicy, export
from planner.client.batches import Batch
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState, StoredPlan
from planner.errors import DeploymentFailed, OptionsError
from planner.plan.options import BalancedMode, PlanOptions, Routing
from tests.builders.copied_plans import plan_with_copies
from tests.builders.exported import exported
from tests.builders.registry import FAMILIES
from tests.end_to_end.test_pipeline_equality import assert_same
from tests.end_to_end.test_timeline import command
from tests.faults.streams import streaming, wait_until_planned_ahead, wait_until_ready
from tests.nightly import nightly
from tests.waiting import WAIT_SECONDS, wait_for
from tests.worker_processes import worker_at

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

MEBIBYTE = 2**20
WIDTH = 64
SHAPES = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
NUM_DEVICES = 6


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A planner and six daemons, some of which the tests kill and start again."""
    with LocalCluster(
        data_dir=tmp_path_factory.mktemp("wide"),
        memory_bytes=(512 * MEBIBYTE,) * NUM_DEVICES,
        environment={"OMP_NUM_THREADS": "1"},
    ) as running:
        yield running


@pytest.fixture
def client(wide: LocalCluster) -> Iterator[PlannerClient]:
    with PlannerClient(wide.planner_address, timeout_seconds=WAIT_SECONDS) as connected:
        yield connected


class FourLayers(torch.nn.Module):
    """The first layer's result is read by the last one too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.layers[0](x))
        third = torch.relu(self.layers[2](torch.relu(self.layers[1](first))))
        return self.layers[3](third) + first


@contextmanager
def deployed(
    client: PlannerClient, plan: StoredPlan, recovery: RecoveryPolicy = RecoveryPolicy.MANUAL
) -> Iterator[Deployment]:
    deployment = client.deploy(plan.id, recovery=recovery)
    try:
        yield deployment
    finally:
        client.stop(deployment.id)


def four_layers(client: PlannerClient, *counts: int) -> tuple[FourLayers, StoredPlan]:
    module = FourLayers().eval()
    graph = client.submit(export(module, (torch.zeros(2, WIDTH),), dynamic_shapes=SHAPES))
    return module, plan_with_copies(client, graph, counts)


@pytest.mark.parametrize(
    ("family", "counts", "routing"),
    [
        ("unet", (2, 1, 3), Routing.RELAY),
        *nightly([("t5", (2, 1, 3), Routing.RELAY), ("unet", (3, 2), Routing.DIRECT)]),
    ],
)
def test_equal_the_unsplit_module(
    client: PlannerClient, family: str, counts: tuple[int, ...], routing: Routing
) -> None:
    case = FAMILIES[family]()
    plan = plan_with_copies(client, client.submit(exported(family)), counts, routing=routing)
    batches = [Batch(case.args, case.kwargs), *(Batch(one.args, one.kwargs) for one in case.other_batches)]
    with deployed(client, plan) as deployment, client.pipeline(deployment.id) as pipeline:
        assert_same(case.module, pipeline, list(itertools.islice(itertools.cycle(batches), 7)))


def test_several_streams_at_once_each_get_theirs_in_order(client: PlannerClient) -> None:
    module, plan = four_layers(client, 2, 3)
    wrong: list[object] = []

    def stream(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        batches = [torch.randn(1 + (seed + at) % 5, WIDTH, generator=generator) for at in range(7 * seed)]
        with torch.no_grad():
            for x, output in zip(batches, pipeline.run(iter(batches)), strict=True):
                if not torch.equal(output, module(x)):
                    wrong.append((seed, x))

    with deployed(client, plan) as deployment, client.pipeline(deployment.id) as pipeline:
        threads = [threading.Thread(target=stream, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
    assert not wrong


def test_what_is_printed_of_copies(
    client: PlannerClient, wide: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    _, plan = four_layers(client, 1, 2, 1)
    first, one, other, last = (device_id for stage in plan.stages for device_id in stage.device_ids)
    assert f"stage 1 on {one}, {other}, in turn: " in command(wide, capsys, "plan", "explain", plan.id)
    with deployed(client, plan) as deployment:
        with client.pipeline(deployment.id) as pipeline:
            list(pipeline.run([torch.randn(2, WIDTH) for _ in range(8)]))
        rows = [("0", "-", first), ("1", "0", one), ("1", "1", other), ("2", "-", last)]
        printed = command(wide, capsys, "deployment", "get", deployment.id)
        assert [tuple(line.split()[:3]) for line in printed.splitlines() if "local/cpu" in line] == rows
        top = json.loads(command(wide, capsys, "deployment", "top", deployment.id, "--once", "-o", "json"))
        assert [(str(row["stage"]), row["device_id"]) for row in top["stages"]] == [(row[0], row[2]) for row in rows]
        assert top["deployment"] == deployment.id


def test_who_only_hands_on_for_copies_is_no_part_of_their_shares(client: PlannerClient) -> None:
    _, plan = four_layers(client, 2, 2)
    with deployed(client, plan) as deployment:
        with client.pipeline(deployment.id) as pipeline:
            list(pipeline.run([torch.randn(2, WIDTH) for _ in range(8)]))
        timeline = client.deployment_timeline(deployment.id)
    assert sum(thread.hands_on for thread in timeline.measured.threads) == 2
    summary = timeline.summary()
    assert len(summary.stages) == 4
    for stage in summary.stages:
        assert stage.busy_share + stage.receive_wait_share + stage.send_wait_share < 1 + 1e-9
    tracks = {entry["args"]["name"] for entry in timeline.trace()["traceEvents"] if entry["name"] == "thread_name"}
    assert {f"between clients and copies of stage {stage}" for stage in (0, 1)} <= tracks


def test_a_stage_that_writes_what_it_reads_is_not_copied(client: PlannerClient) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)
            self.register_buffer("total", torch.zeros(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.sum(0))
            return self.layer(x) + self.total

    graph = client.submit(export(Counting().eval(), (torch.zeros(2, WIDTH),), dynamic_shapes=SHAPES))
    options = PlanOptions(mode=BalancedMode(num_stages=1), saturate_host=True)
    with pytest.raises(OptionsError, match=r"stage 0 has copies on .* writes 'total'.*what it writes as an input"):
        client.create_plan(graph.id, options)


def test_a_lost_copy_is_named(client: PlannerClient, wide: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    _, plan = four_layers(client, 1, 2, 1)
    deployment = client.deploy(plan.id)
    kill_worker(deployment, plan.stages[1].device_ids[1])
    wait_for(lambda: client.get_deployment(deployment.id).state is DeploymentState.FAILED)
    failure = client.get_deployment(deployment.id).failure
    assert failure is not None
    assert (failure.stage, failure.device_id) == (1, plan.stages[1].device_ids[1])
    assert failure.metadata["copy"] == "1"
    assert f"(SIGKILL) in copy 1 of stage 1 on device {failure.device_id}" in " ".join(
        command(wide, capsys, "deployment", "get", deployment.id).split()
    )
    with pytest.raises(DeploymentFailed, match=r"in copy 1 of stage 1 on device local/cpu\d"):
        client.pipeline(deployment.id)


@pytest.mark.parametrize(
    ("stage", "copy", "recovery"),
    [
        (1, 1, RecoveryPolicy.RESTART),
        *nightly([(0, 0, RecoveryPolicy.RESTART), (2, 1, RecoveryPolicy.REPLAN)]),
    ],
)
def test_a_stream_goes_on_where_a_copy_is_killed(
    client: PlannerClient, stage: int, copy: int, recovery: RecoveryPolicy
) -> None:
    module, plan = four_layers(client, 1, 2, 3)
    with deployed(client, plan, recovery) as deployment:
        with streaming(client, deployment.id, module, width=WIDTH):
            kill_worker(deployment, plan.stages[stage].device_ids[copy])
            wait_until_ready(client, deployment.id, 2)
        after = client.get_deployment(deployment.id)
        assert [(one.stage, one.device_id) for one in after.stages] == [
            (one.stage, one.device_id) for one in deployment.stages
        ]


def test_a_stream_goes_on_without_a_copy_whose_device_is_lost(client: PlannerClient, wide: LocalCluster) -> None:
    module, plan = four_layers(client, 1, 2, 3)
    lost = plan.stages[2].device_ids[1]
    index = next(index for index in range(NUM_DEVICES) if wide.device_id(index) == lost)
    with deployed(client, plan, RecoveryPolicy.REPLAN) as deployment:
        wait_until_planned_ahead(wide.data_dir, deployment)
        try:
            with streaming(client, deployment.id, module, width=WIDTH):
                wide.daemons[lost].kill()
                wait_until_ready(client, deployment.id, 2)
        finally:
            wide.start_daemon(index)
        after = client.get_deployment(deployment.id)
    assert lost not in {one.device_id for one in after.stages}
    assert after.plan_reason.startswith(f"without {lost}")


def kill_worker(deployment: Deployment, device_id: str) -> None:
    [address] = {one.daemon_address for one in deployment.stages if one.device_id == device_id}
    os.kill(worker_at(address, deployment.id), signal.SIGKILL)
