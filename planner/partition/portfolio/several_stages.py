"""Training steps with several stages on each device: round and round the devices, or there and back.

A microbatch that comes by each device several times, each time for less, reaches the last one sooner: the pipeline
fills and drains in a part of the time. Stages are segments of the program order, and each device's share of the work
goes with its speed; then cuts and devices move on the step's own seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.partition.assignment import Assignment, contiguous
from planner.partition.objective import Objective, PipelineSchedule
from planner.partition.ordered.cut_moves import standing, with_cuts_moved
from planner.partition.ordered.hosts import device_speeds
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.request import Request
from planner.partition.score import Scored

# Rounds of stages. More of them are seldom better: each sends what it makes once more.
MOST_ROUNDS = 4
_BRIEF = 0.1
# By the schedule that is asked for: what has the passes of stages round and round, and of those there and back.
_ROUND = {
    PipelineSchedule.INTERLEAVED: PipelineSchedule.INTERLEAVED,
    PipelineSchedule.BEST: PipelineSchedule.ZERO_BUBBLE,
}
_BACK = {PipelineSchedule.BEST: PipelineSchedule.ZERO_BUBBLE_V}


def may_have_several(problem: PartitionProblem, request: Request) -> bool:
    """Whether stages are put on one device where that makes the step shorter."""
    if problem.training is None or request.objective is not Objective.STEP_TIME:
        return False
    return problem.training.schedule in _ROUND and not (request.replicate or request.saturate_host)


def offer_several_stages(portfolio: Portfolio) -> None:
    """On the devices of the best plan in its order, all and the quickest half of them; where more stages are asked for
    than there are devices, on the quickest of all. Which of these ways is best is seen after a tenth of the effort."""
    problem, request = portfolio.problem, portfolio.request
    assert problem.training is not None
    order = list(range(problem.num_devices))
    if portfolio.best is not None:
        order = list(dict.fromkeys(portfolio.best.assignment.device_of_stage))
    ways: list[tuple[Scored, _Way]] = []
    for devices, way in _ways(problem, request, order):
        if request.out_of_time():
            break
        brief = replace(request, effort=_BRIEF * request.effort)
        scored = portfolio.offer(moved(problem, brief, spread(problem, devices, way.place), way.place, way.schedule))
        if scored is not None and scored.fits:
            ways.append((scored, way))
    if ways and not request.out_of_time():
        scored, way = min(ways, key=lambda one: one[0].value)
        portfolio.offer(moved(problem, request, scored.assignment, way.place, way.schedule))


class _Way(NamedTuple):
    """Which device each stage is on, by place, and the schedule whose orders they have."""

    place: tuple[int, ...]
    schedule: PipelineSchedule


def _ways(problem: PartitionProblem, request: Request, order: Sequence[int]) -> Iterator[tuple[list[int], _Way]]:
    assert problem.training is not None
    schedule, most = problem.training.schedule, allowed_positions(problem).size - 1
    for rounds in range(2, MOST_ROUNDS + 1):
        counts = [len(order), len(order) // 2]
        if request.num_stages:
            counts = [] if request.num_stages % rounds else [request.num_stages // rounds]
        for count in counts:
            if not 2 <= count <= len(order) or rounds * count > most:
                continue
            devices = _quickest(problem, order, count)
            yield devices, _Way(tuple(range(count)) * rounds, _ROUND[schedule])
            if rounds == 2 and schedule in _BACK:
                yield devices, _Way(there_and_back(count), _BACK[schedule])


def _quickest(problem: PartitionProblem, order: Sequence[int], count: int) -> list[int]:
    speeds = device_speeds(problem)
    chosen = set(sorted(order, key=lambda device: -speeds[device])[:count])
    return [device for device in order if device in chosen]


def there_and_back(num_devices: int) -> tuple[int, ...]:
    return (*range(num_devices), *reversed(range(num_devices)))


def moved(
    problem: PartitionProblem, request: Request, start: Assignment, place: Sequence[int], schedule: PipelineSchedule
) -> Assignment:
    """Stages of a start at those places, with their cuts and devices moved: see `with_cuts_moved`."""
    assert problem.training is not None
    inner = np.flatnonzero(np.diff(start.stage_of_node)) + 1
    devices = [start.device_of_stage[place.index(one)] for one in range(max(place) + 1)]
    boundaries, chosen = with_cuts_moved(
        problem,
        np.concatenate([[0], inner, [problem.num_nodes]]),
        np.array(devices, dtype=np.int64),
        keeps_count=True,
        effort=request.effort,
        out_of_time=request.out_of_time,
        stands=standing(schedule, problem.training.microbatches, place),
    )
    return contiguous(problem, tuple(boundaries.tolist()), chosen[list(place)].tolist(), start.reasons)


def spread(problem: PartitionProblem, devices: Sequence[int], place: Sequence[int]) -> Assignment:
    """Each device's share of the work goes with its speed, and is divided evenly among its stages."""
    seconds = np.where(np.isfinite(problem.work_seconds), problem.work_seconds, 0.0).sum(axis=1)[list(devices)]
    speeds = 1.0 / np.maximum(seconds, np.finfo(np.float64).tiny ** 0.5)
    shares = (speeds / np.bincount(place))[list(place)]
    allowed = allowed_positions(problem)
    ends = _distinct(np.searchsorted(_progress(problem)[allowed], np.cumsum(shares / shares.sum())[:-1]), allowed.size)
    boundaries = (0, *allowed[ends].tolist(), problem.num_nodes)
    return contiguous(problem, boundaries, [devices[one] for one in place])


def _progress(problem: PartitionProblem) -> Floats:
    """By position, from 0 to 1: how much of the work lies before it, over all devices; nodes count a little each."""
    work = np.where(np.isfinite(problem.work_seconds), problem.work_seconds, 0.0).mean(axis=0)
    work = work + (work.sum() or 1.0) * 1e-6 / problem.num_nodes
    before: Floats = np.concatenate([[0.0], np.cumsum(work)]) / work.sum()
    return before


def _distinct(places: Integers, count: int) -> Integers:
    """Ascending without repetition, between both ends."""
    steps = np.arange(places.size)
    ascending = np.maximum.accumulate(np.maximum(places, 1) - steps) + steps
    limit = count - 1 - places.size + steps
    return np.asarray(np.minimum(ascending, limit), dtype=np.int64)
