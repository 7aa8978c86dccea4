"""How many messages each edge of a plan holds: sent, and not yet taken.

An edge that skips stages needs more of them than one between neighbours. What the first stage sends to the last one is
taken only when the microbatch has come through all stages between, each of which has a later one by then; with two
messages the first stage would wait for the last, however many stages could be at work. So an edge holds one message
more for each stage on the longest way beside it, and for each copy of it.

Plans do not count these messages. They take a quarter at most of what a plan leaves over on a device, since other
deployments may be promised that; where it does not suffice, all such edges are as many short, and `held_up` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.partition.describe import describe_bytes, describe_seconds
from planner.plan.plan import Plan, StageEdge

# Of what a plan leaves over on a device.
_SHARE = 0.25
# Messages up to this size are as many as a pipeline needs, whatever memory there is: see stage_daemon/transport/stream.
SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """`edge` holds `num_messages`, and would need `num_needed`: results come every `seconds` at best.

    All such edges would need `needed_bytes` of the device, which has `spare_bytes` for them.
    """

    edge: StageEdge
    num_messages: int
    num_needed: int
    seconds: float
    device_id: str
    needed_bytes: int
    spare_bytes: int

    def text(self) -> str:
        edge = f"the edge from stage {self.edge.source_stage} to {self.edge.target_stage}"
        return (
            f"results come every {describe_seconds(self.seconds)} at best, not as planned: {edge} holds "
            f"{self.num_messages} messages of {describe_bytes(self.edge.size_bytes)}, needs {self.num_needed}; "
            f"{self.device_id} has {describe_bytes(self.spare_bytes)} for such messages, needs "
            f"{describe_bytes(self.needed_bytes)}; fewer stages (--stages) skip fewer"
        )


def edge_depths(plan: Plan) -> tuple[int, ...]:
    """By edge of the plan, as many as are in flight, or more. O(stages x edges)."""
    skipped, short = _skipped(plan), 0
    while not _fits(plan, [max(0, count - short) for count in skipped]):
        short += 1
    return tuple(plan.options.in_flight + max(0, count - short) for count in skipped)


def held_up(plan: Plan) -> HeldUp | None:
    """The edge that makes a stream of microbatches slowest, where it is slower than planned for lack of memory.

    What an edge holds is from within the time that a microbatch takes from the start of its source to the end of its
    target: as many as it holds, the one that the source has made and waits with, and the one that the target is at.
    """
    if plan.options.training is not None:
        return None
    skipped, depths = _skipped(plan), edge_depths(plan)
    ways = _longest_ways(plan, [stage.load_seconds for stage in plan.stages])
    slowest, seconds = -1, plan.bottleneck_seconds
    for index, edge in enumerate(plan.edges):
        ends = [plan.stages[stage].load_seconds for stage in (edge.source_stage, edge.target_stage)]
        at_best = (ways[edge.source_stage, edge.target_stage] + sum(ends)) / (depths[index] + 2)
        is_short = depths[index] < plan.options.in_flight + skipped[index] and _message_bytes(plan, edge) > SMALL_BYTES
        if is_short and at_best > seconds:
            slowest, seconds = index, at_best
    if slowest < 0:
        return None
    device_id, needed, spare = max(_rooms(plan, skipped), key=lambda room: room[1] - room[2])
    return HeldUp(
        edge=plan.edges[slowest],
        num_messages=depths[slowest],
        num_needed=plan.options.in_flight + skipped[slowest],
        seconds=seconds,
        device_id=device_id,
        needed_bytes=needed,
        spare_bytes=spare,
    )


def _fits(plan: Plan, more: list[int]) -> bool:
    return all(needed <= spare for _, needed, spare in _rooms(plan, more))


def _rooms(plan: Plan, more: list[int]) -> list[tuple[str, int, int]]:
    """(id, bytes that so many messages more need, bytes that may be taken for them) of each device."""
    needed = dict.fromkeys((device.id for device in plan.inventory.devices), 0)
    for edge, count in zip(plan.edges, more, strict=True):
        for stage in (edge.source_stage, edge.target_stage):
            for device_id in plan.stages[stage].device_ids:
                needed[device_id] += count * _message_bytes(plan, edge)
    peaks = plan.device_peak_bytes
    return [
        (device.id, needed[device.id], max(0, int(_SHARE * (device.memory_bytes - peaks[device.id]))))
        for device in plan.inventory.devices
    ]


def _message_bytes(plan: Plan, edge: StageEdge) -> int:
    """A plan that trains has an edge for evaluation, one for a step's values and one for gradients, no larger."""
    num_edges = 1 if plan.options.training is None else 2 + bool(edge.gradient_value_ids)
    return num_edges * edge.size_bytes


def _skipped(plan: Plan) -> list[int]:
    """By edge: the devices of the stages between its ends, on the way that has most."""
    between = _longest_ways(plan, [len(stage.device_ids) for stage in plan.stages])
    return [int(between[edge.source_stage, edge.target_stage]) for edge in plan.edges]


def _longest_ways(plan: Plan, lengths: Sequence[float]) -> dict[tuple[int, int], float]:
    """For the ends of each edge: the most that stages between them come to on one way. Edges lead to later stages."""
    leaving: list[list[int]] = [[] for _ in plan.stages]
    for edge in plan.edges:
        leaving[edge.source_stage].append(edge.target_stage)
    between: dict[tuple[int, int], float] = {}
    for source in range(len(plan.stages)):
        passed: dict[int, float] = {source: 0}
        for stage in range(source, len(plan.stages)):
            for target in leaving[stage] if stage in passed else ():
                own = lengths[stage] if stage != source else 0
                passed[target] = max(passed.get(target, 0), passed[stage] + own)
        between.update(((source, target), passed[target]) for target in leaving[source])
    return between
