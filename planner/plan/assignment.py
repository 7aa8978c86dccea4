"""A plan as the numbers that it was built from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.inventory import Inventory
from planner.partition.assignment import Assignment
from planner.partition.before import Before
from planner.partition.objective import Activations
from planner.partition.problem import FREE
from planner.plan.node_ranges import nodes_in
from planner.plan.plan import Plan


def assignment_of(plan: Plan) -> Assignment:
    """The inverse of what build_plan does with an assignment."""
    index = {device.id: position for position, device in enumerate(plan.inventory.devices)}
    stage_of_node = [0] * plan.num_nodes
    for stage in plan.stages:
        for start, end in stage.node_ranges:
            stage_of_node[start:end] = [stage.index] * (end - start)
    replicas = tuple(tuple(index[device] for device in stage.device_ids[1:]) for stage in plan.stages)
    training = plan.options.training
    keeping = tuple(stage.index for stage in plan.stages if not stage.recomputes_activations)
    recomputed = tuple(nodes_in(stage.recomputed_ranges) for stage in plan.stages)
    return Assignment(
        stage_of_node=tuple(stage_of_node),
        device_of_stage=tuple(index[stage.device_ids[0]] for stage in plan.stages),
        reasons=tuple(stage.reason for stage in plan.stages),
        lower_bound_seconds=plan.lower_bound_seconds,
        replicas=replicas if any(replicas) else (),
        recomputed=recomputed if any(recomputed) else (),
        keeping=keeping if training and training.activations is not Activations.KEPT else (),
        orders=tuple((index[order.device_id], order.steps) for order in plan.pass_orders),
    )


def before_on(inventory: Inventory, plan: Plan) -> Before:
    """What the plan has on those of its devices that the inventory still has."""
    index = {device.id: position for position, device in enumerate(inventory.devices)}
    left = [[index[device_id] for device_id in stage.device_ids if device_id in index] for stage in plan.stages]
    most = max(map(len, left))
    copies = [np.full(plan.num_nodes, FREE, dtype=np.int64) for _ in range(max(1, most))]
    for stage, devices in zip(plan.stages, left, strict=True):
        for start, end in stage.node_ranges:
            for copy, device in zip(copies, devices, strict=False):
                copy[start:end] = device
    remainder = None
    if all(left) and not any(stage.recomputed_ranges for stage in plan.stages):
        remainder = replace(
            assignment_of(plan),
            device_of_stage=tuple(first for first, *_ in left),
            replicas=tuple(tuple(others) for _, *others in left) if most > 1 else (),
            lower_bound_seconds=None,
            keeping=(),
            orders=(),
        )
    return Before(device_of_node=copies[0], other_copies=tuple(copies[1:]), remainder=remainder)
