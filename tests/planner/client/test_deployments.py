"""Rollouts as they are followed: events, broken watches, what is raised of a deployment that failed."""

from __future__ import annotations

from datetime import UTC, datetime

import grpc
import numpy as np
import pytest

from planner.client import PlannerClient, deployments
from planner.client.records import DeploymentEvent, DeploymentState
from planner.errors import Conflict, DeploymentFailed, DeviceFull, InvalidArgument, NotFound, Unavailable
from planner.wire.graph import graph_to_bytes
from protos.v1 import planner_pb2
from tests.planner.client.loopback_daemon import LoopbackDaemon, identity_graph, serving
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner

pytestmark = pytest.mark.services

Scripted = tuple[ScriptedPlanner, PlannerClient]
BROKEN = Refusal(code=grpc.StatusCode.UNAVAILABLE, message="the line is dead")


def deployment(state: str, **more: object) -> planner_pb2.Deployment:
    number = planner_pb2.DeploymentState.Value(f"DEPLOYMENT_STATE_{state}")
    return planner_pb2.Deployment(id="dep-1", plan_id="plan-1", graph_id="ab" * 32, state=number, **more)  # type: ignore[arg-type]


def event(sequence: int, state: str) -> planner_pb2.DeploymentEvent:
    return planner_pb2.DeploymentEvent(
        sequence=sequence, state=planner_pb2.DeploymentState.Value(f"DEPLOYMENT_STATE_{state}")
    )


def sequences(events: list[DeploymentEvent]) -> list[int]:
    return [one.sequence for one in events]


def test_a_rollout_is_waited_for_until_it_is_ready(scripted: Scripted) -> None:
    script, client = scripted
    script.on("Deploy", deployment("PENDING"))
    script.on("WatchDeployment", [event(1, "LOADING"), event(2, "CONNECTING"), event(3, "READY"), event(4, "DRAINING")])
    script.on("GetDeployment", deployment("READY", input_address="h:1", output_address="h:2"))
    seen: list[DeploymentEvent] = []
    ready = client.deploy("plan-1", on_event=seen.append, request_id="mine")
    assert (ready.state, ready.input_address, ready.output_address) == (DeploymentState.READY, "h:1", "h:2")
    assert sequences(seen) == [1, 2, 3]
    [request] = script.requests("Deploy")
    assert (request.request_id, request.plan_id) == ("mine", "plan-1")
    assert request.recovery == planner_pb2.RECOVERY_POLICY_MANUAL


def test_threads_and_compiled_stages_are_asked_for(scripted: Scripted) -> None:
    script, client = scripted
    script.on("Deploy", deployment("PENDING", num_threads=3, compile=True))
    answer = client.deploy("plan-1", wait=False, num_threads=3, compile=True)
    assert (answer.num_threads, answer.compile) == (3, True)
    client.deploy("plan-1", wait=False)
    assert [(request.num_threads, request.compile) for request in script.requests("Deploy")] == [(3, True), (0, False)]
    with pytest.raises(InvalidArgument, match="num_threads is 0, needs at least 1"):
        client.deploy("plan-1", num_threads=0)


def test_a_rollout_need_not_be_waited_for(scripted: Scripted) -> None:
    script, client = scripted
    script.on("Deploy", deployment("PENDING"))
    assert client.deploy("plan-1", wait=False).state is DeploymentState.PENDING
    assert [call.method for call in script.calls] == ["Deploy"]
    client.deploy("plan-1", wait=False)
    first, second = script.requests("Deploy")
    assert first.request_id != second.request_id
    assert first.request_id


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("WORKER_DIED", "out of memory", "deployment dep-1 failed in stage 2 on device n1/gpu0: out of memory"),
        ("WORKER_DIED", "stage 2 on n1/gpu0 died", "deployment dep-1 failed: stage 2 on n1/gpu0 died"),
        (DeviceFull.reason, "80 GiB needed", "deployment dep-1 failed in stage 2 on device n1/gpu0: 80 GiB needed"),
    ],
)
def test_a_rollout_that_fails_names_stage_and_device(scripted: Scripted, reason: str, message: str, says: str) -> None:
    script, client = scripted
    failure = planner_pb2.Failure(
        reason=reason, message=message, stage=2, device_id="n1/gpu0", metadata={"missing_bytes": "7"}
    )
    script.on("Deploy", deployment("PENDING"))
    script.on("WatchDeployment", [event(1, "LOADING"), event(2, "FAILED")])
    script.on("GetDeployment", deployment("FAILED", failure=failure))
    with pytest.raises(DeploymentFailed) as raised:
        client.deploy("plan-1")
    assert raised.value.message == says
    assert raised.value.metadata == {
        "missing_bytes": "7",
        "reason": reason,
        "stage": "2",
        "device_id": "n1/gpu0",
        "deployment_id": "dep-1",
    }


