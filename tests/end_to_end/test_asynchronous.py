"""A program of an event loop from the module to its outputs, over real daemons."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn

from planner.client import AsyncPlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import DeploymentEvent, DeploymentState
from planner.plan.options import CutMode
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.services


async def test_an_event_loop_goes_from_a_module_to_its_outputs(cluster: LocalCluster) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    batches = [torch.randn(5, 3) for _ in range(6)]
    events: list[DeploymentEvent] = []
    async with AsyncPlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client:
        graph = await client.submit(export(module, (batches[0],)), "asynchronous")
        assert [one.id async for one in client.list_graphs(name="asynchronous")] == [graph.id]
        plan = await client.create_plan(graph.id, CutMode(module_paths=("1",)))
        deployment = await client.deploy(plan.id, on_event=events.append)
        try:
            assert events[-1].state is DeploymentState.READY
            async with await client.pipeline(deployment.id) as pipeline:
                streamed = [output async for output in pipeline.run(batches)]
                at_once = await asyncio.gather(*map(pipeline, batches))
            seen: list[DeploymentState] = []
            watching = asyncio.create_task(_watch(client, deployment.id, seen))
            await eventually(lambda: DeploymentState.READY in seen)
        finally:
            await client.stop(deployment.id)
        await watching
    with torch.no_grad():
        expected = torch.stack([module(batch) for batch in batches])
    assert torch.equal(torch.stack(streamed), expected)
    assert torch.equal(torch.stack(at_once), expected)
    assert seen[-1] is DeploymentState.STOPPED


async def _watch(client: AsyncPlannerClient, deployment_id: str, seen: list[DeploymentState]) -> None:
    async for event in client.watch(deployment_id):
        seen.append(event.state)
