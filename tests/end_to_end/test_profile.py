"""A real model timed by a real daemon; the plans that come after are made of what it measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import GraphRecord, ProfileProgress, ProfileRecord
from planner.cost.sources import RateSource
from planner.cost.times_file import read_times
from planner.errors import Conflict, InvalidArgument
from planner.plan.options import BalancedMode, PlanOptions, ShapeBucket
from tests.builders.bert import bert

SIZES = {"batch": 4, "sequence": 16}


@pytest.fixture(scope="module")
def graph(cluster: LocalCluster) -> GraphRecord:
    case = bert()
    with PlannerClient(cluster.planner_address) as client:
        return client.submit(export(case.module, kwargs=dict(case.kwargs), dynamic_shapes=case.dynamic_shapes))


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
    found = client.get_profile(profile.id)
    assert found.unmeasured == ()
    assert (profile.num_measured, profile.num_nodes) == (graph.num_nodes, graph.num_nodes)
    assert dict(profile.symbol_values) == SIZES
    assert all(seconds > 0 for _, seconds in found.times.seconds)
    assert [step.num_done for step in progress] == list(range(1, progress[-1].num_distinct + 1))
    # Layers repeat each other: that is what makes it quick.
    assert progress[-1].num_distinct < graph.num_nodes
    assert profile.calibration is not None
    assert profile.calibration.rates.node_seconds > 0


def test_plan_is_made_of_measured_times(client: PlannerClient, graph: GraphRecord, profile: ProfileRecord) -> None:
    plan = client.create_plan(graph.id, options(**SIZES))
    (source,) = plan.cost_sources
    assert (source.num_measured, source.num_nodes, source.scaled) == (graph.num_nodes, graph.num_nodes, False)
    assert math.isclose(sum(stage.compute_seconds for stage in plan.stages), profile.total_seconds)


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


def test_rates_serve_graphs_that_were_not_measured(client: PlannerClient, profile: ProfileRecord) -> None:
    other = client.submit(export(torch.nn.Linear(7, 3).eval(), (torch.zeros(2, 7),)))
    plan = client.create_plan(other.id, BalancedMode())
    assert [(source.num_measured, source.rates) for source in plan.cost_sources] == [(0, RateSource.CALIBRATED)]


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
    graph: GraphRecord,
    profile: ProfileRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLANNER_SERVER", cluster.planner_address)

    def cli(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        assert ended.value.code == 0, captured.err
        return captured.out

    file = tmp_path / "times.json"
    cli("profile", "export", profile.id, str(file))
    (times,) = read_times(file.read_bytes())
    assert len(times.seconds) == graph.num_nodes
    file.write_text(json.dumps({**json.loads(file.read_text()), "device_kind": "abacus", "source": "by hand"}))
    (imported,) = json.loads(cli("profile", "import", str(file), "-o", "json"))
    assert imported["device_kind"] == "abacus"
    assert "by hand" in cli("profile", "list", "--kind", "abacus")
    assert json.loads(cli("profile", "delete", imported["id"], "-o", "json"))["deleted"] is True
    ran = json.loads(
        cli("profile", "run", graph.id[:12], "--kind", "cpu", "--symbol", "batch=1", "--repetitions", "1", "-o", "json")
    )
    assert [record["num_measured"] for record in ran] == [graph.num_nodes]
    plan = client_plan(cluster, graph)
    assert f"measured {graph.num_nodes} of {graph.num_nodes} nodes" in cli("plan", "get", plan)


def client_plan(cluster: LocalCluster, graph: GraphRecord) -> str:
    with PlannerClient(cluster.planner_address) as client:
        return client.create_plan(graph.id, options(**SIZES)).id
