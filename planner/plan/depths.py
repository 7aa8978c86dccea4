"""How many messages each edge of a plan holds: sent, and not yet taken.

An edge beside a longer way needs more of them than one between neighbours. What the first stage sends to the last one
is taken only when the microbatch has come through all stages between, each of which has a later one by then; with two
messages the first stage would wait for the last, however many stages could be at work. So an edge holds one message
more for each stage by which its target comes later than it has to wait for this edge alone, and for each copy of it:
each stage comes as soon as the longest way to it lets it.

Plans do not count these messages. They take a quarter at most of what a plan leaves over on a device, since other
deployments may be promised that; where it does not suffice, all such edges are as many short, and `held_up` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import rustworkx

from planner.partition.describe import describe_bytes, describe_seconds
from planner.plan.edges import sent_ahead
from planner.plan.plan import Plan, StageEdge

# Of seconds, as sums of them may differ.
_ROUNDING = 1e-9
# Of what a plan leaves over on a device.
_SHARE = 0.25
# Messages up to this size are as many as a pipeline needs, whatever memory there is: see stage_daemon/transport/stream.
SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Wait:
    """Of one stage for another's pass, which takes so many seconds and is of so many microbatches before. `edge`: the
    one whose messages are too few, or -1."""

    seconds: float
    microbatches: int
    edge: int = -1

    def spare_seconds(self, every: float) -> float:
        """Where there is a result `every` so many seconds."""
        return every * self.microbatches - self.seconds


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
    """By edge of the plan, as many as are in flight, or more. O(edges) for each message that memory is short of."""
    skipped, short = _skipped(plan), 0
    while not _fits(plan, [max(0, count - short) for count in skipped]):
        short += 1
    return tuple(plan.options.in_flight + max(0, count - short) for count in skipped)


def held_up(plan: Plan) -> HeldUp | None:
    """The edge that makes a stream of microbatches slowest, where it is slower than planned for lack of memory."""
    if plan.options.training is not None:
        return None
    skipped, depths = _skipped(plan), list(edge_depths(plan))
    full = [plan.options.in_flight + more for more in skipped]
    short = {i for i, edge in enumerate(plan.edges) if depths[i] < full[i] and _message_bytes(plan, edge) > SMALL_BYTES}
    if not short:
        return None
    seconds, waited_for = _slowest_round(plan, [depths[i] if i in short else count for i, count in enumerate(full)])
    held = [index for index in waited_for if index in short]
    if not held:
        return None
    slowest = max(held, key=lambda index: full[index])
    device_id, needed, spare = max(_rooms(plan, skipped), key=lambda room: room[1] - room[2])
    return HeldUp(
        edge=plan.edges[slowest],
        num_messages=depths[slowest],
        num_needed=full[slowest],
        seconds=seconds,
        device_id=device_id,
        needed_bytes=needed,
        spare_bytes=spare,
    )


def _slowest_round(plan: Plan, depths: Sequence[int]) -> tuple[float, list[int]]:
    """Seconds between results at best, and the edges whose targets are waited for in the round that takes so long.

    A pass begins when its stage has run the microbatch before, and sent it: over an edge that holds `depth` messages,
    so when the target has run the one that many, and those at both ends, before. Rounds of such waits, with their
    seconds and how many microbatches they lead back, bound the rate (Reiter, JACM 1968); the slowest is found by rates
    that no longer suffice for some round.
    """
    graph: rustworkx.PyDiGraph[None, _Wait] = rustworkx.PyDiGraph()
    graph.add_nodes_from([None] * len(plan.stages))
    ahead = sent_ahead(plan)
    for index, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source_stage], plan.stages[edge.target_stage]
        is_ahead = index in ahead
        there = _Wait(0.0 if is_ahead else source.load_seconds, 0)
        held = depths[index] + (0 if is_ahead else len(source.device_ids)) + len(target.device_ids)
        graph.add_edge(source.index, target.index, there)
        graph.add_edge(target.index, source.index, _Wait(target.load_seconds, held, index))
    seconds, waited_for = plan.bottleneck_seconds, list[int]()
    while True:
        spare = partial(_Wait.spare_seconds, every=seconds * (1 + _ROUNDING))
        try:
            stages = rustworkx.find_negative_cycle(graph, spare)
        except ValueError:
            return seconds, waited_for
        waits = [min(graph.get_all_edge_data(*ends), key=spare) for ends in pairwise(stages)]
        seconds = sum(wait.seconds for wait in waits) / sum(wait.microbatches for wait in waits)
        waited_for = [wait.edge for wait in waits if wait.edge >= 0]


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
    """By edge: how many microbatches its source is ahead of its target, besides the one that it has just sent, where
    each stage comes as soon as it can. Edges lead to later stages."""
    ahead, copies = sent_ahead(plan), [len(stage.device_ids) for stage in plan.stages]
    come, sent = [0] * len(plan.stages), [0] * len(plan.edges)
    for index, edge in sorted(enumerate(plan.edges), key=lambda pair: pair[1].source_stage):
        sent[index] = come[edge.source_stage] + (0 if index in ahead else copies[edge.source_stage])
        come[edge.target_stage] = max(come[edge.target_stage], sent[index])
    return [come[edge.target_stage] - sent[index] for index, edge in enumerate(plan.edges)]
