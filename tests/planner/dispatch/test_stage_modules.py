"""What daemons are told of a plan: their stages, their tensors, and the edges and lanes that touch them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cost.inventory import Device, Inventory
from planner.dispatch.stage_modules import StageRequests, prepare_requests
from planner.errors import NotFound
from planner.graph.ir import Graph, WeightFile
from planner.plan.plan import Plan
from planner.store.blobs import BlobStore
from planner.store.deployment_records import Deployment, RecoveryPolicy
from planner.store.weights import index_safetensors
from planner.wire.graph import graph_from_bytes, graph_to_bytes
from protos.v1 import graph_pb2
from protos.v1.stage_daemon_pb2 import ActionKind
from tests.builders.plans import plan_of
from tests.contract.graphs import chain_weights, linear_chain, relu_chain
from tests.planner.store.records import deployment, placement

WEIGHTS = chain_weights(num_layers=4, width=8)
FILE = WeightFile(sha256=hashlib.sha256(WEIGHTS).digest(), size_bytes=len(WEIGHTS))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    store = BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")
    store.put(WEIGHTS)
    return store


def deployed(plan: Plan) -> Deployment:
    stages = tuple(placement(stage.index, stage.device_ids[0]) for stage in plan.stages)
    return deployment(stages=stages, generation=7)


def prepare(blobs: BlobStore, graph: Graph, plan: Plan, edge_seconds: float = 9.5) -> StageRequests:
    digest = blobs.put(graph_to_bytes(graph))
    return prepare_requests(deployed(plan), plan, digest, (FILE,), blobs, edge_seconds)


def test_workers_are_counted_by_host(blobs: BlobStore) -> None:
    graph = linear_chain(4, 8)
    hosts = {"a": "one", "b": "two", "c": "one", "unused": "two"}
    inventory = Inventory(
        devices=tuple(Device(id=name, kind="cpu", host=host, memory_bytes=2**40) for name, host in hosts.items())
    )
    plan = plan_of(graph, [0, 1, 2, 3], device_of_stage=[0, 1, 2, 0], inventory=inventory)
    requests = prepare(blobs, graph, plan).load
    assert {name: request.workers_on_host for name, request in requests.items()} == {"a": 2, "b": 1, "c": 2}
    assert {request.num_threads for request in requests.values()} == {0}


@pytest.mark.parametrize("recovery", RecoveryPolicy)
def test_weights_are_kept_where_another_generation_may_follow(blobs: BlobStore, recovery: RecoveryPolicy) -> None:
    graph = linear_chain(4, 8)
    plan = plan_of(graph, [0, 0, 1, 1], device_of_stage=[0, 1])
    deployment = replace(deployed(plan), recovery=recovery)
    requests = prepare_requests(deployment, plan, blobs.put(graph_to_bytes(graph)), (FILE,), blobs, 1.0)
    assert {request.keep_states for request in requests.load.values()} == {recovery is not RecoveryPolicy.MANUAL}


def test_each_device_loads_its_stages_from_the_bytes_of_its_tensors(blobs: BlobStore) -> None:
    graph = linear_chain(4, 8)
    plan = plan_of(graph, [0, 0, 1, 2], device_of_stage=[0, 1, 0])
    requests = prepare(blobs, graph, plan)
    assert list(requests.load) == ["node0/cpu", "node1/cpu"]
    first, second = requests.load.values()
    assert (first.deployment_id, first.generation, first.blob_address) == ("dep-1", 7, "")
    assert [module.stage for module in first.stages] == [0, 2]
    assert [module.stage for module in second.stages] == [1]
    where = index_safetensors(blobs.read_range, FILE)
    names = {module.stage: [state.name for state in module.states] for module in (*first.stages, *second.stages)}
    assert names == {0: ["layers.0.weight", "layers.1.weight"], 1: ["layers.2.weight"], 2: ["layers.3.weight"]}
    for module in (*first.stages, *second.stages):
        part = graph_from_bytes(blobs.read(module.graph_sha256))
        assert [state.name for state in part.states] == names[module.stage]
        for state in module.states:
            location = where[state.name]
            assert (state.file_sha256, state.offset_bytes, state.length_bytes) == (
                FILE.sha256,
                location.offset_bytes,
                location.length_bytes,
            )


def test_each_device_hears_of_its_own_edges_lanes_inputs_and_outputs(blobs: BlobStore) -> None:
    graph = linear_chain(4, 8)
    requests = prepare(blobs, graph, plan_of(graph, [0, 1, 2, 2]))
    assert list(requests.connect) == ["node0/cpu", "node1/cpu", "node2/cpu"]
    first, second, third = requests.connect.values()
    ends = [
        [
            (one.id, one.source_stage, one.target_stage, one.source_device_id, one.target_device_id)
            for one in request.edges
        ]
        for request in (first, second, third)
    ]
    to_second, to_third = (0, 0, 1, "node0/cpu", "node1/cpu"), (1, 1, 2, "node1/cpu", "node2/cpu")
    assert ends == [[to_second], [to_second, to_third], [to_third]]
    assert [value.name for one in (first, second, third) for value in one.inputs] == ["x"]
    assert [value.name for one in (first, second, third) for value in one.outputs] == ["y"]
    assert (len(first.inputs), len(third.outputs)) == (1, 1)
    told_actions = [
        [(ActionKind.Name(action.kind).removeprefix("ACTION_KIND_"), action.index) for action in one.lanes[0].actions]
        for one in (first, second, third)
    ]
    assert told_actions == [
        [("TAKE_INPUT", 0), ("FORWARD", 0), ("SEND", 0)],
        [("RECEIVE", 0), ("FORWARD", 1), ("SEND", 1)],
        [("RECEIVE", 1), ("FORWARD", 2), ("GIVE_OUTPUT", 2)],
    ]
    assert not any(action.HasField("microbatch") for action in first.lanes[0].actions)
    for one in (first, second, third):
        assert (one.deployment_id, one.generation, one.deadline_seconds) == ("dep-1", 7, 9.5)
        assert one.rendezvous_address == ""


def test_a_value_on_an_edge_says_what_it_is(blobs: BlobStore) -> None:
    graph = linear_chain(2, 8)
    requests = prepare(blobs, graph, plan_of(graph, [0, 1]))
    [edge] = requests.connect["node0/cpu"].edges
    [value] = edge.values
    assert (value.value, value.name) == (3, "v3")
    assert (value.kind, value.dtype) == (graph_pb2.VALUE_KIND_TENSOR, graph_pb2.DTYPE_FLOAT32)
    assert [dim.constant for dim in value.dims] == [2, 8]


@pytest.mark.parametrize(("asked", "told"), [(3, 3), (0, 2)])
def test_as_many_microbatches_in_flight_as_planned_or_two(blobs: BlobStore, asked: int, told: int) -> None:
    graph = linear_chain(2, 8)
    plan = plan_of(graph, [0, 1])
    plan = replace(plan, options=replace(plan.options, microbatches_in_flight=asked))
    requests = prepare(blobs, graph, plan)
    assert {request.microbatches_in_flight for request in requests.connect.values()} == {told}


def test_a_graph_without_states_needs_no_weights(blobs: BlobStore) -> None:
    graph = relu_chain(3)
    plan = plan_of(graph, [0, 0, 1])
    digest = blobs.put(graph_to_bytes(graph))
    requests = prepare_requests(deployed(plan), plan, digest, (), blobs, 1.0)
    assert all(not module.states for request in requests.load.values() for module in request.stages)


def test_a_tensor_that_no_file_holds_is_named(blobs: BlobStore) -> None:
    graph = linear_chain(5, 8)
    with pytest.raises(NotFound, match=r"layers\.4\.weight"):
        prepare(blobs, graph, plan_of(graph, [0, 0, 1, 1, 1]))
