"""What copies of stages are told of a stream: both ends of each channel mean the same microbatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from planner.dispatch.stage_modules import connect_requests
from planner.dispatch.stream_requests import add_stream
from planner.graph.ir import Graph
from planner.partition.objective import Training
from planner.plan.options import Routing
from planner.plan.plan import Plan
from planner.plan.verify import verify_plan
from planner.plan.written_states import why_not_copied, written_states
from protos.v1.stage_daemon_pb2 import Action, ActionKind, ConnectStagesRequest, EdgeValue
from tests.builders.plans import inventory_of, plan_of
from tests.builders.random_graphs import GraphWriter
from tests.planner.store.records import deployment, placement

Devices = Sequence[Sequence[int]]
# No number of copies below divides more often.
NUM_MICROBATCHES = 2 * 12
LAYOUTS: Sequence[Devices] = [
    ([0], [1, 2], [3]),
    ([0, 1], [2, 3, 4], [5, 0]),
    ([0, 1, 2], [3], [4, 5]),
    ([0, 1], [0, 1], [1, 0]),
    ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9], [10]),
]


def triangle() -> Graph:
    """Three nodes: the first feeds both others, and the second the third."""
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    return writer.graph(writer.multiply(first, writer.multiply(first)))


def trained(plan: Plan) -> Plan:
    return replace(plan, options=replace(plan.options, training=Training(microbatches=2)))


def three_stages(graph: Graph, devices: Devices, routing: Routing = Routing.DIRECT) -> Plan:
    return plan_of(
        graph,
        (0, 1, 2),
        routing,
        [own[0] for own in devices],
        replicas=[own[1:] for own in devices],
        inventory=inventory_of(11),
    )


def told_of(plan: Plan, graph: Graph) -> dict[str, ConnectStagesRequest]:
    stages = tuple(placement(stage.index, device_id) for stage in plan.stages for device_id in stage.device_ids)
    return connect_requests(deployment(stages=stages), plan, graph, 9.5)


def messages(
    requests: Mapping[str, ConnectStagesRequest], kind: ActionKind.ValueType
) -> dict[int, tuple[str, list[int]]]:
    """By channel: the device that sends or receives there, and the microbatches, as its lanes come to them."""
    by_channel: dict[int, tuple[str, list[int]]] = {}
    for device_id, request in requests.items():
        for lane in request.lanes:
            first, every = (lane.turn.first, lane.turn.every) if lane.HasField("turn") else (0, 1)
            for position, microbatch in enumerate(range(first, NUM_MICROBATCHES, every)):
                for action in lane.actions:
                    if action.kind == kind:
                        channels = action.edges_in_turn or [action.index]
                        channel = channels[position % len(channels)]
                        by_channel.setdefault(channel, (device_id, []))[1].append(microbatch)
    return by_channel


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("devices", LAYOUTS)
def test_both_ends_of_a_channel_have_the_same_microbatches(devices: Devices, routing: Routing) -> None:
    graph = triangle()
    requests = told_of(three_stages(graph, devices, routing), graph)
    sends = messages(requests, ActionKind.ACTION_KIND_SEND)
    received = messages(requests, ActionKind.ACTION_KIND_RECEIVE)
    edges = {edge.id: edge for request in requests.values() for edge in request.edges}
    assert sends.keys() == received.keys() == edges.keys()
    for channel, edge in edges.items():
        assert (sends[channel][0], received[channel][0]) == (edge.source_device_id, edge.target_device_id)
        every = edge.turn.every or 1
        assert sends[channel][1] == received[channel][1] == list(range(edge.turn.first, NUM_MICROBATCHES, every))
        for device_id in {edge.source_device_id, edge.target_device_id}:
            assert edge in requests[device_id].edges


@pytest.mark.parametrize("devices", LAYOUTS)
def test_each_copy_runs_its_share_and_one_device_speaks_with_clients(devices: Devices) -> None:
    graph = triangle()
    requests = told_of(three_stages(graph, devices), graph)
    ran: dict[tuple[int, str], list[int]] = {}
    clients: dict[ActionKind.ValueType, list[str]] = {}
    for device_id, request in requests.items():
        for lane in request.lanes:
            first, every = (lane.turn.first, lane.turn.every) if lane.HasField("turn") else (0, 1)
            for action in lane.actions:
                if action.kind == ActionKind.ACTION_KIND_FORWARD:
                    ran[action.index, device_id] = list(range(first, NUM_MICROBATCHES, every))
                elif action.kind in (ActionKind.ACTION_KIND_TAKE_INPUT, ActionKind.ACTION_KIND_GIVE_OUTPUT):
                    assert every == 1
                    clients.setdefault(action.kind, []).append(device_id)
    assert ran == {
        (stage, f"node{device}/cpu"): [k for k in range(NUM_MICROBATCHES) if k % len(own) == copy]
        for stage, own in enumerate(devices)
        for copy, device in enumerate(own)
    }
    assert clients == {
        ActionKind.ACTION_KIND_TAKE_INPUT: [f"node{devices[0][0]}/cpu"],
        ActionKind.ACTION_KIND_GIVE_OUTPUT: [f"node{devices[-1][0]}/cpu"],
    }


def test_the_ends_of_a_channel_say_which_copies_they_are() -> None:
    graph = triangle()
    plan = three_stages(graph, ([0, 1], [2, 3, 4], [5]))
    for request in told_of(plan, graph).values():
        for edge in request.edges:
            ends = ((edge.source_stage, edge.source_device_id), (edge.target_stage, edge.target_device_id))
            copies = [
                plan.stages[stage].device_ids.index(device_id) if stage < 2 else None for stage, device_id in ends
            ]
            actions = [
                edge.source_copy if edge.HasField("source_copy") else None,
                edge.target_copy if edge.HasField("target_copy") else None,
            ]
            assert actions == copies


@pytest.mark.parametrize(
    ("devices", "in_flight", "per_channel"),
    [
        # 0: as all of the deployment's. The edge that skips the second stage holds one more for each of its copies.
        (([0], [1, 2], [3]), 2, {4, 1}),
        (([0], [1, 2], [3]), 5, {7, 2}),
        (([0, 1], [2, 3], [4, 5]), 4, {6, 4, 2}),
        (([0], [1, 2, 3], [4]), 2, {5, 1}),
        (([0], [1], [2]), 4, {0, 5}),
    ],
)
def test_channels_share_what_may_be_in_flight(devices: Devices, in_flight: int, per_channel: set[int]) -> None:
    """Between equal numbers of copies each has one channel, and from and to clients' copies the first has several."""
    graph = triangle()
    plan = three_stages(graph, devices)
    plan = replace(plan, options=replace(plan.options, microbatches_in_flight=in_flight))
    edges = [edge for request in told_of(plan, graph).values() for edge in request.edges]
    assert {edge.microbatches_in_flight for edge in edges} == per_channel


