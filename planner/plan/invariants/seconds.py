"""Communication, bottleneck and latency follow from compute and delivery seconds, edges and links. An edge of no value
is free. Deliveries are of the stages that hold the first and the last node.

A stage pays for each tensor that enters and each that leaves its device once, a fan-out over its slowest link, and one
latency in each direction, the largest (Tarnawski et al., NeurIPS 2020); in training so for gradients on their way back.
Between copies of stages the slowest of their links counts, and each copy takes its share of the microbatches. A lone
batch passes the first copy of each stage, and a device runs its stages in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from planner.cost.inventory import LinkSpeed
from planner.partition.objective import Objective
from planner.plan.edges import sent_ahead
from planner.plan.invariants.broken import broken
from planner.plan.plan import Plan, Stage, StageEdge
from planner.plan.update import device_updates

RELATIVE_TOLERANCE = 1e-9


def check_seconds(plan: Plan) -> None:
    sizes = {entry.value_id: entry.size_bytes for stage in plan.stages for entry in stage.liveness}
    load = {device.id: 0.0 for device in plan.inventory.devices}
    receive_seconds, send_seconds = list[float](), list[float]()
    for stage in plan.stages:
        leaving = [edge for edge in plan.edges if edge.source_stage == stage.index]
        entering = [edge for edge in plan.edges if edge.target_stage == stage.index]
        receive_seconds.append(_direction_seconds(plan, entering, sizes, back=False))
        send_seconds.append(_direction_seconds(plan, leaving, sizes, back=False))
        back = sum(_direction_seconds(plan, edges, sizes, back=True) for edges in (leaving, entering))
        expected = receive_seconds[-1] + send_seconds[-1] + back
        _check_equal(f"stage {stage.index}: communication_seconds", stage.communication_seconds, expected)
        _check_delivery(plan, stage)
        for device_id in stage.device_ids:
            seconds = stage.forward_seconds + stage.backward_seconds + expected
            load[device_id] += seconds / len(stage.device_ids)
    _check_equal("bottleneck_seconds", plan.bottleneck_seconds, max(load.values()))
    _check_equal("latency_seconds", plan.latency_seconds, _latency(plan, receive_seconds, send_seconds))
    _check_step(plan, max(load.values()))
    _check_bound(plan)


def _check_delivery(plan: Plan, stage: Stage) -> None:
    holds_an_end = any(start == 0 or end == plan.num_nodes for start, end in stage.node_ranges)
    if stage.delivery_seconds and not holds_an_end:
        raise broken(
            "delivery_seconds",
            f"stage {stage.index}: delivery_seconds is {stage.delivery_seconds}, and the stage holds neither the first "
            "nor the last node",
        )


def _check_step(plan: Plan, bottleneck_seconds: float) -> None:
    """No step is shorter than its most loaded device's share of the microbatches and the longest update."""
    training, step_seconds = plan.options.training, plan.step_seconds
    if training is None or step_seconds is None:
        if training is not None or step_seconds is not None:
            raise broken("step_seconds", f"step_seconds is {step_seconds} with training {training}")
        return
    update = max((seconds.both for seconds in device_updates(plan).values()), default=0.0)
    least = training.microbatches * bottleneck_seconds + update
    if not math.isfinite(step_seconds) or step_seconds < least * (1 - RELATIVE_TOLERANCE):
        raise broken(
            "step_seconds",
            f"step_seconds is {step_seconds}; the most loaded device's passes and an update alone take {least}",
        )


def _check_bound(plan: Plan) -> None:
    bound, value = plan.lower_bound_seconds, _objective_value(plan)
    if bound is not None and bound > value * (1 + RELATIVE_TOLERANCE):
        raise broken("lower_bound", f"lower bound {bound} is above {plan.options.objective.value} {value}")


def _objective_value(plan: Plan) -> float:
    if plan.options.objective is Objective.LATENCY:
        return plan.latency_seconds
    if plan.options.objective is Objective.STEP_TIME:
        return plan.step_seconds or 0.0
    if plan.options.objective is Objective.MEMORY:
        used = {device.id: 0 for device in plan.inventory.devices}
        for stage in plan.stages:
            for device_id in stage.device_ids:
                used[device_id] += stage.memory.peak_bytes
        return max(used[device.id] / device.memory_bytes for device in plan.inventory.devices)
    return plan.bottleneck_seconds


def _direction_seconds(plan: Plan, edges: Sequence[StageEdge], sizes: Mapping[int, int], *, back: bool) -> float:
    """What one stage spends on edges that all leave or all enter it: the dearest copy of each value, or gradient."""
    latency, seconds = 0.0, dict[int, float]()
    for edge in edges:
        value_ids = [v for v in edge.gradient_value_ids if sizes[v]] if back else edge.value_ids
        links = _links(plan, edge, back=back)
        if not value_ids or not links:
            continue
        latency = max(latency, *(link.latency_seconds for link in links))
        slowest = min(link.bytes_per_second for link in links)
        for value_id in value_ids:
            seconds[value_id] = max(seconds.get(value_id, 0.0), sizes[value_id] / slowest)
    return latency + math.fsum(seconds.values())


def _latency(plan: Plan, receive_seconds: Sequence[float], send_seconds: Sequence[float]) -> float:
    """A device is busy with a stage from when it may receive until it has sent.

    What an edge carries is there when its source has run; over an edge that goes ahead, as soon as its source knows of
    the batch from the first of its own edges, or has taken the inputs. Edges are sorted by source.
    """
    busy_until = {device.id: 0.0 for device in plan.inventory.devices}
    ended, told_at, ahead = list[float](), list[float](), sent_ahead(plan)
    for stage, into, out in zip(plan.stages, receive_seconds, send_seconds, strict=True):
        entering = [
            (index, edge.source_stage) for index, edge in enumerate(plan.edges) if edge.target_stage == stage.index
        ]
        there = [told_at[source] if index in ahead else ended[source] for index, source in entering]
        told_at.append(there[0] if there else stage.delivery_seconds)
        start = max([busy_until[stage.device_ids[0]], *there])
        ended.append(start + into + stage.forward_seconds)
        busy_until[stage.device_ids[0]] = ended[-1] + out
    return max(ended)


def _links(plan: Plan, edge: StageEdge, *, back: bool) -> list[LinkSpeed]:
    """Between any copies of the two stages on different devices."""
    ends = product(plan.stages[edge.source_stage].device_ids, plan.stages[edge.target_stage].device_ids)
    return [plan.link(*((b, a) if back else (a, b))) for a, b in ends if a != b]


def _check_equal(name: str, value: float, expected: float) -> None:
    if not math.isclose(value, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-15):
        invariant = name.rpartition(" ")[2]
        raise broken(invariant, f"{name} is {value}, the stages and links give {expected}")
