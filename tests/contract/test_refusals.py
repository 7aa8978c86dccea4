"""Whatever is asked for, the answer says what is wrong with it, and the server goes on."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from protos.v1 import graph_pb2, inventory_pb2, plan_pb2, planner_pb2
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, create_graph, create_plan, inventory_message, refused, wait_plan
from tests.contract.graphs import chain_bytes

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
Options = plan_pb2.PlanOptions


def changed(change: Callable[[graph_pb2.Graph], object]) -> bytes:
    message = graph_pb2.Graph.FromString(chain_bytes())
    change(message)
    return message.SerializeToString()


def make_cycle(message: graph_pb2.Graph) -> None:
    message.nodes[0].arguments[0].value = message.nodes[3].outputs[0]


def give_twice(message: graph_pb2.Graph) -> None:
    message.nodes[1].outputs[0] = message.nodes[0].outputs[0]


def take_no_time(message: graph_pb2.Graph) -> None:
    message.nodes[0].opaque_seconds["cpu"] = math.nan


async def test_graphs_that_cannot_be(planner: PlannerServiceStub) -> None:
    refusals = {
        "the nodes form a cycle": changed(make_cycle),
        "which something before it gives": changed(give_twice),
        "opaque_seconds for 'cpu' is nan": changed(take_no_time),
        "given by nothing": changed(lambda message: message.ClearField("nodes")),
        "not a serialized graph": chain_bytes()[:-7],
    }
    for says, content in refusals.items():
        with refused("INVALID_GRAPH") as refusal:
            await create_graph(planner, content)
        assert says in refusal.message
    assert (await create_graph(planner, chain_bytes())).num_nodes == 4


def aot(partition_of_node: list[int], *devices: str) -> Options:
    return Options(
        aot_based=plan_pb2.AotBasedMode(partition_of_node=partition_of_node, device_of_partition=list(devices))
    )


AT_ONCE = {
    "effort is nan": Options(optimal=plan_pb2.OptimalMode(effort=math.nan)),
    "effort is -1": Options(optimal=plan_pb2.OptimalMode(effort=-1)),
    "num_stages is 4294967295": Options(optimal=plan_pb2.OptimalMode(num_stages=2**32 - 1)),
    "options.objective is 99": Options(objective=99),  # type: ignore[arg-type]
    "needs a training schedule": Options(objective=plan_pb2.OBJECTIVE_STEP_TIME),
    "microbatches_in_flight is 4294967295": Options(microbatches_in_flight=2**32 - 1),
    "weight is nan": Options(buckets=[plan_pb2.ShapeBucket(weight=math.nan)]),
    "backward_ratio is nan": Options(training=plan_pb2.Training(backward_ratio=math.nan)),
    "2147483648 microbatches": Options(training=plan_pb2.Training(microbatches=2**31)),
}
LATER = {
    "device 'zz' is not in the inventory": aot([0] * 4, "zz"),
    "has 1 entries, the graph 4 nodes": aot([0], "node/cpu0"),
    "4 nodes have no partition of 0 to 0": aot([2**32 - 1] * 4, "node/cpu0"),
    "partitions 0, 1 wait for each other": aot([0, 1, 0, 1], "node/cpu0", "node/cpu1"),
    "to be on device 'zz', which is not in": Options(
        fixed=[plan_pb2.FixedModule(module_path="layers.0", device_id="zz")]
    ),
    "an entry names no module": Options(together=[plan_pb2.ModuleGroup()]),
    "no dynamic dimension 'x'": Options(symbol_values={"x": 1}),
    "nothing to train": Options(training=plan_pb2.Training()),
    "9 stages asked for": Options(balanced=plan_pb2.BalancedMode(num_stages=9)),
}


async def test_options_that_cannot_be(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes())

    async def ask(options: Options) -> planner_pb2.PlanOperation:
        request = planner_pb2.CreatePlanRequest(graph_id=graph.id, inventory=inventory_message(), options=options)
        return await planner.CreatePlan(request, timeout=WAIT_SECONDS)

    for says, options in AT_ONCE.items():
        with refused("INVALID_OPTIONS") as refusal:
            await ask(options)
        assert says in refusal.message
    for says, options in LATER.items():
        operation = await wait_plan(planner, (await ask(options)).id)
        assert operation.failure.reason == "INVALID_OPTIONS"
        assert says in operation.failure.message
    assert not (await create_plan(planner, chain_bytes())).failure.reason


def crowd_of(count: int) -> inventory_pb2.Inventory:
    return inventory_pb2.Inventory(
        devices=[inventory_pb2.Device(id=f"d{index}", kind="cpu", memory_bytes=1 << 30) for index in range(count)]
    )


async def test_too_many_devices(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes())
    with refused("INVALID_INVENTORY") as refusal:
        await planner.CreatePlan(
            planner_pb2.CreatePlanRequest(graph_id=graph.id, inventory=crowd_of(5000)), timeout=WAIT_SECONDS
        )
    assert "at most 4,096" in refusal.message


async def test_a_plan_may_choose_among_a_thousand_devices(planner: PlannerServiceStub) -> None:
    graph = await create_graph(planner, chain_bytes())
    request = planner_pb2.CreatePlanRequest(graph_id=graph.id, inventory=crowd_of(1000))
    operation = await wait_plan(planner, (await planner.CreatePlan(request, timeout=WAIT_SECONDS)).id)
    assert not operation.failure.reason
    assert operation.state == planner_pb2.OPERATION_STATE_SUCCEEDED
