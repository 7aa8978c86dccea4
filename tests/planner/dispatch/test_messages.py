"""Deployments, events and failures as messages: each field arrives, and addresses only while they mean something."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from planner.dispatch.messages import deployment_to_proto, event_to_proto, failure_from_proto, failure_to_proto
from planner.store.deployment_records import DeploymentState, Failure
from protos.v1 import planner_pb2
from tests.planner.store.records import NOW, deployment, event, later, placement

FAILURE = Failure(reason="WORKER_DIED", message="killed", stage=1, device_id="a", metadata={"edge": "0"})


@pytest.mark.parametrize(
    "failure", [FAILURE, Failure(reason="A", message="b"), Failure(reason="A", message="", stage=0)]
)
def test_a_failure_is_the_same_after_its_message(failure: Failure) -> None:
    assert failure_from_proto(failure_to_proto(failure)) == failure


def test_a_failure_without_a_reason_has_one() -> None:
    assert failure_from_proto(planner_pb2.Failure(message="?")).reason == "UNKNOWN"


@pytest.mark.parametrize("state", DeploymentState)
def test_a_deployment_has_addresses_from_ready_until_it_ends(state: DeploymentState) -> None:
    stages = (placement(0, "a"), placement(1, "b"), placement(2, "c"))
    message = deployment_to_proto(deployment(state=state, stages=stages, generation=5))
    assert planner_pb2.DeploymentState.Name(message.state) == f"DEPLOYMENT_STATE_{state.name}"
    reachable = state in (DeploymentState.READY, DeploymentState.DRAINING)
    assert (message.input_address, message.output_address) == (("a:1", "c:1") if reachable else ("", ""))
    assert (message.id, message.plan_id, message.graph_id, message.generation) == ("dep-1", "plan-1", "ab" * 32, 5)
    assert [(one.stage, one.device_id, one.daemon_address) for one in message.stages] == [
        (0, "a", "a:1"),
        (1, "b", "b:1"),
        (2, "c", "c:1"),
    ]
    assert message.created_at.ToDatetime(UTC) == NOW
    assert not message.HasField("ended_at")
    assert not message.HasField("failure")


def test_a_deployment_that_failed_says_when_and_why() -> None:
    message = deployment_to_proto(deployment(state=DeploymentState.FAILED, ended_at=later(3), failure=FAILURE))
    assert message.ended_at.ToDatetime(UTC) == later(3)
    assert failure_from_proto(message.failure) == FAILURE


@pytest.mark.parametrize("changes", [{}, {"stage": 0, "device_id": "a", "failure": FAILURE}])
def test_an_event(changes: dict[str, Any]) -> None:
    numbers = {"sequence": 4, "loaded_bytes": 2**60, "total_bytes": 2**63 - 1}
    message = event_to_proto(event(DeploymentState.LOADING, message="loading", **numbers, **changes))
    assert (message.sequence, message.loaded_bytes, message.total_bytes) == (4, 2**60, 2**63 - 1)
    assert (message.state, message.message) == (planner_pb2.DEPLOYMENT_STATE_LOADING, "loading")
    assert message.occurred_at.ToDatetime(UTC) == later(1)
    assert message.HasField("stage") == ("stage" in changes)
    assert message.device_id == changes.get("device_id", "")
    assert message.HasField("failure") == ("failure" in changes)
