"""Rates learned from one graph reach another graph's plans only where that is asked for, and each plan records them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from planner.api.server import PlannerServer
from protos.v1 import inventory_pb2, plan_pb2, planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import balanced, create_graph, inventory_message, refused, wait_plan
from tests.contract.conftest import StartServer, open_channel
from tests.contract.graphs import chain_bytes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]

NUM_LAYERS = 10
OWN, NEWEST = plan_pb2.RATES_FROM_OWN, plan_pb2.RATES_FROM_NEWEST


@pytest_asyncio.fixture(loop_scope="session")
async def planner(start_server: StartServer) -> AsyncIterator[PlannerServiceStub]:
    """Of a server of the test's own: the newest profile of a kind is another test's where one is shared."""
    async with open_channel((await start_server()).address) as channel:
        yield PlannerServiceStub(channel)


async def graph_named(planner: PlannerServiceStub, name: str) -> planner_pb2.GraphRecord:
    return await create_graph(planner, chain_bytes(NUM_LAYERS, name=name))


async def store_times(
    planner: PlannerServiceStub, graph_id: str, seconds: float = 0.25, kind: str = "cpu", num_nodes: int = NUM_LAYERS
) -> str:
    """The profile's id. Every node takes as long, so a plan whose rates were fitted to them expects that of a node."""
    times = [planner_pb2.NodeTime(node=node, seconds=seconds) for node in range(num_nodes)]
    request = planner_pb2.ImportTimesRequest(graph_id=graph_id, device_kind=kind, times=times)
    return (await planner.ImportTimes(request)).id


async def plan_of(
    planner: PlannerServiceStub,
    graph_id: str,
    rates_from: plan_pb2.RatesFrom.ValueType = plan_pb2.RATES_FROM_UNSPECIFIED,
    profiles: tuple[str, ...] = (),
    inventory: inventory_pb2.Inventory | None = None,
) -> plan_pb2.Plan:
    options = balanced(num_stages=2)
    options.rates_from = rates_from
    options.rates_from_profiles.extend(profiles)
    request = planner_pb2.CreatePlanRequest(
        graph_id=graph_id, inventory=inventory or inventory_message(), options=options
    )
    operation = await wait_plan(planner, (await planner.CreatePlan(request)).id)
    assert operation.state == planner_pb2.OPERATION_STATE_SUCCEEDED, operation
    return await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=operation.id))


def content(plan: plan_pb2.Plan) -> bytes:
    """All that planning decides."""
    copy = plan_pb2.Plan()
    copy.CopyFrom(plan)
    copy.ClearField("id")
    copy.ClearField("created_at")
    copy.ClearField("options")
    return copy.SerializeToString(deterministic=True)


def seconds_of(plan: plan_pb2.Plan) -> float:
    return sum(stage.compute_seconds for stage in plan.stages)


def rates_of(plan: plan_pb2.Plan) -> tuple[int, list[str], list[str]]:
    (source,) = plan.cost_sources
    return source.rates, list(source.measured_profile_ids), list(source.calibration_profile_ids)


async def test_profiling_one_graph_leaves_plans_of_another_as_they_were(planner: PlannerServiceStub) -> None:
    measured, other = await graph_named(planner, "measured"), await graph_named(planner, "other")
    before = await plan_of(planner, other.id)
    profile = await store_times(planner, measured.id)
    assert content(await plan_of(planner, other.id)) == content(before)
    assert content(await plan_of(planner, other.id, OWN)) == content(before)
    assert rates_of(before) == (plan_pb2.RATE_SOURCE_ROOFLINE, [], [])
    own = await plan_of(planner, measured.id)
    assert rates_of(own) == (plan_pb2.RATE_SOURCE_CALIBRATED, [profile], [profile])
    assert math.isclose(seconds_of(own), 0.25 * NUM_LAYERS)