def test_a_plan_for_training_evaluates_on_the_first_copies() -> None:
    graph = triangle()
    plan = trained(three_stages(graph, ([0, 1], [2], [3, 4])))
    requests = {f"node{device}/cpu": ConnectStagesRequest() for device in range(5)}
    add_stream(
        requests,
        plan,
        graph,
        action_to_proto=lambda action: Action(index=action.index),
        value_to_proto=lambda value, name: EdgeValue(name=name),
    )
    assert {device_id: len(request.lanes) for device_id, request in requests.items()} == {
        "node0/cpu": 1,
        "node1/cpu": 0,
        "node2/cpu": 1,
        "node3/cpu": 1,
        "node4/cpu": 0,
    }
    assert not any(lane.HasField("turn") for request in requests.values() for lane in request.lanes)


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("devices", LAYOUTS)
def test_what_the_channels_hold_is_counted(devices: Devices, routing: Routing) -> None:
    """The verifier counts anew, and where that fills the devices no copy's channels hold more. What is relayed counts
    once, as it enters."""
    graph = triangle()
    plan = three_stages(graph, devices, routing)
    full = [replace(one, memory_bytes=max(1, plan.device_peak_bytes[one.id])) for one in plan.inventory.devices]
    plan = replace(plan, inventory=replace(plan.inventory, devices=tuple(full)))
    verify_plan(plan, graph)
    if routing is Routing.RELAY:
        return
    sizes = {entry.value_id: entry.size_bytes for stage in plan.stages for entry in stage.liveness}
    buffered: Counter[str] = Counter()
    for device_id, request in told_of(plan, graph).items():
        for edge in request.edges:
            size_bytes = sum(sizes.get(value.value, 0) for value in edge.values)
            windows = edge.microbatches_in_flight or request.microbatches_in_flight
            ends = (edge.source_device_id, edge.target_device_id)
            buffered[device_id] += windows * size_bytes * ends.count(device_id)
    for device_id, held_bytes in buffered.items():
        own = [stage for stage in plan.stages if device_id in stage.device_ids]
        assert held_bytes <= sum(stage.memory.buffer_bytes for stage in own)


def test_a_stage_with_copies_writes_no_state() -> None:
    writer = GraphWriter()
    state = writer.state(mutated=True)
    first = writer.add_in_place(state, writer.input())
    graph = writer.graph(writer.multiply(first))
    copied = plan_of(graph, (0, 1), replicas=[(2,), ()])
    assert "stage 0 has copies on node0/cpu, node2/cpu and writes 'block.0.weight'" in why_not_copied(copied, graph)
    assert why_not_copied(plan_of(graph, (0, 1), replicas=[(), (2,)]), graph) == ""
    assert why_not_copied(trained(copied), graph) == ""


def test_daemons_hear_of_buffers_that_a_stream_writes() -> None:
    """What a training writes, its evaluations leave as it is."""
    writer = GraphWriter()
    state = writer.state(mutated=True)
    graph = writer.graph(writer.multiply(writer.add_in_place(state, writer.input())))
    plan = plan_of(graph, (0, 1))
    assert all(request.writes_buffers for request in told_of(plan, graph).values())
    assert written_states(graph, plan.options) == ["block.0.weight"]
    assert written_states(graph, trained(plan).options) == []
    assert not any(
        request.writes_buffers for request in told_of(three_stages(triangle(), LAYOUTS[0]), triangle()).values()
    )


def test_a_value_that_is_returned_twice_goes_to_the_first_copy_once() -> None:
    writer = GraphWriter()
    result = writer.multiply(writer.input())
    graph = writer.graph(result, result)
    plan = plan_of(graph, (0,), replicas=[(1,)])
    requests = told_of(plan, graph)
    outputs = [edge for edge in requests["node1/cpu"].edges if edge.source_device_id == "node1/cpu"]
    assert [[value.value for value in edge.values] for edge in outputs] == [[result]]
    assert len(requests["node0/cpu"].outputs) == 2
