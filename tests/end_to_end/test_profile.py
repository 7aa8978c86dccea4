"""A model timed by a real daemon; the plans of it that come after are made of what was measured, and no others."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import GraphRecord, ProfileProgress, ProfileRecord
from planner.cost.sources import RateSource
from planner.cost.times_file import read_times
from planner.errors import Conflict, InvalidArgument
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, CutMode, PlanOptions, ShapeBucket
from planner.plan.update import device_updates

pytestmark = pytest.mark.services

SIZES = {"batch": 4, "sequence": 16}
WIDTH = 16


class Encoder(nn.Module):
    """Equal layers of `width`: graphs of different widths are graphs of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = norm(hidden + torch.relu(layer(hidden)))
        return torch.softmax(hidden @ hidden.transpose(1, 2), -1) @ hidden


def submit(client: PlannerClient, width: int) -> GraphRecord:
    sizes = {"tokens": {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=2, max=64)}}
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    return client.submit(export(Encoder(width).eval(), (tokens,), dynamic_shapes=sizes))


@pytest.fixture(scope="module")
def graph(cluster: LocalCluster) -> GraphRecord:
    with PlannerClient(cluster.planner_address) as client:
        return submit(client, WIDTH)


@pytest.fixture(scope="module")
def progress() -> list[ProfileProgress]:
    return []


@pytest.fixture(scope="module")
def profile(cluster: LocalCluster, graph: GraphRecord, progress: list[ProfileProgress]) -> ProfileRecord:
    """Of every node, on the first daemon."""
    with PlannerClient(cluster.planner_address) as client:
        (record,) = client.profile_graph(
            graph.id,
            device_ids=[cluster.device_id(0)],
            symbol_values=SIZES,
            repetitions=5,
            on_progress=progress.append,
        )
    return record


def options(**symbol_values: int) -> PlanOptions:
    return PlanOptions(mode=BalancedMode(num_stages=2), symbol_values=tuple(sorted(symbol_values.items())))


def test_every_node_of_a_model_is_measured(
    client: PlannerClient, graph: GraphRecord, profile: ProfileRecord, progress: list[ProfileProgress]
) -> None:
    stored = client.get_profile(profile.id)
    assert stored.unmeasured == ()
    assert (profile.num_measured, profile.num_nodes) == (graph.num_nodes, graph.num_nodes)
    assert dict(profile.symbol_values) == SIZES
    assert all(seconds > 0 for _, seconds in stored.times.seconds)
    # Told on while the whole graph is run.
    done = dict.fromkeys(step.num_done for step in progress)
    assert list(done) == list(range(1, progress[-1].num_distinct + 1))
    # Layers repeat each other: that is what makes it quick.
    assert progress[-1].num_distinct < graph.num_nodes
    assert profile.calibration is not None
    assert profile.calibration.rates.node_seconds > 0


def test_plan_is_made_of_measured_times(client: PlannerClient, graph: GraphRecord, profile: ProfileRecord) -> None:
    plan = client.create_plan(graph.id, options(**SIZES))
    (source,) = plan.cost_sources
    assert (source.num_measured, source.num_nodes, source.scaled) == (graph.num_nodes, graph.num_nodes, False)
    assert math.isclose(sum(stage.compute_seconds for stage in plan.stages), profile.total_seconds)
    assert profile.delivery is not None
    assert [stage.delivery_seconds for stage in plan.stages] == [
        profile.delivery.input_seconds,
        profile.delivery.output_seconds,
    ]
    assert all(stage.delivery_seconds > 0 for stage in plan.stages)


def test_other_sizes_are_scaled_from_those_measured(
    client: PlannerClient, graph: GraphRecord, profile: ProfileRecord
) -> None:
    plan = client.create_plan(graph.id, options(batch=64, sequence=64))
    assert plan.cost_sources[0].scaled
    assert sum(stage.compute_seconds for stage in plan.stages) > profile.total_seconds


def test_buckets_mix_sizes(client: PlannerClient, graph: GraphRecord, profile: ProfileRecord) -> None:
    buckets = (
        ShapeBucket(symbol_values=tuple(SIZES.items()), weight=3.0),
        ShapeBucket(symbol_values=(("batch", 1), ("sequence", 64))),
    )
    plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=2), buckets=buckets))
    assert plan.cost_sources[0].scaled
    assert sum(stage.compute_seconds for stage in plan.stages) > 0.75 * profile.total_seconds


def test_a_graph_that_was_not_measured_keeps_its_plans_unless_they_ask(client: PlannerClient) -> None:
    other, measured = submit(client, WIDTH + 1), submit(client, WIDTH + 2)
    before = client.create_plan(other.id, options(**SIZES))
    (record,) = client.profile_graph(measured.id, device_kinds=["cpu"], repetitions=1)
    after = client.create_plan(other.id, options(**SIZES))
    assert replace(after, id=before.id, created_at=before.created_at) == before
    assert [(source.num_measured, source.rates) for source in after.cost_sources] == [(0, RateSource.ROOFLINE)]
    by_rates = client.create_plan(other.id, replace(options(**SIZES), rates_from_profiles=(record.id,)))
    assert [(source.rates, source.profile_ids) for source in by_rates.cost_sources] == [
        (RateSource.CALIBRATED, (record.id,))
    ]