def test_a_rollout_that_is_stopped_meanwhile_is_a_conflict(scripted: Scripted) -> None:
    script, client = scripted
    script.on("Deploy", deployment("PENDING"))
    script.on("WatchDeployment", [event(1, "LOADING"), event(2, "STOPPED")])
    script.on("GetDeployment", deployment("STOPPED"))
    with pytest.raises(Conflict, match="deployment dep-1 is stopped, needs to be ready") as raised:
        client.deploy("plan-1")
    assert raised.value.metadata == {"deployment_id": "dep-1", "state": "stopped"}


def test_a_watch_goes_on_after_the_last_event_that_arrived(scripted: Scripted) -> None:
    script, client = scripted
    # Broken more often than is allowed in a row, each time after something new.
    broken = [[event(number, "LOADING"), BROKEN] for number in range(1, 6)]
    script.on("WatchDeployment", *broken, [event(len(broken) + 1, "STOPPED")])
    assert sequences(list(client.watch("dep-1"))) == list(range(1, len(broken) + 2))
    requests = script.requests("WatchDeployment")
    assert [request.after_sequence for request in requests] == list(range(len(broken) + 1))
    assert {request.deployment_id for request in requests} == {"dep-1"}


def test_a_watch_that_brings_nothing_is_given_up(scripted: Scripted) -> None:
    script, client = scripted
    script.on("WatchDeployment", [event(5, "LOADING"), BROKEN], BROKEN)
    seen: list[DeploymentEvent] = []
    with pytest.raises(Unavailable, match="the line is dead"):
        seen.extend(client.watch("dep-1", after_sequence=4))
    first, *others = (request.after_sequence for request in script.requests("WatchDeployment"))
    assert (first, set(others)) == (4, {5})


def test_a_watch_that_never_began_is_not_tried_again(scripted: Scripted) -> None:
    script, client = scripted
    script.on("WatchDeployment", BROKEN)
    with pytest.raises(Unavailable):
        list(client.watch("dep-1"))
    assert len(script.calls) == 1


def test_what_is_known_to_be_wrong_is_not_tried_again(scripted: Scripted) -> None:
    script, client = scripted
    script.on("WatchDeployment", [event(1, "LOADING"), NotFound("it was deleted")])
    with pytest.raises(NotFound):
        list(client.watch("dep-1"))
    assert len(script.calls) == 1


def test_stopping_may_take_as_long_as_a_drain(scripted: Scripted) -> None:
    script, client = scripted
    script.on("StopDeployment", deployment("STOPPED"))
    assert client.stop("dep-1").state is DeploymentState.STOPPED
    [call] = script.calls
    assert call.request.deployment_id == "dep-1"
    assert call.remaining_seconds is not None
    assert call.remaining_seconds > deployments.STOP_SECONDS / 2


def test_lists_pass_their_filters_on(scripted: Scripted) -> None:
    script, client = scripted
    page = planner_pb2.ListDeploymentsResponse
    script.on("ListDeployments", page(deployments=[deployment("READY")], next_page_token="t"), page())
    [deployed] = client.list_deployments(plan_id="plan-1", active_only=True)
    assert (deployed.id, deployed.plan_id, deployed.state, deployed.failure) == (
        "dep-1",
        "plan-1",
        DeploymentState.READY,
        None,
    )
    assert deployed.ended_at is None
    first, second = script.requests("ListDeployments")
    assert (first.plan_id, first.active_only, second.page_token) == ("plan-1", True, "t")


