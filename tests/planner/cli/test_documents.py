"""Records as documents: keys that stay, numbers to the last digit, and inventories that are read back."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from planner.cli.documents import expression_text, inventory_document, to_document
from planner.cli.inventory_file import parse_inventory
from planner.cli.output import PIPED_WIDTH, OutputFormat, emit
from planner.client.records import DeploymentState, Failure, GraphRecord, StoredPlan
from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import WeightFile
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan
from planner.planning import make_plan
from tests.contract.graphs import linear_chain

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LEFT = Device(id="left", kind="h100", host="n1", memory_bytes=2**53 + 1, flops_per_second=1e12)
RIGHT = Device(id="right", kind="cpu", host="n2", memory_bytes=1 << 20, memory_bytes_per_second=2e9)
INVENTORY = Inventory(
    devices=(LEFT, RIGHT),
    links={
        ("right", "left"): LinkSpeed(bytes_per_second=3e9, latency_seconds=1e-6),
        ("left", "right"): LinkSpeed(bytes_per_second=2e9, latency_seconds=0.0),
    },
    default_link=LinkSpeed(bytes_per_second=1e9, latency_seconds=2e-6),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(linear_chain(4), "ab" * 32, INVENTORY, PlanOptions(mode=BalancedMode(num_stages=2)))


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (None, None),
        (True, True),
        (2**60 + 1, 2**60 + 1),
        (0.1, 0.1),
        ("…", "…"),
        (b"\x00\xff", "00ff"),
        (MOMENT, "2026-01-02T03:04:05+00:00"),
        (DeploymentState.READY, "ready"),
        (OutputFormat.YAML, "yaml"),
        (Path("a/b"), "a/b"),
        (SymbolReference(3), "s3"),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({1: (b"\x01",)}, {"1": ["01"]}),
    ],
)
def test_values(value: object, document: object) -> None:
    converted = to_document(value)
    assert (converted, type(converted)) == (document, type(document))


def test_a_record_is_its_fields() -> None:
    record = GraphRecord(
        id="ab",
        name="n",
        size_bytes=2**53 + 1,
        num_nodes=1,
        num_states=0,
        state_bytes=0,
        weight_files=(WeightFile(sha256=b"\x01", size_bytes=4),),
        deployable=False,
        not_deployable_reason="no weights",
        created_at=MOMENT,
    )
    document = to_document(record)
    assert list(document) == [field.name for field in fields(GraphRecord)]
    assert document["size_bytes"] == 2**53 + 1
    assert document["weight_files"] == [{"sha256": "01", "size_bytes": 4}]
    assert document["created_at"] == MOMENT.isoformat()
    failure = Failure(reason="R", message="m", stage=0, metadata={"bytes": "7"})
    assert to_document(failure) == {
        "reason": "R",
        "message": "m",
        "stage": 0,
        "device_id": "",
        "metadata": {"bytes": "7"},
    }


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (7, "7"),
        (SymbolReference(1), "s1"),
        (Operation(ExpressionOperator.MULTIPLY, (2, SymbolReference(1))), "multiply(2, s1)"),
        (
            Operation(ExpressionOperator.FLOOR_DIVIDE, (Operation(ExpressionOperator.ADD, (SymbolReference(2), 1)), 4)),
            "floor_divide(add(s2, 1), 4)",
        ),
    ],
)
def test_dimensions_are_short_formulas(expression: object, text: str) -> None:
    assert expression_text(expression) == text  # type: ignore[arg-type]
    assert expression == 7 or to_document(expression) == text


def test_an_inventory_is_read_back_as_it_was() -> None:
    document = inventory_document(INVENTORY)
    assert parse_inventory(yaml.safe_load(yaml.safe_dump(document))) == INVENTORY
    assert parse_inventory(json.loads(json.dumps(document))) == INVENTORY
    assert [(link["source"], link["target"]) for link in document["links"]] == [("left", "right"), ("right", "left")]
    assert to_document(INVENTORY) == document


def test_a_plan_says_what_is_derived_too(plan: Plan) -> None:
    document = to_document(plan)
    assert document["options"]["mode"] == {"name": "balanced", "num_stages": 2}
    assert next(iter(document["options"]["mode"])) == "name"
    assert document["options"]["symbol_values"] == {}
    assert document["symbol_values"] == dict(plan.symbol_values)
    for stage, entry in zip(plan.stages, document["stages"], strict=True):
        assert entry["num_nodes"] == stage.num_nodes == 2
        assert entry["memory"]["peak_bytes"] == stage.memory.peak_bytes
        assert [live["value_id"] for live in entry["liveness"]] == [live.value_id for live in stage.liveness]
    assert document["inventory"] == inventory_document(INVENTORY)
    assert "id" not in document


def test_a_stored_plan_begins_with_its_id(plan: Plan) -> None:
    stored = StoredPlan(
        **{field.name: getattr(plan, field.name) for field in fields(Plan)}, id="plan-1", created_at=MOMENT
    )
    document = to_document(stored)
    assert list(document)[:2] == ["id", "created_at"]
    assert (document["id"], document["created_at"]) == ("plan-1", MOMENT.isoformat())
    assert {key: document[key] for key in to_document(plan)} == to_document(plan)


def test_results_are_written_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"b": "π…", "a": [1, None], "size": 2**53 + 1}
    emit(result, OutputFormat.JSON, lambda: pytest.fail("no table is asked for"))
    as_json = capsys.readouterr().out
    assert json.loads(as_json) == result
    assert as_json.startswith('{\n  "b": "π…"')
    assert as_json.endswith("}\n")
    emit(result, OutputFormat.YAML, lambda: pytest.fail("no table is asked for"))
    as_yaml = capsys.readouterr().out
    assert yaml.safe_load(as_yaml) == result
    assert as_yaml.startswith("b: π…")


def test_a_piped_table_is_as_wide_as_its_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    emit(None, OutputFormat.TABLE, lambda: "x" * PIPED_WIDTH + "y")
    assert capsys.readouterr().out == "x" * PIPED_WIDTH + "\ny\n"
