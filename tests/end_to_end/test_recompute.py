"""Stages of a real model make masks and position tables again rather than wait for them over a slow link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.local_cluster import LocalCluster
from planner.client.records import GraphRecord, StoredPlan
from planner.cost.inventory import Inventory, LinkSpeed
from planner.cost.sources import RateSource
from planner.graph.ir import Graph, ValueKind
from planner.plan.assignment import assignment_of
from planner.plan.options import OptimalMode, PlanOptions, RatesFrom, Routing
from planner.plan.split import stage_graph
from planner.planning import explain_plan
from tests.builders.case import Case
from tests.builders.llama import llama
from tests.builders.tokens import token_batch
from tests.end_to_end.test_pipeline_equality import assert_tree_equal
from tests.nightly import nightly

pytestmark = pytest.mark.services

# What decides is given with the devices, so that nothing that was measured on them plays a part.
FLOPS_PER_SECOND, MEMORY_BYTES_PER_SECOND = 1e11, 2e10
SLOW = LinkSpeed(bytes_per_second=3e7, latency_seconds=1e-5)
SIZES = {"batch": 1, "sequence": 64}
LAYERS = 4
# A layer that each stage has to hold, so that every stage needs the mask and the tables.
HELD = (0, 1, 3)
EFFORT = 0.1


@pytest.fixture(scope="module")
def case() -> Case:
    return llama(layers=LAYERS)


@pytest.fixture(scope="module")
def graph(cluster: LocalCluster, case: Case) -> Iterator[GraphRecord]:
    with PlannerClient(cluster.planner_address) as client:
        yield client.submit(export(case.module, kwargs=dict(case.kwargs), dynamic_shapes=case.dynamic_shapes))


def planned(client: PlannerClient, graph: GraphRecord, routing: Routing, recompute: bool) -> StoredPlan:
    registered = sorted((one.device for one in client.list_devices()), key=lambda device: device.id)[: len(HELD)]
    devices = tuple(
        replace(one, flops_per_second=FLOPS_PER_SECOND, memory_bytes_per_second=MEMORY_BYTES_PER_SECOND)
        for one in registered
    )
    options = PlanOptions(
        mode=OptimalMode(num_stages=len(HELD), recompute=recompute, effort=EFFORT),
        routing=routing,
        fixed=tuple((f"model.layers.{layer}", device.id) for layer, device in zip(HELD, devices, strict=True)),
        symbol_values=tuple(sorted(SIZES.items())),
        rates_from=RatesFrom.OWN,
    )
    plan = client.create_plan(graph.id, options, inventory=Inventory(devices=devices, default_link=SLOW))
    assert [(source.rates, source.profile_ids) for source in plan.cost_sources] == [(RateSource.GIVEN, ())]
    return plan


def recomputed_modules(graph: Graph, plan: StoredPlan) -> set[str]:
    return {graph.nodes[node].module_path for nodes in assignment_of(plan).recomputed for node in nodes}


def num_tensors_sent(plan: StoredPlan) -> int:
    """Sizes are ints; they travel with what has them."""
    tensors = {entry.value_id for stage in plan.stages for entry in stage.liveness if entry.kind is ValueKind.TENSOR}
    return sum(len(tensors.intersection(edge.value_ids)) for edge in plan.edges)


@pytest.mark.parametrize("routing", [Routing.DIRECT, *nightly([Routing.RELAY])])
def test_what_is_made_again_is_not_sent(
    client: PlannerClient, case: Case, graph: GraphRecord, routing: Routing
) -> None:
    plain = planned(client, graph, routing, recompute=False)
    plan = planned(client, graph, routing, recompute=True)
    assert client.get_plan(plan.id) == plan
    assert plan.bottleneck_seconds < plain.bottleneck_seconds
    assert num_tensors_sent(plan) < num_tensors_sent(plain)
    assert sum(edge.size_bytes for edge in plan.edges) < sum(edge.size_bytes for edge in plain.edges)
    assert not any(stage.recomputed_ranges for stage in (*plain.stages, plan.stages[0]))
    program = client.read_graph(graph.id)
    assert {"model", "model.rotary_emb"} <= recomputed_modules(program, plan)
    last = stage_graph(program, plan, len(HELD) - 1)
    assert len(last.nodes) == plan.stages[-1].num_nodes + plan.stages[-1].num_recomputed_nodes
    assert any("of earlier stages again" in line for line in explain_plan(program, plan))

    deployment = client.deploy(plan.id)
    try:
        with client.pipeline(deployment.id) as pipeline:
            batches = [Batch(kwargs={**token_batch(*sizes), "use_cache": False}) for sizes in ((2, 8), (8, 64), (1, 3))]
            for batch, result in zip(batches, pipeline.run(batches), strict=True):
                with torch.no_grad():
                    assert_tree_equal(result, case.module(**batch.kwargs))
    finally:
        client.stop(deployment.id)
