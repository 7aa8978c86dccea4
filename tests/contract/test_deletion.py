"""Deletions over the wire: refused with the names of what is in their way, and final."""

from __future__ import annotations

import pytest

from protos.v1 import planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, balanced, create_graph, inventory_message, refused, wait_plan
from tests.contract.conftest import on_both
from tests.contract.graphs import chain_bytes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]


@on_both
async def test_what_a_plan_needs_goes_after_the_plan(planner: PlannerServiceStub, name: str) -> None:
    graph = await create_graph(planner, chain_bytes(name=name))
    create_request = planner_pb2.CreateInventoryRequest(inventory=inventory_message())
    inventory = await planner.CreateInventory(create_request, timeout=WAIT_SECONDS)
    request = planner_pb2.CreatePlanRequest(graph_id=graph.id, inventory_id=inventory.id, options=balanced())
    plan = await wait_plan(planner, (await planner.CreatePlan(request, timeout=WAIT_SECONDS)).id)
    deletions = (
        (planner.DeleteGraph, planner_pb2.DeleteGraphRequest(graph_id=graph.id), graph.id),
        (planner.DeleteInventory, planner_pb2.DeleteInventoryRequest(inventory_id=inventory.id[:12]), inventory.id),
    )
    for call, deletion, _ in deletions:
        with refused("CONFLICT") as refusal:
            await call(deletion, timeout=WAIT_SECONDS)
        assert refusal.metadata == {"plan": plan.id}
        assert f"is needed by plan {plan.id}; delete those first" in refusal.message
    await planner.DeletePlan(planner_pb2.DeletePlanRequest(plan_id=plan.id), timeout=WAIT_SECONDS)
    for call, deletion, whole_id in deletions:
        assert (await call(deletion, timeout=WAIT_SECONDS)).id == whole_id
        with refused("NOT_FOUND"):
            await call(deletion, timeout=WAIT_SECONDS)
    assert (await create_graph(planner, chain_bytes(name=name))).id == graph.id


async def test_unknown_deployment_is_not_deleted(planner: PlannerServiceStub) -> None:
    with refused("NOT_FOUND"):
        await planner.DeleteDeployment(planner_pb2.DeleteDeploymentRequest(deployment_id="dep-0"), timeout=WAIT_SECONDS)
