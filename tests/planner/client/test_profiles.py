"""Measured times: what is asked of the server, and what comes back as it goes on."""

from __future__ import annotations

import pytest

from planner.client import PlannerClient, profiles
from planner.client.records import ProfileProgress
from planner.cost.measured import MeasuredTimes
from planner.errors import Conflict
from protos.v1 import planner_pb2
from tests.planner.client.scripted_planner import ScriptedPlanner

pytestmark = pytest.mark.services

Scripted = tuple[ScriptedPlanner, PlannerClient]


def record(profile_id: str, **more: object) -> planner_pb2.ProfileRecord:
    return planner_pb2.ProfileRecord(id=profile_id, graph_id="g", device_kind="cpu", **more)  # type: ignore[arg-type]


def test_progress_is_told_and_profiles_are_given_back(scripted: Scripted) -> None:
    script, client = scripted
    step = planner_pb2.ProfileGraphResponse
    script.on(
        "ProfileGraph",
        [
            step(device_id="a", device_kind="cpu", num_done=1, num_distinct=2),
            step(device_id="a", device_kind="cpu", num_done=2, num_distinct=2),
            step(profile=record("p1", symbol_values={"seq": 3, "batch": 2}, num_nodes=5, num_measured=4)),
            step(device_id="b", device_kind="h100", num_done=1, num_distinct=1),
            step(profile=record("p2", calibration=planner_pb2.Calibration(num_nodes=3, memory_bytes_per_second=1e9))),
        ],
    )
    seen: list[ProfileProgress] = []
    first, second = client.profile_graph(
        "g",
        device_ids=["a"],
        device_kinds=["h100"],
        symbol_values={"batch": 2},
        repetitions=7,
        warmup=4,
        num_neighbours=0,
        on_progress=seen.append,
    )
    assert [(one.device_id, one.device_kind, one.num_done, one.num_distinct) for one in seen] == [
        ("a", "cpu", 1, 2),
        ("a", "cpu", 2, 2),
        ("b", "h100", 1, 1),
    ]
    assert (first.id, first.symbol_values, first.num_nodes, first.num_measured) == (
        "p1",
        (("batch", 2), ("seq", 3)),
        5,
        4,
    )
    assert first.calibration is None
    assert second.calibration is not None
    assert second.calibration.device_kind == "cpu"
    [request] = script.requests("ProfileGraph")
    assert (request.graph_id, list(request.device_ids), list(request.device_kinds)) == ("g", ["a"], ["h100"])
    assert (dict(request.symbol_values), request.repetitions, request.warmup) == ({"batch": 2}, 7, 4)
    assert request.HasField("num_neighbours")


def test_profiles_are_given_back_without_anyone_to_tell(scripted: Scripted) -> None:
    script, client = scripted
    script.on("ProfileGraph", [planner_pb2.ProfileGraphResponse(num_done=1, num_distinct=1)])
    assert client.profile_graph("g") == ()
    assert not script.requests("ProfileGraph")[0].HasField("num_neighbours")


def test_a_device_that_is_taken_ends_it(scripted: Scripted) -> None:
    script, client = scripted
    script.on("ProfileGraph", [planner_pb2.ProfileGraphResponse(num_done=1), Conflict("a is taken")])
    with pytest.raises(Conflict, match="a is taken"):
        client.profile_graph("g")


@pytest.mark.parametrize(("named", "meant"), [(None, "theirs"), ("mine", "mine")])
def test_imported_times_are_of_the_graph_that_is_named(scripted: Scripted, named: str | None, meant: str) -> None:
    script, client = scripted
    script.on("ImportTimes", record("p1", source="bench"))
    times = MeasuredTimes(device_kind="cpu", graph_id="theirs", seconds=((0, 0.5),))
    assert client.import_times(times, named).source == "bench"
    [call] = script.calls
    assert call.request.graph_id == meant
    assert [(one.node, one.seconds) for one in call.request.times] == [(0, 0.5)]
    assert call.remaining_seconds is not None
    assert call.remaining_seconds > profiles.IMPORT_SECONDS / 2


def test_a_profile_is_read_whole(scripted: Scripted) -> None:
    script, client = scripted
    script.on(
        "GetProfile",
        planner_pb2.Profile(
            record=record("p1", symbol_values={"batch": 2}, source="s"),
            times=[planner_pb2.NodeTime(node=0, seconds=0.5), planner_pb2.NodeTime(node=2, seconds=1.5)],
            unmeasured=[planner_pb2.UnmeasuredNode(node=1, reason="it is a constant")],
        ),
    )
    profile = client.get_profile("p1")
    assert profile.record.id == "p1"
    assert profile.times.seconds == ((0, 0.5), (2, 1.5))
    assert profile.times.symbol_values == (("batch", 2),)
    assert profile.unmeasured == ((1, "it is a constant"),)


def test_profiles_are_listed_and_deleted(scripted: Scripted) -> None:
    script, client = scripted
    page = planner_pb2.ListProfilesResponse
    script.on("ListProfiles", page(profiles=[record("p1")], next_page_token="t"), page(profiles=[record("p2")]))
    script.on("DeleteProfile", planner_pb2.DeleteProfileResponse())
    assert [profile.id for profile in client.list_profiles(graph_id="g", device_kind="cpu")] == ["p1", "p2"]
    request = script.requests("ListProfiles")[0]
    assert (request.graph_id, request.device_kind) == ("g", "cpu")
    client.delete_profile("p1")
    assert script.requests("DeleteProfile")[0].profile_id == "p1"