@pytest.mark.parametrize("state", ["PENDING", "STOPPED"])
def test_no_pipeline_through_what_is_not_ready(scripted: Scripted, state: str) -> None:
    script, client = scripted
    script.on("GetDeployment", deployment(state))
    with pytest.raises(Conflict, match=f"is {state.lower()}, needs to be ready"):
        client.pipeline("dep-1")


def test_no_pipeline_through_what_failed_without_a_reason(scripted: Scripted) -> None:
    script, client = scripted
    script.on("GetDeployment", deployment("FAILED"))
    with pytest.raises(DeploymentFailed, match="deployment dep-1 failed") as raised:
        client.pipeline("dep-1")
    assert raised.value.metadata["reason"] == "UNKNOWN"


def run_that_breaks(scripted: Scripted, *later: planner_pb2.Deployment | Refusal) -> None:
    """One batch through a deployment whose worker dies; `later` is what the planner then says of it."""
    script, client = scripted
    daemon = LoopbackDaemon()
    daemon.ends_at = 1
    with serving(daemon) as address:
        ready = deployment("READY", input_address=address, output_address=address)
        script.on("GetDeployment", ready, *later)
        script.on("GetGraph", planner_pb2.GraphRecord(id="ab" * 32))
        script.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=graph_to_bytes(identity_graph()))])
        with client.pipeline("dep-1") as pipeline:
            pipeline(np.zeros((2, 3), dtype=np.float32))


def test_a_broken_run_waits_for_what_the_planner_hears(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "FAILURE_POLL_SECONDS", 0.0)
    monkeypatch.setattr(deployments, "FAILURE_REPORT_SECONDS", 60.0)
    failure = planner_pb2.Failure(reason="WORKER_DIED", message="killed", stage=0, device_id="a")
    with pytest.raises(DeploymentFailed, match="failed in stage 0 on device a: killed"):
        run_that_breaks(scripted, deployment("READY"), deployment("READY"), deployment("FAILED", failure=failure))


@pytest.mark.parametrize("later", [deployment("STOPPED"), Refusal(code=grpc.StatusCode.NOT_FOUND)])
def test_a_broken_run_says_so_itself_where_the_planner_knows_nothing(
    scripted: Scripted, later: planner_pb2.Deployment | Refusal
) -> None:
    with pytest.raises(Unavailable, match="the worker died"):
        run_that_breaks(scripted, later)


def test_a_broken_run_does_not_wait_for_ever(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "FAILURE_REPORT_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="the worker died"):
        run_that_breaks(scripted, deployment("READY"))


def test_events_and_placements_are_read_whole(scripted: Scripted) -> None:
    script, client = scripted
    full = planner_pb2.DeploymentEvent(
        sequence=3,
        state=planner_pb2.DEPLOYMENT_STATE_FAILED,
        message="stage 0 failed",
        stage=0,
        device_id="a",
        loaded_bytes=5,
        total_bytes=9,
        failure=planner_pb2.Failure(reason="R", message="m"),
    )
    full.occurred_at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    script.on("WatchDeployment", [full])
    [event] = client.watch("dep-1")
    assert (event.stage, event.device_id, event.loaded_bytes, event.total_bytes) == (0, "a", 5, 9)
    assert event.occurred_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert event.failure is not None
    assert (event.failure.reason, event.failure.stage) == ("R", None)
    placed = planner_pb2.StagePlacement(stage=1, device_id="a", daemon_address="h:1")
    ended = deployment("STOPPED", stages=[placed], generation=4)
    ended.ended_at.FromDatetime(datetime(2026, 1, 3, tzinfo=UTC))
    script.on("GetDeployment", ended)
    record = client.get_deployment("dep-1")
    assert [(stage.stage, stage.device_id, stage.daemon_address) for stage in record.stages] == [(1, "a", "h:1")]
    assert (record.generation, record.ended_at) == (4, datetime(2026, 1, 3, tzinfo=UTC))