async def test_rates_asked_for_apply_and_are_recorded(planner: PlannerServiceStub) -> None:
    measured, other = await graph_named(planner, "measured"), await graph_named(planner, "other")
    older = await store_times(planner, measured.id, 0.25)
    newer = await store_times(planner, (await graph_named(planner, "third")).id, 0.5)
    few = await store_times(planner, (await graph_named(planner, "fourth")).id, 9.0, num_nodes=3)
    newest = await plan_of(planner, other.id, NEWEST)
    assert rates_of(newest) == (plan_pb2.RATE_SOURCE_CALIBRATED, [], [newer])
    assert math.isclose(seconds_of(newest), 0.5 * NUM_LAYERS, rel_tol=1e-3)
    assert newest.options.rates_from == NEWEST
    named = await plan_of(planner, other.id, profiles=(older,))
    assert rates_of(named) == (plan_pb2.RATE_SOURCE_CALIBRATED, [], [older])
    assert math.isclose(seconds_of(named), 0.25 * NUM_LAYERS, rel_tol=1e-3)
    assert list(named.options.rates_from_profiles) == [older]
    profile = await planner.GetProfile(planner_pb2.GetProfileRequest(profile_id=older))
    assert profile.record.graph_id == measured.id
    # Not the newest of all, which has no rates, but the newest that has.
    await planner.DeleteProfile(planner_pb2.DeleteProfileRequest(profile_id=newer))
    assert rates_of(await plan_of(planner, other.id, NEWEST))[2] == [older]
    with refused("INVALID_OPTIONS") as refusal:
        await plan_of(planner, other.id, profiles=(few,))
    assert "too few measured nodes" in refusal.message


async def test_own_times_come_before_the_newest_and_after_those_named(planner: PlannerServiceStub) -> None:
    graph, other = await graph_named(planner, "graph"), await graph_named(planner, "other")
    own = await store_times(planner, graph.id, 0.25, num_nodes=NUM_LAYERS - 1)
    foreign = await store_times(planner, other.id, 0.5)
    newest = await plan_of(planner, graph.id, NEWEST)
    assert rates_of(newest) == (plan_pb2.RATE_SOURCE_CALIBRATED, [own], [own])
    assert math.isclose(seconds_of(newest), 0.25 * NUM_LAYERS, rel_tol=1e-3)
    named = await plan_of(planner, graph.id, profiles=(foreign,))
    assert rates_of(named) == (plan_pb2.RATE_SOURCE_CALIBRATED, [own], [foreign])
    assert math.isclose(seconds_of(named), 0.25 * (NUM_LAYERS - 1) + 0.5, rel_tol=1e-3)


async def test_profiles_that_do_not_serve_are_refused_at_once(planner: PlannerServiceStub) -> None:
    graph, other = await graph_named(planner, "graph"), await graph_named(planner, "other")
    cpu = await store_times(planner, graph.id)
    same_kind = await store_times(planner, other.id)
    h200 = await store_times(planner, graph.id, kind="h200")
    for profiles, reason, says in (
        (("prof-unknown",), "NOT_FOUND", "no profile has the id 'prof-unknown'"),
        ((h200,), "INVALID_OPTIONS", "is of kind 'h200'; the devices are 'cpu'"),
        ((cpu, same_kind), "INVALID_OPTIONS", f"is of kind 'cpu', as is '{cpu}'"),
    ):
        options = plan_pb2.PlanOptions(rates_from_profiles=profiles)
        request = planner_pb2.CreatePlanRequest(graph_id=graph.id, inventory=inventory_message(), options=options)
        with refused(reason) as refusal:
            await planner.CreatePlan(request)
        assert says in refusal.message


async def test_server_can_be_set_to_the_newest(start_server: StartServer) -> None:
    server: PlannerServer = await start_server(rates_from="newest")
    async with open_channel(server.address) as channel:
        planner = PlannerServiceStub(channel)
        measured, other = await graph_named(planner, "measured"), await graph_named(planner, "other")
        profile = await store_times(planner, measured.id)
        assert rates_of(await plan_of(planner, other.id))[2] == [profile]
        assert rates_of(await plan_of(planner, other.id, OWN))[2] == []
        named = await store_times(planner, measured.id, 0.5, kind="h200")
        inventory = inventory_message()
        inventory.devices[1].kind = "h200"
        mixed = await plan_of(planner, other.id, profiles=(named,), inventory=inventory)
        profile_ids = {one.device_kind: list(one.calibration_profile_ids) for one in mixed.cost_sources}
        assert profile_ids == {"cpu": [], "h200": [named]}
