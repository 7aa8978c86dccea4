"""Between deployment records and their protobuf messages."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planner.errors import InvalidArgument
from planner.store.deployment_records import (
    Deployment,
    DeploymentEvent,
    DeploymentState,
    Failure,
    LoadedStage,
    RecoveryPolicy,
)
from protos.v1 import planner_pb2, stage_daemon_pb2

# A deployment's addresses mean something from READY on, and nothing once it has ended.
REACHABLE = (DeploymentState.READY, DeploymentState.DRAINING)


def timestamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def state_from_proto(value: planner_pb2.DeploymentState.ValueType) -> DeploymentState | None:
    """None where it is not given. Raises InvalidArgument for one that is not known."""
    if not value:
        return None
    state = next((one for one in DeploymentState if state_to_proto(one) == value), None)
    if state is None:
        raise InvalidArgument(f"state is {value}, needs one of DeploymentState")
    return state


def state_to_proto(state: DeploymentState) -> planner_pb2.DeploymentState.ValueType:
    return planner_pb2.DeploymentState.Value(f"DEPLOYMENT_STATE_{state.name}")


def recovery_from_proto(policy: planner_pb2.RecoveryPolicy.ValueType) -> RecoveryPolicy:
    """Raises InvalidArgument for one that this planner does not know."""
    if policy == planner_pb2.RECOVERY_POLICY_UNSPECIFIED:
        return RecoveryPolicy.MANUAL
    for recovery in RecoveryPolicy:
        if policy == _recovery_to_proto(recovery):
            return recovery
    raise InvalidArgument(f"recovery is {policy}, which this planner does not know; use manual, restart or replan")


def _recovery_to_proto(policy: RecoveryPolicy) -> planner_pb2.RecoveryPolicy.ValueType:
    return planner_pb2.RecoveryPolicy.Value(f"RECOVERY_POLICY_{policy.name}")


def failure_to_proto(failure: Failure) -> planner_pb2.Failure:
    return planner_pb2.Failure(
        reason=failure.reason,
        message=failure.message,
        stage=failure.stage,
        device_id=failure.device_id,
        metadata=dict(failure.metadata),
    )


def failure_from_proto(message: planner_pb2.Failure) -> Failure:
    return Failure(
        reason=message.reason or "UNKNOWN",
        message=message.message,
        stage=message.stage if message.HasField("stage") else None,
        device_id=message.device_id,
        metadata=dict(message.metadata),
    )


def loaded_stage_from_proto(message: stage_daemon_pb2.LoadStagesResponse) -> LoadedStage:
    return LoadedStage(
        stage=message.stage,
        num_threads=message.num_threads,
        compiled_difference=message.compiled_difference if message.HasField("compiled_difference") else None,
    )


def deployment_to_proto(deployment: Deployment) -> planner_pb2.Deployment:
    reachable = deployment.state in REACHABLE
    return planner_pb2.Deployment(
        id=deployment.id,
        plan_id=deployment.plan_id,
        graph_id=deployment.graph_id,
        state=state_to_proto(deployment.state),
        generation=deployment.generation,
        failure=failure_to_proto(deployment.failure) if deployment.failure else None,
        stages=[
            planner_pb2.StagePlacement(
                stage=placement.stage,
                device_id=placement.device_id,
                daemon_address=placement.daemon_address,
                num_threads=placement.num_threads,
                compiled_difference=placement.compiled_difference,
            )
            for placement in deployment.stages
        ],
        input_address=deployment.input_address if reachable else "",
        output_address=deployment.output_address if reachable else "",
        created_at=timestamp(deployment.created_at),
        ended_at=timestamp(deployment.ended_at) if deployment.ended_at else None,
        recovery=_recovery_to_proto(deployment.recovery),
        num_threads=deployment.workers.num_threads,
        compile=deployment.workers.compile,
        asked_plan_id=deployment.asked_plan_id,
        plan_reason=deployment.plan_reason,
    )


def event_to_proto(event: DeploymentEvent) -> planner_pb2.DeploymentEvent:
    return planner_pb2.DeploymentEvent(
        sequence=event.sequence,
        occurred_at=timestamp(event.occurred_at),
        state=state_to_proto(event.state),
        message=event.message,
        stage=event.stage,
        device_id=event.device_id,
        loaded_bytes=event.loaded_bytes,
        total_bytes=event.total_bytes,
        failure=failure_to_proto(event.failure) if event.failure else None,
    )
