"""Several planners of one database, of which some do not answer: each call is answered by one that does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from planner.client import PlannerClient
from planner.client.failover import Restarts, _Turns
from planner.errors import AwayForNow, NotFound, NotLeading, PlannerError, Unavailable
from protos.v1 import planner_pb2
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner, scripted_planner
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
NOBODY = "127.0.0.1:1"
AWAY = Refusal(code=grpc.StatusCode.UNAVAILABLE)
# What grpc tells the caller of a call that an ending server has taken in but not begun.
DROPPED = Refusal(code=grpc.StatusCode.CANCELLED, message="CANCELLED")
OPERATION = planner_pb2.PlanOperation(id="plan-1", state=planner_pb2.OPERATION_STATE_PENDING)
Two = tuple[ScriptedPlanner, ScriptedPlanner, PlannerClient]


@pytest.fixture
def two() -> Iterator[Two]:
    """Two planners, and a client that knows both and one that is not there."""
    with (
        scripted_planner() as (first, first_address),
        scripted_planner() as (second, second_address),
        PlannerClient(
            [NOBODY, first_address, second_address], timeout_seconds=WAIT_SECONDS, restart_seconds=3.0
        ) as client,
    ):
        yield first, second, client


def asked(*planners: ScriptedPlanner) -> list[int]:
    return [len(planner.calls) for planner in planners]


def test_the_one_that_answered_is_asked_again(two: Two) -> None:
    first, second, client = two
    first.on("GetPlanOperation", OPERATION, OPERATION, AWAY)
    second.on("GetPlanOperation", OPERATION)
    for calls in ([1, 0], [2, 0], [3, 1], [3, 2]):
        assert client.get_plan_operation("plan-1").id == "plan-1"
        assert asked(first, second) == calls


def test_what_one_refuses_is_refused(two: Two) -> None:
    first, second, client = two
    first.on("GetPlanOperation", NotFound("no such plan"))
    with pytest.raises(NotFound):
        client.get_plan_operation("plan-1")
    assert asked(first, second) == [1, 0]


def test_what_is_created_twice_has_one_request_id(two: Two) -> None:
    first, second, client = two
    first.on("StopDeployment", AWAY)
    second.on("StopDeployment", planner_pb2.Deployment(id="dep-1", state=planner_pb2.DEPLOYMENT_STATE_STOPPED))
    assert client.stop("dep-1").id == "dep-1"
    first.on("Deploy", AWAY)
    second.on("Deploy", AWAY, planner_pb2.Deployment(id="dep-2", state=planner_pb2.DEPLOYMENT_STATE_PENDING))
    assert client.deploy("plan-1", wait=False).id == "dep-2"
    ids = {request.request_id for planner in (first, second) for request in planner.requests("Deploy")}
    assert len(ids) == 1


def test_what_may_have_been_deleted_is_not_deleted_again(two: Two) -> None:
    first, second, client = two
    first.on("DeletePlan", AWAY)
    second.on("DeletePlan", planner_pb2.DeletePlanResponse())
    for _ in range(2):
        with pytest.raises(Unavailable):
            client.delete_plan("plan-1")
    client.delete_plan("plan-1")
    assert asked(first, second) == [1, 1]


def test_a_planner_that_is_starting_again_is_waited_for(two: Two) -> None:
    first, second, client = two
    first.on("GetPlanOperation", AWAY)
    second.on("GetPlanOperation", AWAY, AWAY, OPERATION)
    assert client.get_plan_operation("plan-1").id == "plan-1"
    second.on("GetPlanOperation", AWAY)
    with pytest.raises(Unavailable):
        client.get_plan_operation("plan-1")


def test_events_go_on_at_another_planner(two: Two) -> None:
    first, second, client = two
    loading, ready, stopped = (
        planner_pb2.DeploymentEvent(sequence=sequence, state=state)
        for sequence, state in (
            (1, planner_pb2.DEPLOYMENT_STATE_LOADING),
            (2, planner_pb2.DEPLOYMENT_STATE_READY),
            (3, planner_pb2.DEPLOYMENT_STATE_STOPPED),
        )
    )
    first.on("WatchDeployment", [loading, AWAY], AWAY)
    second.on("WatchDeployment", AWAY, [ready, stopped])
    assert [event.sequence for event in client.watch("dep-1")] == [1, 2, 3]
    assert [request.after_sequence for request in second.requests("WatchDeployment")] == [1, 1]


@pytest.mark.parametrize(("length", "rest"), [(6, (12, 4)), (0, (12, 0))])
def test_a_blob_goes_on_at_another_planner(two: Two, length: int, rest: tuple[int, int]) -> None:
    first, second, client = two
    ab, cdef = (planner_pb2.ReadBlobResponse(chunk=chunk) for chunk in (b"ab", b"cdef"))
    first.on("ReadBlob", [ab, AWAY], AWAY)
    second.on("ReadBlob", AWAY, [cdef, AWAY] if length else [cdef])
    assert b"".join(client.read_blob(bytes(32), 10, length)) == b"abcdef"
    ranges = [(request.offset_bytes, request.length_bytes) for request in second.requests("ReadBlob")]
    assert ranges == [rest, rest]
    assert asked(first, second) == [2, 2]


def test_a_blob_of_which_no_more_comes_is_given_up(two: Two) -> None:
    first, second, client = two
    first.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=b"ab"), AWAY], AWAY)
    second.on("ReadBlob", AWAY)
    with pytest.raises(Unavailable):
        list(client.read_blob(bytes(32)))


@contextmanager
def one(**options: Any) -> Iterator[tuple[ScriptedPlanner, PlannerClient, list[str]]]:
    """A planner, a client that knows it alone, and what the client says."""
    messages: list[str] = []
    with (
        scripted_planner() as (planner, address),
        PlannerClient(address, timeout_seconds=WAIT_SECONDS, on_away=messages.append, **options) as client,
    ):
        yield planner, client, messages


def test_the_only_planner_is_asked_again_once_it_has_answered() -> None:
    with one() as (planner, client, messages):
        planner.on("GetPlanOperation", OPERATION, AWAY, AWAY, OPERATION, AWAY, OPERATION)
        for calls in (1, 4, 6):
            assert client.get_plan_operation("plan-1").id == "plan-1"
            assert asked(planner) == [calls]
        assert len(messages) == 2
        assert messages[0].endswith("asking again for 20 s, in case it is being restarted")


@pytest.mark.parametrize(
    ("refusal", "who"),
    [
        (NotLeading("another leads"), "no planner-server that leads"),
        (AwayForNow("its database does not answer"), "no planner-server that has its database"),
    ],
    ids=["another leads", "its database is away"],
)
def test_the_only_planner_is_asked_again_until_it_has_what_it_needs(refusal: PlannerError, who: str) -> None:
    """One that was killed is back before it has lost the lead that it had, and a database is restarted too."""
    with one() as (planner, client, messages):
        planner.on("GetPlanOperation", OPERATION, refusal, refusal, OPERATION)
        for calls in (1, 4):
            assert client.get_plan_operation("plan-1").id == "plan-1"
            assert asked(planner) == [calls]
        assert [message.partition(" answers")[0] for message in messages] == [who]


def test_one_that_does_not_lead_is_not_waited_for_where_it_never_answered() -> None:
    with one() as (planner, client, messages):
        planner.on("GetPlanOperation", NotLeading("another leads"))
        with pytest.raises(NotLeading, match="another leads"):
            client.get_plan_operation("plan-1")
        assert (asked(planner), messages) == ([1], [])


def test_a_call_that_an_ending_planner_drops_is_asked_again() -> None:
    with one() as (planner, client, _):
        planner.on("GetPlanOperation", OPERATION, DROPPED, AWAY, OPERATION)
        for calls in (1, 4):
            assert client.get_plan_operation("plan-1").id == "plan-1"
            assert asked(planner) == [calls]
        planner.on("DeletePlan", DROPPED)
        with pytest.raises(Unavailable, match="no planner-server answers"):
            client.delete_plan("plan-1")


def test_a_call_with_a_time_of_its_own_does_not_outlast_it() -> None:
    with one() as (planner, client, _):
        planner.on("GetPlanOperation", OPERATION, AWAY)
        client.get_plan_operation("plan-1")
        request = planner_pb2.GetPlanOperationRequest(operation_id="plan-1")
        with pytest.raises(Unavailable):
            client._connection.call(client._connection.stub.GetPlanOperation, request, timeout_seconds=0.4)
        assert asked(planner)[0] <= 3


def test_each_try_has_the_whole_time_of_a_call() -> None:
    """An absence does not count as time in which a planner answers."""
    assert _Turns(1, Restarts(["a:1"]), 5.0, is_total=False).remaining() == 5.0
    total = _Turns(1, Restarts(["a:1"]), 5.0, is_total=True).remaining()
    assert total is not None
    assert total < 5.0


def test_pauses_double_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("planner.client.failover.pause", pauses.append)
    turns = _Turns(2, Restarts(["a:1", "b:1"], 600.0, tell=lambda text: None), None, is_total=True)
    assert all(turns.go_on(grpc.RpcError()) for _ in range(12))
    assert pauses == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]


def test_one_that_never_answered_is_given_up_at_once() -> None:
    with one() as (planner, client, messages):
        planner.on("GetPlanOperation", AWAY)
        with pytest.raises(Unavailable):
            client.get_plan_operation("plan-1")
        assert (asked(planner), messages) == ([1], [])


def test_it_is_given_up_in_the_end() -> None:
    with one(restart_seconds=1.0) as (planner, client, messages):
        planner.on("GetPlanOperation", OPERATION, AWAY)
        client.get_plan_operation("plan-1")
        with pytest.raises(Unavailable):
            client.get_plan_operation("plan-1")
        assert asked(planner) == [4]
        assert len(messages) == 1


def test_neither_a_refusal_with_a_reason_nor_a_deletion_is_asked_again() -> None:
    with one() as (planner, client, messages):
        planner.on("GetPlanOperation", OPERATION, Unavailable("the daemon cannot be reached"))
        client.get_plan_operation("plan-1")
        with pytest.raises(Unavailable, match="the daemon cannot be reached"):
            client.get_plan_operation("plan-1")
        planner.on("DeletePlan", AWAY)
        with pytest.raises(Unavailable):
            client.delete_plan("plan-1")
        assert (asked(planner), messages) == ([3], [])


def test_a_planner_that_nobody_has_heard_of_yet_is_waited_for_where_asked_to() -> None:
    """Where somebody listens at its address and says nothing of use, it is no planner that starts."""
    with one(awaits_first=True) as (planner, client, messages):
        planner.on("GetPlanOperation", AWAY)
        with pytest.raises(Unavailable):
            client.get_plan_operation("plan-1")
        assert (asked(planner), messages) == ([1], [])
    with PlannerClient(NOBODY, awaits_first=True, restart_seconds=1.0, on_away=messages.append) as client:
        with pytest.raises(Unavailable):
            client.get_plan_operation("plan-1")
        assert len(messages) == 1
