"""Communication, bottleneck and latency follow from compute seconds, edges and links. An edge of no value is free.

A stage pays for each tensor that enters and each that leaves its device once, a fan-out over its slowest link, and one
latency in each direction, the largest (Tarnawski et al., NeurIPS 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.plan.invariants.broken import broken
from planner.plan.plan import Plan, StageEdge

RELATIVE_TOLERANCE = 1e-9


def check_seconds(plan: Plan) -> None:
    sizes = {entry.value_id: entry.size_bytes for stage in plan.stages for entry in stage.liveness}
    load = {device.id: 0.0 for device in plan.inventory.devices}
    for stage in plan.stages:
        leaving = [edge for edge in plan.edges if edge.source_stage == stage.index]
        entering = [edge for edge in plan.edges if edge.target_stage == stage.index]
        expected = sum(_direction_seconds(plan, edges, sizes) for edges in (leaving, entering))
        _check_equal(f"stage {stage.index}: communication_seconds", stage.communication_seconds, expected)
        for device_id in stage.device_ids:
            load[device_id] += stage.compute_seconds + expected
    _check_equal("bottleneck_seconds", plan.bottleneck_seconds, max(load.values()))
    _check_equal("latency_seconds", plan.latency_seconds, _latency(plan))
    bound = plan.lower_bound_seconds
    if bound is not None and bound > plan.bottleneck_seconds * (1 + RELATIVE_TOLERANCE):
        raise broken("lower_bound", f"lower bound {bound} is above the bottleneck {plan.bottleneck_seconds}")


def _direction_seconds(plan: Plan, edges: Sequence[StageEdge], sizes: Mapping[int, int]) -> float:
    """What one stage spends on edges that all leave or all enter it: the dearest copy of each value."""
    latency, seconds = 0.0, dict[int, float]()
    for edge in edges:
        source, target = _device_ids(plan, edge)
        if source == target or not edge.value_ids:
            continue
        link = plan.inventory.link(source, target)
        latency = max(latency, link.latency_seconds)
        for value_id in edge.value_ids:
            spent = sizes[value_id] / link.bytes_per_second
            seconds[value_id] = max(seconds.get(value_id, 0.0), spent)
    return latency + math.fsum(seconds.values())


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
    source, target = _device_ids(plan, edge)
    return 0.0 if source == target else plan.inventory.link(source, target).transfer_seconds(edge.size_bytes)


def _device_ids(plan: Plan, edge: StageEdge) -> tuple[str, str]:
    return plan.stages[edge.source_stage].device_ids[0], plan.stages[edge.target_stage].device_ids[0]


def _check_equal(name: str, found: float, expected: float) -> None:
    if not math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-15):
        invariant = name.rpartition(" ")[2]
        raise broken(invariant, f"{name} is {found}, the stages and links give {expected}")
