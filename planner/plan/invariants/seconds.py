"""Communication, bottleneck and latency follow from compute seconds, edges and links. An edge of no value is free."""

from __future__ import annotations

import math

from planner.plan.invariants.broken import broken
from planner.plan.plan import Plan, StageEdge

RELATIVE_TOLERANCE = 1e-9


def check_seconds(plan: Plan) -> None:
    communication = [0.0] * len(plan.stages)
    for edge in plan.edges:
        spent = _transfer_seconds(plan, edge)
        communication[edge.source_stage] += spent
        communication[edge.target_stage] += spent
    load = {device.id: 0.0 for device in plan.inventory.devices}
    for stage, expected in zip(plan.stages, communication, strict=True):
        _check_equal(f"stage {stage.index}: communication_seconds", stage.communication_seconds, expected)
        for device_id in stage.device_ids:
            load[device_id] += stage.compute_seconds + expected
    _check_equal("bottleneck_seconds", plan.bottleneck_seconds, max(load.values()))
    _check_equal("latency_seconds", plan.latency_seconds, _latency(plan))
    bound = plan.lower_bound_seconds
    if bound is not None and bound > plan.bottleneck_seconds * (1 + RELATIVE_TOLERANCE):
        raise broken("lower_bound", f"lower bound {bound} is above the bottleneck {plan.bottleneck_seconds}")


def _latency(plan: Plan) -> float:
    """The longest path over the DAG of stages, each edge paid once. Edges are sorted by source."""
    ready = [0.0] * len(plan.stages)
    for edge in plan.edges:
        if not edge.value_ids:
            continue
        source = plan.stages[edge.source_stage]
        arrival = ready[source.index] + source.compute_seconds + _transfer_seconds(plan, edge)
        ready[edge.target_stage] = max(ready[edge.target_stage], arrival)
    return max(ready[stage.index] + stage.compute_seconds for stage in plan.stages)


def _transfer_seconds(plan: Plan, edge: StageEdge) -> float:
    if not edge.value_ids:
        return 0.0
    source = plan.stages[edge.source_stage].device_ids[0]
    target = plan.stages[edge.target_stage].device_ids[0]
    return 0.0 if source == target else plan.inventory.link(source, target).transfer_seconds(edge.size_bytes)


def _check_equal(name: str, found: float, expected: float) -> None:
    if not math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-15):
        invariant = name.rpartition(" ")[2]
        raise broken(invariant, f"{name} is {found}, the stages and links give {expected}")
