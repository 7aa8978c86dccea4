"""How many messages each edge of a plan holds: sent, and not yet taken.

An edge that skips stages needs more of them than one between neighbours. What the first stage sends to the last one is
taken only when the microbatch has come through all stages between, each of which has a later one by then; with two
messages the first stage would wait for the last, however many stages could be at work. So an edge holds one message
more for each stage on the longest way beside it, and for each copy of it.

Plans do not count these messages. They take a quarter at most of what a plan leaves over on a device, since other
deployments may be promised that; where it does not suffice, all such edges are as many short.
"""

from __future__ import annotations

from planner.plan.plan import Plan, StageEdge

# Of what a plan leaves over on a device.
_SHARE = 0.25


def edge_depths(plan: Plan) -> tuple[int, ...]:
    """By edge of the plan, as many as are in flight, or more. O(stages x edges)."""
    skipped, short = _skipped(plan), 0
    while not _fits(plan, [max(0, count - short) for count in skipped]):
        short += 1
    return tuple(plan.options.in_flight + max(0, count - short) for count in skipped)


def _fits(plan: Plan, more: list[int]) -> bool:
    needed = dict.fromkeys((device.id for device in plan.inventory.devices), 0)
    for edge, count in zip(plan.edges, more, strict=True):
        for stage in (edge.source_stage, edge.target_stage):
            for device_id in plan.stages[stage].device_ids:
                needed[device_id] += count * _message_bytes(plan, edge)
    peaks = plan.device_peak_bytes
    return all(
        needed[device.id] <= max(0.0, _SHARE * (device.memory_bytes - peaks[device.id]))
        for device in plan.inventory.devices
    )


def _message_bytes(plan: Plan, edge: StageEdge) -> int:
    """A plan that trains has an edge for evaluation, one for a step's values and one for gradients, no larger."""
    num_edges = 1 if plan.options.training is None else 2 + bool(edge.gradient_value_ids)
    return num_edges * edge.size_bytes


def _skipped(plan: Plan) -> list[int]:
    """By edge: the devices of the stages between its ends, on the way that has most. Edges lead to later stages."""
    leaving: list[list[int]] = [[] for _ in plan.stages]
    for edge in plan.edges:
        leaving[edge.source_stage].append(edge.target_stage)
    between: dict[tuple[int, int], int] = {}
    for source in range(len(plan.stages)):
        passed = {source: 0}
        for stage in range(source, len(plan.stages)):
            for target in leaving[stage] if stage in passed else ():
                own = len(plan.stages[stage].device_ids) if stage != source else 0
                passed[target] = max(passed.get(target, 0), passed[stage] + own)
        between.update(((source, target), passed[target]) for target in leaving[source])
    return [between[edge.source_stage, edge.target_stage] for edge in plan.edges]
