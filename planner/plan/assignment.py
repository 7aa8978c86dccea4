"""A plan as the numbers that it was built from."""

from __future__ import annotations

from planner.partition.assignment import Assignment
from planner.partition.objective import Activations
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