def test_a_plan_for_training_is_made_of_measured_backward_passes(client: PlannerClient) -> None:
    module, rows = Encoder(WIDTH + 4).train(), torch.zeros(2, 8, dtype=torch.int64)
    graph = client.submit(export(module, (rows,)))
    training = PlanOptions(mode=BalancedMode(num_stages=2), training=Training(microbatches=2))
    (forward,) = client.profile_graph(graph.id, device_kinds=["cpu"], repetitions=1)
    plan = client.create_plan(graph.id, training)
    assert plan.cost_sources[0].num_backward == 0
    assert all(math.isclose(stage.backward_seconds, 2 * stage.compute_seconds) for stage in plan.stages[1:])
    (both,) = client.profile_graph(graph.id, device_kinds=["cpu"], repetitions=1, backward=True)
    assert both.id != forward.id
    times = client.get_profile(both.id).times
    assert 0 < len(times.backward_seconds) <= graph.num_nodes
    plan = client.create_plan(graph.id, training)
    assert plan.cost_sources[0].num_backward == len(times.backward_seconds)
    assert (forward.update, both.update) == (None, times.update)
    assert times.update is not None
    assert min(times.update.norm_seconds, times.update.optimizer_seconds) > 0
    assert plan.cost_sources[0].norm_bytes_per_second is not None
    norms = sum(seconds.norms for seconds in device_updates(plan).values())
    assert math.isclose(norms, times.update.norm_seconds)
    saved = dict(times.saved)
    assert saved.keys() == dict(times.backward_seconds).keys()
    assert any(one.inputs for one in saved.values())
    assert any(one.within_bytes for one in saved.values())
    halves = {node: (inputs, weights) for node, inputs, weights in times.split_seconds}
    assert halves.keys() == dict(times.backward_seconds).keys()
    assert any(inputs and weights for inputs, weights in halves.values())
    # Cut by name: a last stage of a norm alone, as measured times may have it, has no pass for weights to split off.
    split = client.create_plan(
        graph.id,
        PlanOptions(
            mode=CutMode(module_paths=("norms.0",)),
            training=Training(schedule=PipelineSchedule.ZERO_BUBBLE, microbatches=2),
        ),
    )
    assert 0.0 < split.stages[1].weight_share < 1.0 == split.stages[0].weight_share
    # The first stage gives no gradient back, and so runs its backward pass whole.
    whole = dict(times.backward_seconds)
    for stage, seconds_of in zip(
        split.stages, (whole, {node: sum(pair) for node, pair in halves.items()}), strict=True
    ):
        own = sum(seconds_of.get(node, 0.0) for start, end in stage.node_ranges for node in range(start, end))
        assert stage.backward_seconds >= own * (1 - 1e-9)
    # The look-up of words has no backward pass into what it reads, but one into its table.
    measured = sum(seconds for _, seconds in times.backward_seconds)
    planned_seconds = sum(stage.backward_seconds for stage in plan.stages)
    forward_only = {node for node, _ in times.seconds} - {node for node, _ in times.backward_seconds}
    estimated = 2 * sum(seconds for node, seconds in times.seconds if node in forward_only)
    assert measured <= planned_seconds * (1 + 1e-9) <= (measured + estimated) * (1 + 2e-9)


def test_device_in_use_is_left_alone(client: PlannerClient, graph: GraphRecord, profile: ProfileRecord) -> None:
    plan = client.create_plan(graph.id, options(**SIZES))
    deployment = client.deploy(plan.id)
    try:
        with pytest.raises(Conflict, match=deployment.id):
            client.profile_graph(graph.id, device_ids=[plan.stages[0].device_ids[0]])
    finally:
        client.stop(deployment.id)


def test_sizes_that_cannot_be_are_refused_by_the_daemon(client: PlannerClient, graph: GraphRecord) -> None:
    with pytest.raises(InvalidArgument, match="batch"):
        client.profile_graph(graph.id, symbol_values={"batch": 10**6})


def test_command_line(
    cluster: LocalCluster,
    client: PlannerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLANNER_SERVER", cluster.planner_address)
    graph = submit(client, WIDTH + 3)

    def cli(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        assert ended.value.code == 0, captured.err
        return captured.out

    ran = ("profile", "run", graph.id[:12], "--kind", "cpu", "--symbol", "batch=1", "--repetitions", "1", "-o", "json")
    ran += ("--backward",)
    (record,) = json.loads(cli(*ran))
    assert record["num_measured"] == graph.num_nodes
    plan = client.create_plan(graph.id, options(**SIZES)).id
    num_backward = len(client.get_profile(record["id"]).times.backward_seconds)
    line = f"of {graph.num_nodes} nodes, {num_backward} of them backward too ({record['id']})"
    assert line in " ".join(cli("plan", "get", plan).split())
    file = tmp_path / "times.json"
    cli("profile", "export", record["id"], str(file))
    (times,) = read_times(file.read_bytes())
    assert len(times.seconds) == graph.num_nodes
    file.write_text(json.dumps({**json.loads(file.read_text()), "device_kind": "abacus", "source": "by hand"}))
    (imported,) = json.loads(cli("profile", "import", str(file), "-o", "json"))
    assert imported["device_kind"] == "abacus"
    assert "by hand" in cli("profile", "list", "--kind", "abacus")
    assert json.loads(cli("profile", "delete", imported["id"], "-o", "json"))["deleted"] is True
