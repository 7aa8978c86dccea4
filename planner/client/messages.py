"""From protobuf messages to the client's records, one function per message."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planner.client import records
from planner.errors import InvalidArgument
from planner.graph.ir import WeightFile
from planner.plan.plan import Plan
from planner.wire.inventory import inventory_from_proto
from planner.wire.plan import plan_from_proto
from planner.wire.profiles import calibration_from_proto, delivery_from_proto, times_from_profile, update_from_proto
from protos.v1 import inventory_pb2, plan_pb2, planner_pb2


def time_from_proto(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)


def graph_record_from_proto(message: planner_pb2.GraphRecord) -> records.GraphRecord:
    return records.GraphRecord(
        id=message.id,
        name=message.name,
        size_bytes=message.size_bytes,
        num_nodes=message.num_nodes,
        num_states=message.num_states,
        state_bytes=message.state_bytes,
        weight_files=tuple(WeightFile(sha256=f.sha256, size_bytes=f.size_bytes) for f in message.weights.files),
        deployable=message.deployable,
        not_deployable_reason=message.not_deployable_reason,
        created_at=time_from_proto(message.created_at),
    )


def registered_device_from_proto(message: planner_pb2.RegisteredDevice) -> records.RegisteredDevice:
    alone = inventory_from_proto(inventory_pb2.Inventory(devices=[message.device]))
    return records.RegisteredDevice(
        device=alone.devices[0],
        daemon_address=message.daemon_address,
        lease_expires_at=time_from_proto(message.lease_expires_at),
        deployment_ids=tuple(message.deployment_ids),
        torch_version=message.torch_version,
        draining=message.draining,
    )


def inventory_record_from_proto(message: planner_pb2.InventoryRecord) -> records.InventoryRecord:
    return records.InventoryRecord(
        id=message.id,
        name=message.name,
        inventory=inventory_from_proto(message.inventory),
        created_at=time_from_proto(message.created_at),
    )


def stored_plan_from_proto(message: plan_pb2.Plan) -> records.StoredPlan:
    plan = plan_from_proto(message)
    return records.StoredPlan(
        **{field.name: getattr(plan, field.name) for field in fields(Plan)},
        id=message.id,
        created_at=time_from_proto(message.created_at),
    )


def plan_summary_from_proto(message: planner_pb2.PlanSummary) -> records.PlanSummary:
    return records.PlanSummary(
        id=message.id,
        graph_id=message.graph_id,
        graph_name=message.graph_name,
        mode=message.mode,
        num_stages=message.num_stages,
        bottleneck_seconds=message.bottleneck_seconds,
        peak_bytes=message.peak_bytes,
        created_at=time_from_proto(message.created_at),
    )


def failure_from_proto(message: planner_pb2.Failure) -> records.Failure:
    return records.Failure(
        reason=message.reason,
        message=message.message,
        stage=message.stage if message.HasField("stage") else None,
        device_id=message.device_id,
        metadata=dict(message.metadata),
    )


def operation_state_from_proto(state: planner_pb2.OperationState.ValueType) -> records.OperationState:
    name = planner_pb2.OperationState.Name(state)
    return records.OperationState[name.removeprefix("OPERATION_STATE_")]


def deployment_state_from_proto(state: planner_pb2.DeploymentState.ValueType) -> records.DeploymentState:
    name = planner_pb2.DeploymentState.Name(state)
    return records.DeploymentState[name.removeprefix("DEPLOYMENT_STATE_")]


def deployment_state_to_proto(state: records.DeploymentState) -> planner_pb2.DeploymentState.ValueType:
    return planner_pb2.DeploymentState.Value(f"DEPLOYMENT_STATE_{state.name}")


def deployment_from_proto(message: planner_pb2.Deployment) -> records.Deployment:
    return records.Deployment(
        id=message.id,
        plan_id=message.plan_id,
        graph_id=message.graph_id,
        state=deployment_state_from_proto(message.state),
        generation=message.generation,
        failure=failure_from_proto(message.failure) if message.HasField("failure") else None,
        stages=tuple(
            records.StagePlacement(
                stage=s.stage,
                device_id=s.device_id,
                daemon_address=s.daemon_address,
                num_threads=s.num_threads,
                compiled_difference=s.compiled_difference if s.HasField("compiled_difference") else None,
            )
            for s in message.stages
        ),
        input_address=message.input_address,
        output_address=message.output_address,
        created_at=time_from_proto(message.created_at),
        ended_at=time_from_proto(message.ended_at) if message.HasField("ended_at") else None,
        recovery=recovery_from_proto(message.recovery),
        num_threads=message.num_threads,
        compile=message.compile,
        asked_plan_id=message.asked_plan_id,
        plan_reason=message.plan_reason,
    )


def threads_to_proto(num_threads: int | None) -> int:
    """Raises InvalidArgument."""
    if num_threads is not None and num_threads < 1:
        raise InvalidArgument(f"num_threads is {num_threads}, needs at least 1")
    return num_threads or 0


def recovery_from_proto(policy: planner_pb2.RecoveryPolicy.ValueType) -> records.RecoveryPolicy:
    if policy == planner_pb2.RECOVERY_POLICY_UNSPECIFIED:
        return records.RecoveryPolicy.MANUAL
    return records.RecoveryPolicy[planner_pb2.RecoveryPolicy.Name(policy).removeprefix("RECOVERY_POLICY_")]


def recovery_to_proto(policy: records.RecoveryPolicy) -> planner_pb2.RecoveryPolicy.ValueType:
    return planner_pb2.RecoveryPolicy.Value(f"RECOVERY_POLICY_{policy.name}")


def deployment_event_from_proto(message: planner_pb2.DeploymentEvent) -> records.DeploymentEvent:
    return records.DeploymentEvent(
        sequence=message.sequence,
        occurred_at=time_from_proto(message.occurred_at),
        state=deployment_state_from_proto(message.state),
        message=message.message,
        stage=message.stage if message.HasField("stage") else None,
        device_id=message.device_id,
        loaded_bytes=message.loaded_bytes,
        total_bytes=message.total_bytes,
        failure=failure_from_proto(message.failure) if message.HasField("failure") else None,
    )


def profile_record_from_proto(message: planner_pb2.ProfileRecord) -> records.ProfileRecord:
    fitted = None
    if message.HasField("calibration"):
        fitted = calibration_from_proto(message.calibration, message.device_kind, message.id)
    return records.ProfileRecord(
        id=message.id,
        graph_id=message.graph_id,
        device_kind=message.device_kind,
        symbol_values=tuple(sorted(message.symbol_values.items())),
        source=message.source,
        num_nodes=message.num_nodes,
        num_measured=message.num_measured,
        total_seconds=message.total_seconds,
        calibration=fitted,
        created_at=time_from_proto(message.created_at),
        delivery=delivery_from_proto(message),
        update=update_from_proto(message),
        num_threads=message.num_threads,
    )


def profile_from_proto(message: planner_pb2.Profile) -> records.Profile:
    return records.Profile(
        record=profile_record_from_proto(message.record),
        times=times_from_profile(message),
        unmeasured=tuple((entry.node, entry.reason) for entry in message.unmeasured),
    )


def profile_progress_from_proto(message: planner_pb2.ProfileGraphResponse) -> records.ProfileProgress:
    return records.ProfileProgress(
        device_id=message.device_id,
        device_kind=message.device_kind,
        num_done=message.num_done,
        num_distinct=message.num_distinct,
    )
