"""Measured times: given, stored, listed, and used by the plans that come after."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from planner.cost.roofline import node_costs
from planner.wire.graph import graph_from_bytes
from planner.wire.inventory import inventory_from_proto
from protos.v1 import plan_pb2, planner_pb2, planner_pb2_grpc
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, balanced, create_graph, inventory_message, refused, wait_plan
from tests.contract.conftest import StartServer, on_both, open_channel
from tests.contract.graphs import chain_bytes
from tests.contract.scripted_daemon import ScriptedDaemon
from tests.waiting import eventually

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]


def import_request(graph_id: str, seconds: dict[int, float], **more: object) -> planner_pb2.ImportTimesRequest:
    times = [planner_pb2.NodeTime(node=node, seconds=node_seconds) for node, node_seconds in seconds.items()]
    return planner_pb2.ImportTimesRequest(graph_id=graph_id, device_kind="cpu", times=times, **more)


async def plan_of(planner: PlannerServiceStub, graph_id: str) -> plan_pb2.Plan:
    request = planner_pb2.CreatePlanRequest(
        graph_id=graph_id, inventory=inventory_message(), options=balanced(num_stages=2)
    )
    operation = await wait_plan(planner, (await planner.CreatePlan(request)).id)
    assert operation.state == planner_pb2.OPERATION_STATE_SUCCEEDED, operation
    return await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=operation.id))


async def test_plan_says_where_its_seconds_come_from(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    before = await plan_of(planner, graph.id)
    assert [(one.device_kind, one.num_measured, one.rates) for one in before.cost_sources] == [
        ("cpu", 0, plan_pb2.RATE_SOURCE_ROOFLINE)
    ]
    times = dict.fromkeys(range(graph.num_nodes), 0.25)
    record = await planner.ImportTimes(import_request(graph.id, times, source="a stopwatch"))
    assert (record.num_nodes, record.num_measured) == (graph.num_nodes, graph.num_nodes)
    assert record.source == "a stopwatch"
    assert math.isclose(record.total_seconds, 0.25 * graph.num_nodes)
    after = await plan_of(planner, graph.id)
    assert [(one.device_kind, one.num_measured) for one in after.cost_sources] == [("cpu", graph.num_nodes)]
    assert math.isclose(sum(stage.compute_seconds for stage in after.stages), 0.25 * graph.num_nodes)


async def test_node_without_a_time_keeps_its_prediction(planner: PlannerServiceStub, name: str) -> None:
    content = chain_bytes(name=name)
    graph = await create_graph(planner, content)
    await planner.ImportTimes(import_request(graph.id, {0: 1.0}))
    plan = await plan_of(planner, graph.id)
    inventory = inventory_from_proto(inventory_message())
    predicted = node_costs(graph_from_bytes(content), inventory.devices, {}).seconds[0]
    assert math.isclose(sum(stage.compute_seconds for stage in plan.stages), 1.0 + predicted[1:].sum())


@on_both
async def test_profile_reads_back_as_it_was_given(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    times = {node: 1e-6 * (node + 1) for node in range(graph.num_nodes)}
    record = await planner.ImportTimes(import_request(graph.id, times, num_threads=3))
    profile = await planner.GetProfile(planner_pb2.GetProfileRequest(profile_id=record.id))
    assert {entry.node: entry.seconds for entry in profile.times} == times
    assert record.num_threads == 3
    assert profile.record == record


@on_both
async def test_newer_times_take_the_place_of_older(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    older = await planner.ImportTimes(import_request(graph.id, {0: 1.0}))
    newer = await planner.ImportTimes(import_request(graph.id, {1: 2.0}))
    listed = await planner.ListProfiles(planner_pb2.ListProfilesRequest(graph_id=graph.id))
    assert [record.id for record in listed.profiles] == [newer.id]
    with refused("NOT_FOUND"):
        await planner.GetProfile(planner_pb2.GetProfileRequest(profile_id=older.id))


async def test_deleted_times_are_used_no_more(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    record = await planner.ImportTimes(import_request(graph.id, {0: 1.0}))
    await planner.DeleteProfile(planner_pb2.DeleteProfileRequest(profile_id=record.id))
    assert (await plan_of(planner, graph.id)).cost_sources[0].num_measured == 0


async def test_lists_filter_by_kind(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    await planner.ImportTimes(import_request(graph.id, {0: 1.0}))
    for kind, expected in (("CPU", 1), ("h200", 0)):
        request = planner_pb2.ListProfilesRequest(graph_id=graph.id, device_kind=kind)
        reply = await planner.ListProfiles(request)
        assert len(reply.profiles) == expected


@pytest.mark.parametrize(
    ("seconds", "more", "says"),
    [
        ({}, {}, "times is empty"),
        ({0: -1.0}, {}, "node 0: seconds is -1.0"),
        ({0: math.nan}, {}, "node 0: seconds is nan"),
        ({2: 1.0, 1: 1.0}, {}, "node 1 stands after node 2"),
        ({10**6: 1.0}, {}, "node 1000000"),
        ({0: 1.0}, {"symbol_values": {"batch": 2}}, "'batch'"),
    ],
)
async def test_times_that_do_not_fit_are_refused(
    planner: PlannerServiceStub, name: str, seconds: dict[int, float], more: dict[str, object], says: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    with refused("INVALID_ARGUMENT") as refusal:
        await planner.ImportTimes(import_request(graph.id, seconds, **more))
    assert says in refusal.message


async def test_profiling_without_a_daemon_says_so(start_server: StartServer) -> None:
    async with open_channel((await start_server()).address) as channel:
        planner = PlannerServiceStub(channel)
        graph = await create_graph(planner, chain_bytes())
        for request in (
            planner_pb2.ProfileGraphRequest(graph_id=graph.id),
            planner_pb2.ProfileGraphRequest(graph_id=graph.id, device_ids=["node/gpu0"]),
            planner_pb2.ProfileGraphRequest(graph_id=graph.id, device_kinds=["h200"]),
        ):
            with refused("NOT_FOUND"):
                async for _ in planner.ProfileGraph(request):
                    pass


@pytest_asyncio.fixture(loop_scope="session")
async def daemon(channel: grpc.aio.Channel, name: str) -> AsyncIterator[ScriptedDaemon]:
    """One that is registered, for a device of the test's own."""
    running = ScriptedDaemon(f"{name}/cpu0")
    await running.start()
    await running.register(planner_pb2_grpc.DaemonRegistryServiceStub(channel))
    yield running
    await running.stop()


