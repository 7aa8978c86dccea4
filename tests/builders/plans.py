"""Plans of given splits, through the planner's own cost model."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.inventory import Device, Inventory
from planner.cost.roofline import node_costs
from planner.graph.ir import Graph
from planner.partition.assignment import Assignment
from planner.partition.evaluate import evaluate
from planner.partition.from_graph import problem_from_graph
from planner.partition.objective import Training
from planner.plan.build import build_plan
from planner.plan.options import BalancedMode, PlanOptions, Routing
from planner.plan.plan import Plan


def inventory_of(num_devices: int, memory_bytes: int = 2**40) -> Inventory:
    return Inventory(
        devices=tuple(
            Device(id=f"node{index}/cpu", kind="cpu", host=f"node{index}", memory_bytes=memory_bytes)
            for index in range(num_devices)
        )
    )


def plan_of(
    graph: Graph,
    stage_of_node: Sequence[int],
    routing: Routing = Routing.DIRECT,
    device_of_stage: Sequence[int] | None = None,
    recomputed: Sequence[Sequence[int]] = (),
    replicas: Sequence[Sequence[int]] = (),
    inventory: Inventory | None = None,
    training: Training | None = None,
) -> Plan:
    """A plan of exactly this split, each stage on a device of its own unless told otherwise."""
    num_stages = max(stage_of_node) + 1
    devices = tuple(device_of_stage if device_of_stage is not None else range(num_stages))
    inventory = inventory or inventory_of(max((*devices, *(copy for copies in replicas for copy in copies))) + 1)
    options = PlanOptions(mode=BalancedMode(), routing=routing, microbatches_in_flight=2, training=training)
    assignment = Assignment(
        stage_of_node=tuple(stage_of_node),
        device_of_stage=devices,
        reasons=tuple(f"stage {index} of a given split" for index in range(num_stages)),
        recomputed=tuple(tuple(nodes) for nodes in recomputed),
        replicas=tuple(tuple(copies) for copies in replicas),
    )
    costs = node_costs(graph, inventory.devices, graph.hints())
    problem = problem_from_graph(
        graph,
        costs,
        inventory,
        relay=routing is Routing.RELAY,
        microbatches_in_flight=options.microbatches_in_flight,
        recompute=any(recomputed),
        training=training,
    )
    evaluation = evaluate(problem, assignment)
    return build_plan(graph, "graph-id", inventory, options, assignment, evaluation)
