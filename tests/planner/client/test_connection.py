"""Calls of one channel: deadlines, refusals as the planner's own errors, streams that are left, pages."""

from __future__ import annotations

import itertools
import time

import grpc
import pytest

from planner.client.connection import Connection
from planner.errors import (
    Conflict,
    Corrupt,
    Infeasible,
    InvalidArgument,
    NotFound,
    PlannerError,
    ResourceExhausted,
    Unavailable,
    WrongOffset,
)
from protos.v1 import plan_pb2, planner_pb2
from tests.planner.client.cutting_proxy import late_proxy
from tests.planner.client.scripted_planner import Refusal, ScriptedPlanner
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

Scripted = tuple[ScriptedPlanner, Connection]
# What travels with a call may be rounded up.
ROUNDING_SECONDS = 2.0
GRAPH = planner_pb2.GetGraphRequest(graph_id="abc")


def test_each_call_has_the_connections_deadline_or_its_own(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", planner_pb2.GraphRecord(id="abc"))
    connection.call(connection.stub.GetGraph, GRAPH)
    connection.call(connection.stub.GetGraph, GRAPH, timeout_seconds=3 * WAIT_SECONDS)
    usual, own = (call.remaining_seconds for call in script.calls)
    assert usual is not None
    assert own is not None
    assert 0 < usual <= WAIT_SECONDS + ROUNDING_SECONDS
    assert 2 * WAIT_SECONDS < own <= 3 * WAIT_SECONDS + ROUNDING_SECONDS


def test_a_stream_has_a_deadline_only_where_one_is_given(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=b"a"), planner_pb2.ReadBlobResponse(chunk=b"b")])
    request = planner_pb2.ReadBlobRequest()
    assert [part.chunk for part in connection.stream(connection.stub.ReadBlob, request)] == [b"a", b"b"]
    list(connection.stream(connection.stub.ReadBlob, request, timeout_seconds=WAIT_SECONDS))
    without, own = (call.remaining_seconds for call in script.calls)
    assert without is None or without > 1e6
    assert own is not None
    assert own <= WAIT_SECONDS + ROUNDING_SECONDS


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
        (grpc.StatusCode.OUT_OF_RANGE, InvalidArgument),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.FAILED_PRECONDITION, Conflict),
        (grpc.StatusCode.ABORTED, Conflict),
        (grpc.StatusCode.DATA_LOSS, Corrupt),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.CANCELLED, Unavailable),
        (grpc.StatusCode.INTERNAL, PlannerError),
        (grpc.StatusCode.UNIMPLEMENTED, PlannerError),
    ],
)
def test_a_status_without_details_becomes_the_error_of_its_code(
    scripted_connection: Scripted, code: grpc.StatusCode, kind: type[PlannerError]
) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", Refusal(code=code, message="what happened"))
    with pytest.raises(PlannerError) as raised:
        connection.call(connection.stub.GetGraph, GRAPH)
    assert type(raised.value) is kind
    assert "what happened" in raised.value.message
    assert (connection.address in raised.value.message) == (kind is Unavailable)
    assert raised.value.metadata == {}


@pytest.mark.parametrize(
    "error",
    [
        Infeasible("stage 0 lacks 12 bytes", stage=0, missing_bytes=12),
        WrongOffset("it goes on from byte 7", committed_bytes=7),
        Unavailable("the daemon of n1 is gone"),
        PlannerError("internal error 12"),
    ],
)
def test_a_reason_brings_back_its_own_type_message_and_facts(
    scripted_connection: Scripted, error: PlannerError
) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", error)
    with pytest.raises(PlannerError) as raised:
        connection.call(connection.stub.GetGraph, GRAPH)
    assert type(raised.value) is type(error)
    assert (raised.value.message, raised.value.metadata) == (error.message, error.metadata)


def test_an_answer_that_does_not_come_is_unavailable(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", lambda _: time.sleep(0.5) or planner_pb2.GraphRecord())
    with pytest.raises(Unavailable, match=f"no answer in time: .*{connection.address}.*planner-cli up"):
        connection.call(connection.stub.GetGraph, GRAPH, timeout_seconds=0.1)


def test_a_stream_that_breaks_gives_what_came_before(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("ReadBlob", [planner_pb2.ReadBlobResponse(chunk=b"a"), Corrupt("not what its digest says")])
    parts = connection.stream(connection.stub.ReadBlob, planner_pb2.ReadBlobRequest())
    assert next(parts).chunk == b"a"
    with pytest.raises(Corrupt, match="not what its digest says"):
        next(parts)


def test_leaving_a_stream_ends_the_call(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("ReadBlob", (planner_pb2.ReadBlobResponse(chunk=b"a") for _ in itertools.count()))
    parts = connection.stream(connection.stub.ReadBlob, planner_pb2.ReadBlobRequest())
    next(parts)
    parts.close()
    assert script.ended.acquire(timeout=WAIT_SECONDS)


def test_pages_are_asked_for_one_after_the_other(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    names = [["a", "b"], [], ["c"]]
    tokens = ["second", "third", ""]
    script.on(
        "ListGraphs",
        *(
            planner_pb2.ListGraphsResponse(
                graphs=[planner_pb2.GraphRecord(name=name) for name in page], next_page_token=token
            )
            for page, token in zip(names, tokens, strict=True)
        ),
    )
    pages = connection.pages(connection.stub.ListGraphs, planner_pb2.ListGraphsRequest(page_size=2))
    assert script.calls == []
    assert [[graph.name for graph in page.graphs] for page in pages] == names
    assert [request.page_token for request in script.requests("ListGraphs")] == ["", "second", "third"]
    assert {request.page_size for request in script.requests("ListGraphs")} == {2}


def test_a_plan_of_many_megabytes_is_received(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("GetPlan", plan_pb2.Plan(id="p" * (12 << 20)))
    assert len(connection.call(connection.stub.GetPlan, planner_pb2.GetPlanRequest()).id) == 12 << 20


def test_a_server_that_greets_late_is_waited_for(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", planner_pb2.GraphRecord(id="abc"))
    with late_proxy(connection.address, seconds=1.0) as address:
        late = Connection(address, timeout_seconds=WAIT_SECONDS)
        assert late.call(late.stub.GetGraph, GRAPH).id == "abc"
        late.close()


def test_a_connection_that_is_closed_says_so(scripted_connection: Scripted) -> None:
    script, connection = scripted_connection
    script.on("GetGraph", planner_pb2.GraphRecord(id="abc"))
    connection.call(connection.stub.GetGraph, GRAPH)
    for _ in range(2):
        connection.close()
    message = f"^this client of {connection.address} is closed; open another to go on$"
    with pytest.raises(Conflict, match=message):
        connection.call(connection.stub.GetGraph, GRAPH)
    with pytest.raises(Conflict, match=message):
        next(connection.stream(connection.stub.WatchDeployment, planner_pb2.WatchDeploymentRequest()))
    assert len(script.calls) == 1
