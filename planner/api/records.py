"""From the store's records to the messages that calls answer with."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planner.errors import InvalidArgument
from planner.graph.ir import WeightFile
from planner.store.deployment_records import Failure
from planner.store.graphs import GraphRecord
from planner.store.inventories import InventoryRecord
from planner.store.operations import OperationState, PlanOperation
from planner.store.plans import PlanSummary
from planner.store.profiles import Profile, ProfileRecord
from planner.wire.inventory import inventory_to_proto
from planner.wire.profiles import calibration_to_proto, delivery_to_proto, node_times_to_proto, update_to_proto
from protos.v1 import graph_pb2, planner_pb2

MAX_NAME_CHARACTERS = 200

_STATES = {
    OperationState.PENDING: planner_pb2.OPERATION_STATE_PENDING,
    OperationState.RUNNING: planner_pb2.OPERATION_STATE_RUNNING,
    OperationState.SUCCEEDED: planner_pb2.OPERATION_STATE_SUCCEEDED,
    OperationState.FAILED: planner_pb2.OPERATION_STATE_FAILED,
    OperationState.CANCELLED: planner_pb2.OPERATION_STATE_CANCELLED,
}


def timestamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def failure_to_proto(failure: Failure) -> planner_pb2.Failure:
    return planner_pb2.Failure(
        reason=failure.reason,
        message=failure.message,
        stage=failure.stage,
        device_id=failure.device_id,
        metadata=dict(failure.metadata),
    )


def operation_to_proto(operation: PlanOperation) -> planner_pb2.PlanOperation:
    return planner_pb2.PlanOperation(
        id=operation.id,
        state=_STATES[operation.state],
        failure=failure_to_proto(operation.failure) if operation.failure else None,
        created_at=timestamp(operation.created_at),
        ended_at=timestamp(operation.ended_at) if operation.ended_at else None,
    )


def graph_record_to_proto(record: GraphRecord) -> planner_pb2.GraphRecord:
    return planner_pb2.GraphRecord(
        id=record.id,
        name=record.name,
        size_bytes=record.size_bytes,
        num_nodes=record.num_nodes,
        num_states=record.num_states,
        state_bytes=record.state_bytes,
        weights=_weights_to_proto(record.weights) if record.weights else None,
        deployable=not record.not_deployable_reason,
        not_deployable_reason=record.not_deployable_reason,
        created_at=timestamp(record.created_at),
    )


def weights_from_proto(message: graph_pb2.Weights) -> tuple[WeightFile, ...]:
    files = tuple(WeightFile(sha256=file.sha256, size_bytes=file.size_bytes) for file in message.files)
    if len({file.sha256 for file in files}) != len(files):
        raise InvalidArgument("weights.files names a file twice")
    return files


def inventory_record_to_proto(record: InventoryRecord) -> planner_pb2.InventoryRecord:
    return planner_pb2.InventoryRecord(
        id=record.id,
        name=record.name,
        inventory=inventory_to_proto(record.inventory),
        created_at=timestamp(record.created_at),
    )


def plan_summary_to_proto(summary: PlanSummary) -> planner_pb2.PlanSummary:
    return planner_pb2.PlanSummary(
        id=summary.id,
        graph_id=summary.graph_id,
        graph_name=summary.graph_name,
        mode=summary.mode,
        num_stages=summary.num_stages,
        bottleneck_seconds=summary.bottleneck_seconds,
        peak_bytes=summary.peak_bytes,
        created_at=timestamp(summary.created_at),
    )


def checked_name(name: str) -> str:
    if len(name) > MAX_NAME_CHARACTERS or not (name.isprintable() or not name):
        raise InvalidArgument(
            f"name {name[:40]!r}: {len(name)} characters, needs at most {MAX_NAME_CHARACTERS} printable ones"
        )
    return name


def _weights_to_proto(files: Iterable[WeightFile]) -> graph_pb2.Weights:
    return graph_pb2.Weights(
        files=[graph_pb2.WeightFile(sha256=file.sha256, size_bytes=file.size_bytes) for file in files]
    )


def profile_record_to_proto(record: ProfileRecord) -> planner_pb2.ProfileRecord:
    return planner_pb2.ProfileRecord(
        id=record.id,
        graph_id=record.graph_id,
        device_kind=record.device_kind,
        symbol_values=dict(record.symbol_values),
        source=record.source,
        num_nodes=record.num_nodes,
        num_measured=record.num_measured,
        total_seconds=record.total_seconds,
        calibration=calibration_to_proto(record.calibration) if record.calibration else None,
        created_at=timestamp(record.created_at),
        delivery=delivery_to_proto(record.delivery),
        update=update_to_proto(record.update),
        num_threads=record.num_threads,
    )


def profile_to_proto(profile: Profile) -> planner_pb2.Profile:
    return planner_pb2.Profile(
        record=profile_record_to_proto(profile.record),
        times=node_times_to_proto(profile.times),
        unmeasured=[planner_pb2.UnmeasuredNode(node=node, reason=reason) for node, reason in profile.unmeasured],
    )