def profile_request(graph_id: str, daemon: ScriptedDaemon, **more: object) -> planner_pb2.ProfileGraphRequest:
    return planner_pb2.ProfileGraphRequest(graph_id=graph_id, device_ids=[daemon.device_id], **more)


async def test_a_profile_on_a_daemon_tells_its_progress_and_is_stored(
    planner: PlannerServiceStub, daemon: ScriptedDaemon, name: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    request = profile_request(graph.id, daemon, repetitions=10_000, warmup=3, num_threads=2)
    answers = [answer async for answer in planner.ProfileGraph(request, timeout=WAIT_SECONDS)]
    assert [(one.device_id, one.device_kind) for one in answers] == [(daemon.device_id, "cpu")] * 3
    assert [(one.num_done, one.num_distinct) for one in answers[:2]] == [(1, 3), (3, 3)]
    assert [one.HasField("profile") for one in answers] == [False, False, True]
    [asked] = daemon.profiles
    assert (asked.graph_sha256.hex(), asked.repetitions, asked.warmup, asked.num_threads) == (graph.id, 10_000, 3, 2)
    stored = await planner.GetProfile(planner_pb2.GetProfileRequest(profile_id=answers[-1].profile.id))
    assert stored.record == answers[-1].profile
    assert stored.record.num_threads == 2
    assert (stored.record.num_nodes, stored.record.num_measured, stored.record.total_seconds) == (4, 3, 1.25)
    assert [(time.node, time.seconds) for time in stored.times] == [(0, 0.5), (2, 0.5), (3, 0.25)]
    assert [(node.node, node.reason) for node in stored.unmeasured] == [(1, "it reads a file")]
    assert daemon.device_id in stored.record.source


async def test_others_of_the_host_are_neighbours_unless_told_otherwise(
    planner: PlannerServiceStub, channel: grpc.aio.Channel, daemon: ScriptedDaemon, name: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    other = ScriptedDaemon(f"{name}/cpu1")
    await other.start()
    registry = planner_pb2_grpc.DaemonRegistryServiceStub(channel)
    for one in (daemon, other):
        await one.register(registry, host=name)
    for request in (
        profile_request(graph.id, daemon),
        profile_request(graph.id, daemon, num_neighbours=0),
        profile_request(graph.id, daemon, num_neighbours=3),
    ):
        async for _ in planner.ProfileGraph(request, timeout=WAIT_SECONDS):
            pass
    await other.stop()
    assert [profile_request.num_neighbours for profile_request in daemon.profiles] == [1, 0, 3]


async def test_a_profile_that_its_daemon_refuses_is_not_stored(
    planner: PlannerServiceStub, daemon: ScriptedDaemon, name: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    daemon.fail_on = "profile"
    with refused("INTERNAL") as refusal:
        async for _ in planner.ProfileGraph(profile_request(graph.id, daemon), timeout=WAIT_SECONDS):
            pass
    assert refusal.message == f"{daemon.device_id}: profile went wrong"
    listed = await planner.ListProfiles(planner_pb2.ListProfilesRequest(graph_id=graph.id))
    assert not listed.profiles


async def test_a_callers_deadline_is_the_daemons_too_and_what_it_does_ends_with_the_call(
    planner: PlannerServiceStub, daemon: ScriptedDaemon, name: str
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    daemon.hold = "profile"
    call = planner.ProfileGraph(profile_request(graph.id, daemon), timeout=WAIT_SECONDS)
    await call.read()
    assert daemon.remaining_seconds is not None
    # What travels with a call is rounded up.
    assert daemon.remaining_seconds < 2 * WAIT_SECONDS
    # Its first answer may be here before the daemon is done with sending it.
    await eventually(lambda: "profile" in daemon.asked, "the daemon to have told its first node")
    call.cancel()
    await eventually(lambda: "profile" in daemon.cancelled, "the daemon's profile to end with its caller's call")
    listed = await planner.ListProfiles(planner_pb2.ListProfilesRequest(graph_id=graph.id))
    assert not listed.profiles


@pytest.mark.parametrize(
    ("field", "most"), [("repetitions", 10_000), ("warmup", 10_000), ("num_threads", 4096), ("num_neighbours", 4096)]
)
async def test_more_than_anybody_waits_for_or_has_is_refused(
    planner: PlannerServiceStub, daemon: ScriptedDaemon, name: str, field: str, most: int
) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    with refused("INVALID_ARGUMENT") as refusal:
        async for _ in planner.ProfileGraph(profile_request(graph.id, daemon, **{field: most + 1})):
            pass
    assert refusal.message == f"{field} is {most + 1}, needs 0 to {most}"
    assert not daemon.profiles
