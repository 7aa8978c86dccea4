"""The best order of a training step's passes that a search finds, and what no order undercuts.

Backward passes are split: one for inputs with the one for weights behind it is a whole one, but tells its gradient
earlier. Each copy of a stage takes its microbatches in order, which costs nothing where stages have no copies, since
microbatches are equal. Effort is counted in moves, so that the answer is the same on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.objective import NAMED_SCHEDULES, V_SCHEDULES, PipelineSchedule
from planner.partition.problem import Floats, Integers
from planner.partition.training.memory import counted_microbatches
from planner.partition.training.named_orders import device_orders, stands_in_v
from planner.partition.training.orders.dispatch import dispatch
from planner.partition.training.orders.exchange import improve
from planner.partition.training.orders.lower_bound import arc_bounds, lower_bound
from planner.partition.training.orders.room import Room, most_alone, most_of_copies, neighbours, shared, splits
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import BACKWARD, WEIGHT, StepGraph, TrainingStep, step_graph
from planner.partition.training.step_time import step_seconds

Orders = Mapping[int, tuple[Step, ...]]

# Seconds become whole numbers below this, all of a step together, so that paths compare exactly.
_TICKS = 2.0**40
# Rounding to ticks, and of sums in another order.
_MARGIN = 1 - 1e-9
# From how many starts the search climbs, and at how many passes each climb looks: about a quarter of a second for all.
# Five times as many took the mean gap of 60 random steps from 0.80 to 0.78 %.
_STARTS, _WORK = 3, 1_000_000
# A value this close to the bound is proven.
_PROVEN = 1e-9
# Ways to share a device's memory that are bounded one by one: about a fifth of a second.
_SPLITS = 64
# Ways to share memory that are tried in the search: about a fifth of a second.
_SHARES = 30
_PATIENCE = (0.0, 0.5, 1.0)
_ZERO_BUBBLES = PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZERO_BUBBLE_H2


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOrder:
    """`orders`: by device. `lower_bound_seconds`: of any order that the room allows."""

    orders: Orders
    seconds: float
    lower_bound_seconds: float


def best_order(step: TrainingStep, room: Room) -> BestOrder:
    """Never worse than a named schedule that the room allows. Deterministic; under a second for up to 1 000 passes."""
    named = list(_named(step, room, NAMED_SCHEDULES))
    most = most_alone(step, room)
    bound = lower_bound(step_graph(step, split=True, most_kept=most))
    candidates = [_search(step, room, bound), *named]
    seconds = [step_seconds(step, orders) for orders in candidates]
    least = int(np.argmin(seconds))
    if seconds[least] > bound * (1 + _PROVEN):
        bound = _bound_by_sharing(step, room, bound, counted_microbatches(candidates[least], len(step.stages)))
    return BestOrder(
        orders=candidates[least], seconds=seconds[least], lower_bound_seconds=min(bound * _MARGIN, seconds[least])
    )


def quick_order(step: TrainingStep, room: Room) -> Orders:
    """For a search that compares many assignments: one order by priority, or a zero bubble that there is room for."""
    kept = most_of_copies(step)
    if not room.fits(step, kept):
        kept = shared(step, room, _need(step))
    graph = step_graph(step, split=True, most_kept=kept)
    _, tail = arc_bounds(graph)
    by_priority = graph.orders(dispatch(graph.jobs, tail, 0.0)[0])
    named = _named(step, room, _ZERO_BUBBLES)
    return min((by_priority, *named), key=lambda orders: step_seconds(step, orders))


def _named(step: TrainingStep, room: Room, schedules: Sequence[PipelineSchedule]) -> Iterator[Orders]:
    """Those that there is room for, backward passes split in two; of stages in a V those that are for them, too."""
    for schedule in (*schedules, *(V_SCHEDULES if stands_in_v(step.copies) else ())):
        orders = device_orders(schedule, step.microbatches, step.copies)
        split = {device: tuple(_split(order)) for device, order in orders.items()}
        if room.fits(step, counted_microbatches(split, len(step.stages))):
            yield split


def _split(order: Sequence[Step]) -> Iterator[Step]:
    for step in order:
        if step.kind is Pass.BACKWARD:
            yield replace(step, kind=Pass.BACKWARD_INPUT)
            yield replace(step, kind=Pass.BACKWARD_WEIGHT)
        else:
            yield step


def _bound_by_sharing(step: TrainingStep, room: Room, bound: float, kept: Sequence[int]) -> float:
    """However a device shares its room among its stages, some way of it allows no less.

    Ways like the one in hand come first: one that allows the bound known already ends it for the device.
    """
    for device in room.device_bytes:
        ways = splits(step, room, device, at_most=_SPLITS)
        ways.sort(key=lambda way: sum(abs(a - b) for a, b in zip(way, kept, strict=True)))
        least = math.inf
        for way in ways:
            least = min(least, lower_bound(step_graph(step, split=True, most_kept=way)))
            if least <= bound:
                break
        bound = max(bound, least if ways else 0.0)
    return bound


def _need(step: TrainingStep) -> list[float]:
    """[stages] how many microbatches each would have to keep for the busiest device never to wait for memory: as many
    as pass that device while one is on its way from the stage's forward pass to the end of its backward passes."""
    graph = step_graph(step, split=True, most_kept=most_of_copies(step))
    start, _ = arc_bounds(graph)
    shape = 3, len(step.stages), step.microbatches
    ends = (start + graph.jobs.seconds).reshape(shape)[WEIGHT, :, 0]
    work = np.bincount(graph.jobs.device, graph.jobs.seconds).max() / step.microbatches or 1.0
    spans = (ends - start.reshape(shape)[0, :, 0]) / work
    return [float(span) / len(own) + 1.0 for span, own in zip(spans, step.copies, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Start:
    """A sequence of passes that keeps at most `most_kept` [stages] microbatches, for the search to begin from."""

    seconds: float
    most_kept: tuple[int, ...]
    graph: StepGraph
    scale: float
    sequence: Integers
    begin: Integers

    def orders(self) -> Orders:
        return self.graph.orders(self.sequence)


def _search(step: TrainingStep, room: Room, bound: float) -> Orders:
    starts = list(_starts(step, tuple(shared(step, room, _need(step)))))
    target = bound * (1 + _PROVEN)
    starts += _share_otherwise(step, room, min(starts, key=_seconds), target)
    starts.sort(key=_seconds)
    best = starts[0]
    for seed, start in enumerate(starts[:_STARTS]):
        if best.seconds > target:
            best = min(best, _improved(start, bound, _WORK, seed), key=_seconds)
    return best.orders()


def _seconds(start: _Start) -> float:
    return start.seconds


def _share_otherwise(step: TrainingStep, room: Room, best: _Start, target: float) -> list[_Start]:
    """Shares memory among the stages of a device in other ways, for as long as a neighbour of the best is better."""
    better, tries = [best], 0
    while better[-1].seconds > target:
        for most_kept in neighbours(step, room, better[-1].most_kept):
            tries += 1
            start = min(_starts(step, tuple(most_kept)), key=_seconds)
            if start.seconds < better[-1].seconds:
                better.append(start)
                break
            if tries >= _SHARES:
                return better[1:]
        else:
            break
    return better[1:]


def _starts(step: TrainingStep, most_kept: tuple[int, ...]) -> Iterator[_Start]:
    graph, scale = _in_ticks(step_graph(step, split=True, most_kept=most_kept))
    for priority in _priorities(graph):
        for patience in _PATIENCE:
            sequence, begin = dispatch(graph.jobs, priority, patience)
            start = _Start(
                seconds=math.inf, most_kept=most_kept, graph=graph, scale=scale, sequence=sequence, begin=begin
            )
            yield _improved(start, 0.0, work=0)


def _priorities(graph: StepGraph) -> Iterator[Floats]:
    """What is to go first: the longest way to the end; backward passes; all but weights; both; the earliest."""
    start, tail = arc_bounds(graph)
    kind = np.arange(graph.num_passes) // (graph.num_stages * graph.microbatches)
    most = tail.max()
    yield tail
    yield tail + most * (kind == BACKWARD)
    yield tail - most * (kind == WEIGHT)
    yield tail + most * (kind == BACKWARD) - most * (kind == WEIGHT)
    yield -start


def _improved(start: _Start, target: float, work: int, seed: int = 0) -> _Start:
    value, sequence = improve(start.sequence, start.begin, start.graph.jobs, target * start.scale, work, seed)
    return replace(start, seconds=value / start.scale, sequence=sequence)


def _in_ticks(graph: StepGraph) -> tuple[StepGraph, float]:
    """The graph with whole numbers for seconds, and how many make a second."""
    jobs = graph.jobs
    scale = _TICKS / (float(jobs.seconds.sum() + jobs.closing.sum()) or 1.0)
    seconds = ("seconds", "lag", "closing", "into_delay", "out_delay")
    return replace(graph, jobs=jobs._replace(**{name: np.rint(getattr(jobs, name) * scale) for name in seconds})), scale
