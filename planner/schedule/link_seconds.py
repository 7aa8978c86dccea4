"""What a plan's messages take: each stage's share of its device's time, and each edge's on its link.

As plans are costed (Tarnawski et al., NeurIPS 2020): a stage spends one latency in each direction, the largest, and the
bytes of each distinct tensor once, a fan-out over its slowest link. Between copies of stages the slowest link counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from planner.partition.training.memory import sum_seconds
from planner.plan.plan import Plan, StageEdge


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Of one microbatch, by stage, in seconds. `handover`: of `sent`, what a receiver that waits has to wait for."""

    received: float
    sent: float
    gradients_received: float
    gradients_sent: float
    handover: float = 0.0
    gradients_handover: float = 0.0


def stage_messages(plan: Plan) -> tuple[Messages, ...]:
    """Linear in the values of the edges, and in the pairs of copies."""
    sizes = {entry.value_id: entry.size_bytes for stage in plan.stages for entry in stage.liveness}
    leaving: list[list[StageEdge]] = [[] for _ in plan.stages]
    entering: list[list[StageEdge]] = [[] for _ in plan.stages]
    for edge in plan.edges:
        leaving[edge.source_stage].append(edge)
        entering[edge.target_stage].append(edge)
    return tuple(
        Messages(
            received=_seconds(plan, entering[stage], sizes, back=False),
            sent=_seconds(plan, leaving[stage], sizes, back=False),
            gradients_received=_seconds(plan, leaving[stage], sizes, back=True),
            gradients_sent=_seconds(plan, entering[stage], sizes, back=True),
            handover=_handover(plan, leaving[stage], sizes, back=False),
            gradients_handover=_handover(plan, entering[stage], sizes, back=True),
        )
        for stage in range(len(plan.stages))
    )


def gradient_bytes(plan: Plan) -> tuple[int, ...]:
    """By edge, what comes back over it."""
    sizes = {entry.value_id: entry.size_bytes for stage in plan.stages for entry in stage.liveness}
    return tuple(sum(sizes[value_id] for value_id in edge.gradient_value_ids) for edge in plan.edges)


def reduction_seconds(plan: Plan, device_ids: Sequence[str], size_bytes: int) -> float:
    """Over the slowest link between the first of the devices and another, in either direction."""
    first, *others = device_ids
    links = [plan.link(*ends) for other in others for ends in ((first, other), (other, first))]
    latency = max(link.latency_seconds for link in links)
    slowest = min(link.bytes_per_second for link in links)
    handover = max(plan.handover_seconds(*ends) for other in others for ends in ((first, other), (other, first)))
    return sum_seconds(size_bytes, len(device_ids), latency, 1.0 / slowest, handover)


def _seconds(plan: Plan, edges: Sequence[StageEdge], sizes: dict[int, int], *, back: bool) -> float:
    latency, seconds_of_value = 0.0, dict[int, float]()
    for edge in edges:
        values = _values(edge, sizes, back=back)
        links = [plan.link(*ends) for ends in _ends(plan, edge, back=back)]
        if not values or not links:
            continue
        latency = max(latency, *(link.latency_seconds for link in links))
        rate = min(link.bytes_per_second for link in links)
        for value_id in values:
            seconds_of_value[value_id] = max(seconds_of_value.get(value_id, 0.0), sizes[value_id] / rate)
    return latency + sum(seconds_of_value.values())


def _handover(plan: Plan, edges: Sequence[StageEdge], sizes: dict[int, int], *, back: bool) -> float:
    carrying = (edge for edge in edges if _values(edge, sizes, back=back))
    return max(
        (plan.handover_seconds(*ends) for edge in carrying for ends in _ends(plan, edge, back=back)), default=0.0
    )


def _values(edge: StageEdge, sizes: dict[int, int], *, back: bool) -> Sequence[int]:
    """What crosses in that direction."""
    return [value_id for value_id in edge.gradient_value_ids if sizes[value_id]] if back else edge.value_ids


def _ends(plan: Plan, edge: StageEdge, *, back: bool) -> list[tuple[str, str]]:
    """Each copy that sends with each that receives, where these are two devices."""
    pairs = product(plan.stages[edge.source_stage].device_ids, plan.stages[edge.target_stage].device_ids)
    return [(b, a) if back else (a, b) for a, b in pairs if a != b]
