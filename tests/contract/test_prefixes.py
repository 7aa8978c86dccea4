"""The beginning of an id in the place of the id, whatever it names."""

from __future__ import annotations

import pytest

from protos.v1 import planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, balanced, create_graph, inventory_message, refused, wait_plan
from tests.contract.conftest import on_both
from tests.contract.graphs import chain_bytes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
ENOUGH = 11


@on_both
async def test_a_prefix_serves_wherever_an_id_does(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    create_request = planner_pb2.CreateInventoryRequest(inventory=inventory_message())
    inventory = await planner.CreateInventory(create_request, timeout=WAIT_SECONDS)
    request = planner_pb2.CreatePlanRequest(
        graph_id=graph.id[:ENOUGH], inventory_id=inventory.id[:ENOUGH], options=balanced()
    )
    operation = await planner.CreatePlan(request, timeout=WAIT_SECONDS)
    plan_id = (await wait_plan(planner, operation.id[:ENOUGH])).id
    assert plan_id == operation.id
    plan = await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=plan_id[:ENOUGH]), timeout=WAIT_SECONDS)
    assert (plan.id, plan.graph_id) == (plan_id, graph.id)
    by_graph = planner_pb2.ListPlansRequest(graph_id=graph.id[:ENOUGH])
    assert [one.id for one in (await planner.ListPlans(by_graph, timeout=WAIT_SECONDS)).plans] == [plan_id]
    times = planner_pb2.ImportTimesRequest(
        graph_id=graph.id[:ENOUGH], device_kind=name, times=[planner_pb2.NodeTime(node=0, seconds=1.0)]
    )
    profile = await planner.ImportTimes(times, timeout=WAIT_SECONDS)
    # It has no rates, and is known.
    request.options.rates_from_profiles.append(profile.id[:ENOUGH])
    with refused("INVALID_OPTIONS") as refusal:
        await planner.CreatePlan(request, timeout=WAIT_SECONDS)
    assert profile.id in refusal.message
    await planner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=plan_id[:ENOUGH]), timeout=WAIT_SECONDS)
    with refused("NOT_FOUND") as refusal:
        await planner.GetPlan(planner_pb2.GetPlanRequest(plan_id=plan_id[:ENOUGH]), timeout=WAIT_SECONDS)
    assert f"plan {plan_id} was deleted" in refusal.message
