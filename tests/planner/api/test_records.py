"""From records to messages: each field arrives, and what is not there stays absent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from planner.api.records import (
    checked_name,
    graph_record_to_proto,
    inventory_record_to_proto,
    operation_to_proto,
    plan_summary_to_proto,
    profile_record_to_proto,
    profile_to_proto,
    weights_from_proto,
)
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import device_kind
from planner.cost.inventory import Device, Inventory
from planner.cost.measured import MeasuredTimes
from planner.errors import InvalidArgument
from planner.graph.ir import WeightFile
from planner.plan.options import BalancedMode, PlanOptions
from planner.store.deployment_records import Failure
from planner.store.graphs import GraphRecord
from planner.store.inventories import InventoryRecord
from planner.store.operations import OperationState, PlanOperation
from planner.store.plans import PlanSummary
from planner.store.profiles import Profile, ProfileRecord
from protos.v1 import graph_pb2, planner_pb2

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = datetime(2030, 1, 2, 3, 4, 6, tzinfo=UTC)
FILES = (WeightFile(sha256=b"\xff" * 32, size_bytes=2**40), WeightFile(sha256=bytes(32), size_bytes=0))


def operation(**changes: object) -> PlanOperation:
    return PlanOperation(
        id="plan-1",
        graph_id="ab",
        inventory_id="inv-1",
        options=PlanOptions(mode=BalancedMode(num_stages=2)),
        created_at=NOW,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("state", OperationState)
def test_every_state_of_an_operation_has_its_own_name(state: OperationState) -> None:
    message = operation_to_proto(operation(state=state))
    assert planner_pb2.OperationState.Name(message.state) == f"OPERATION_STATE_{state.name}"


def test_an_operation_under_way_has_no_end_and_no_failure() -> None:
    message = operation_to_proto(operation())
    assert (message.id, message.created_at.ToDatetime(UTC)) == ("plan-1", NOW)
    assert not message.HasField("ended_at")
    assert not message.HasField("failure")


@pytest.mark.parametrize("stage", [None, 0, 3])
def test_a_failed_operation_says_why_and_since_when(stage: int | None) -> None:
    failure = Failure(reason="INFEASIBLE", message="no room", stage=stage, device_id="a", metadata={"k": "v"})
    message = operation_to_proto(operation(state=OperationState.FAILED, failure=failure, ended_at=LATER))
    assert message.ended_at.ToDatetime(UTC) == LATER
    told = message.failure
    assert (told.reason, told.message, told.device_id, dict(told.metadata)) == (
        "INFEASIBLE",
        "no room",
        "a",
        {"k": "v"},
    )
    assert (told.HasField("stage"), told.stage) == (stage is not None, stage or 0)


def graph(**changes: object) -> GraphRecord:
    fields: dict[str, object] = {"weights": FILES, "not_deployable_reason": ""}
    return GraphRecord(
        id="ab" * 32,
        name="t5",
        torch_version="2.13.0",
        size_bytes=1,
        num_nodes=2,
        num_states=3,
        state_bytes=4,
        created_at=NOW,
        **fields | changes,  # type: ignore[arg-type]
    )


def test_a_graph_with_weights() -> None:
    message = graph_record_to_proto(graph())
    numbers = (message.size_bytes, message.num_nodes, message.num_states, message.state_bytes)
    assert (message.id, message.name, numbers) == ("ab" * 32, "t5", (1, 2, 3, 4))
    assert (message.deployable, message.not_deployable_reason) == (True, "")
    assert weights_from_proto(message.weights) == FILES
    assert message.created_at.ToDatetime(UTC) == NOW


def test_a_graph_without_weights() -> None:
    message = graph_record_to_proto(graph(weights=(), not_deployable_reason="no weights"))
    assert (message.deployable, message.not_deployable_reason) == (False, "no weights")
    assert not message.HasField("weights")


def test_a_weight_file_stands_once() -> None:
    twice = graph_pb2.Weights(files=[graph_pb2.WeightFile(sha256=bytes(32), size_bytes=size) for size in (1, 2)])
    with pytest.raises(InvalidArgument, match="names a file twice"):
        weights_from_proto(twice)
    assert weights_from_proto(graph_pb2.Weights()) == ()


@pytest.mark.parametrize("name", ["", "x" * 200, "größe 模型"])
def test_names_that_can_be_shown(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "a\0b", "\u202e"])
def test_names_that_cannot_be_shown(name: str) -> None:
    with pytest.raises(InvalidArgument, match="at most 200 printable"):
        checked_name(name)


def test_an_inventory() -> None:
    content = Inventory(devices=(Device(id="a", kind="cpu", host="h", memory_bytes=7),))
    message = inventory_record_to_proto(InventoryRecord(id="inv-1", name="rack", inventory=content, created_at=NOW))
    assert (message.id, message.name, message.created_at.ToDatetime(UTC)) == ("inv-1", "rack", NOW)
    assert [(device.id, device.memory_bytes) for device in message.inventory.devices] == [("a", 7)]


def test_a_plans_summary() -> None:
    message = plan_summary_to_proto(
        PlanSummary(
            id="plan-1",
            graph_id="ab",
            graph_name="t5",
            mode="cut",
            num_stages=3,
            bottleneck_seconds=0.5,
            peak_bytes=2**40,
            created_at=NOW,
        )
    )
    assert (message.id, message.graph_id, message.graph_name, message.mode) == ("plan-1", "ab", "t5", "cut")
    assert (message.num_stages, message.bottleneck_seconds, message.peak_bytes) == (3, 0.5, 2**40)
    assert message.created_at.ToDatetime(UTC) == NOW


def profile_record(calibration: Calibration | None) -> ProfileRecord:
    return ProfileRecord(
        id="prof-1",
        graph_id="ab",
        device_kind="cpu",
        symbol_values=(("batch", 4),),
        source="a stopwatch",
        num_nodes=5,
        num_measured=2,
        total_seconds=0.75,
        calibration=calibration,
        created_at=NOW,
    )


def test_a_profile() -> None:
    calibration = Calibration(device_kind="cpu", rates=device_kind("cpu"), num_nodes=9, median_error=0.25)
    message = profile_record_to_proto(profile_record(calibration))
    assert (message.id, message.graph_id, message.device_kind, message.source) == ("prof-1", "ab", "cpu", "a stopwatch")
    assert (message.num_nodes, message.num_measured, message.total_seconds) == (5, 2, 0.75)
    assert dict(message.symbol_values) == {"batch": 4}
    assert (message.calibration.num_nodes, message.calibration.median_error) == (9, 0.25)
    assert not profile_record_to_proto(profile_record(None)).HasField("calibration")


def test_a_profiles_times_and_what_has_none() -> None:
    times = MeasuredTimes(graph_id="ab", device_kind="cpu", seconds=((0, 0.5), (3, 0.25)))
    message = profile_to_proto(Profile(record=profile_record(None), times=times, unmeasured=((1, "it reads a file"),)))
    assert message.record.id == "prof-1"
    assert [(time.node, time.seconds) for time in message.times] == [(0, 0.5), (3, 0.25)]
    assert [(node.node, node.reason) for node in message.unmeasured] == [(1, "it reads a file")]
