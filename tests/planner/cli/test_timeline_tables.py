"""A measured timeline as a table, as a document, and redrawn."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
import yaml

from planner.cli.output import OutputFormat
from planner.cli.timeline_tables import live_table, timeline_document
from planner.client.records import StoredPlan
from planner.client.timelines import DeploymentTimeline
from planner.cost.inventory import Inventory
from planner.plan.options import BalancedMode, PlanOptions
from planner.schedule.measured import Measured, StageSummary, Summary
from planner.schedule.timeline import DeviceTime, Simulation

TIMELINE = DeploymentTimeline(
    deployment_id="dep-1",
    generation=3,
    plan=StoredPlan(
        id="plan-1",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        graph_id="0" * 64,
        graph_name="",
        num_nodes=1,
        options=PlanOptions(mode=BalancedMode()),
        inventory=Inventory(devices=()),
        stages=(),
        edges=(),
        tie_groups=(),
        bottleneck_seconds=1.0,
        latency_seconds=1.0,
        lower_bound_seconds=None,
        symbol_values=(),
    ),
    measured=Measured(read_at_seconds=9.0, error_seconds=0.00025, threads=()),
    # A result every second, of which the device computes 0.75.
    predicted=Simulation(
        microbatches=4,
        makespan_seconds=5.0,
        bubble_share=0.0,
        devices=(DeviceTime(device_id="a", busy_seconds=3.0, communication_seconds=0.0, waiting_seconds=2.0),),
        links=(),
        output_seconds=(2.0, 3.0, 4.0, 5.0),
        events=(),
        transfers=(),
    ),
)
SUMMARY = Summary(
    start_seconds=1.0,
    end_seconds=9.0,
    bubble_share=0.5,
    stages=(
        StageSummary(
            stage=1,
            device_id="node/cpu0",
            busy_share=0.5,
            receive_wait_share=0.25,
            send_wait_share=0.125,
            reduce_share=0.0,
            microbatches_per_second=12.25,
            p50_seconds=0.04,
            p95_seconds=0.08,
        ),
    ),
)
NOTHING = Summary(start_seconds=1.0, end_seconds=9.0, bubble_share=None, stages=())


def test_a_table_is_written_for_each_reading_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with live_table(OutputFormat.TABLE) as show:
        show(TIMELINE, SUMMARY)
        show(TIMELINE, NOTHING)
    text = capsys.readouterr().out
    words = [line.split() for line in text.splitlines()]
    assert ["1", "node/cpu0", "50.0%", "25.0%", "12.5%", "0.0%", "12.2", "40", "ms", "80", "ms"] in words
    assert "bubble: 50.0% measured in 8 s, 25.0% predicted" in text
    assert "bubble: nothing has run in 8 s, 25.0% predicted" in text
    assert text.count("clocks of other hosts are known to 250 µs") == 2
    assert "\x1b" not in text


def test_json_is_an_object_per_line_and_yaml_a_list_that_grows(capsys: pytest.CaptureFixture[str]) -> None:
    with live_table(OutputFormat.JSON) as show:
        show(TIMELINE, SUMMARY)
        show(TIMELINE, NOTHING)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["stages"][0]["busy_share"] == 0.5
    assert {key: first[key] for key in first if key != "stages"} == {
        "deployment": "dep-1",
        "generation": 3,
        "seconds": 8.0,
        "bubble_share": 0.5,
        "predicted_bubble_share": 0.25,
        "clock_error_seconds": 0.00025,
    }
    assert (second["bubble_share"], second["stages"]) == (None, [])
    with live_table(OutputFormat.YAML) as show:
        show(TIMELINE, SUMMARY)
        show(TIMELINE, NOTHING)
    assert [one["bubble_share"] for one in yaml.safe_load(capsys.readouterr().out)] == [0.5, None]


def test_a_terminal_keeps_one_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with live_table(OutputFormat.TABLE) as show:
        show(TIMELINE, NOTHING)
        show(TIMELINE, SUMMARY)
    text = capsys.readouterr().out
    # The cursor goes up to where the table before began.
    assert "\x1b[1A" in text
    assert "50.0% measured" in text


def test_documents_have_the_records_names() -> None:
    assert timeline_document(TIMELINE, SUMMARY)["stages"] == SUMMARY.stages
