"""Two stages on each device, in a V, for the schedules that need them so; whatever mode is asked for that may choose.

Segments of the program order: each device gets a share of the work that goes with its speed, half of it on the way
there and half on the way back, for every number of devices; then cuts move while the objective falls, and for a
training step devices too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.bounds.work import work_bound
from planner.partition.describe import describe_bytes
from planner.partition.infeasible import binding_constraint
from planner.partition.objective import Objective
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.reasons import reasons
from planner.partition.portfolio.several_stages import moved, spread, there_and_back
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.request import Request
from planner.partition.score import Scored, score

# Evaluations for each number of devices: cuts of up to eight devices have settled by then.
_EVALUATIONS = 200


def v_shaped(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises OptionsError where so many stages cannot stand in a V, Infeasible where none fit. Deterministic."""
    tried = [
        _moved(problem, request, _spread(problem, num_devices)) for num_devices in _numbers_of_devices(problem, request)
    ]
    best: Scored | None = None
    for scored in tried:
        if scored.is_better_than(best):
            best = scored
    if best is None:
        raise _nothing_fits(problem, request.mode, tried)
    if request.objective is Objective.STEP_TIME:
        best = _with_devices_moved(problem, request, best)
    bound = _bound(problem, request.objective, best.value)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=bound)


def _with_devices_moved(problem: PartitionProblem, request: Request, best: Scored) -> Scored:
    assert problem.training is not None
    place = there_and_back(best.assignment.num_stages // 2)
    scored = score(
        problem, moved(problem, request, best.assignment, place, problem.training.schedule), request.objective
    )
    return scored if scored.is_better_than(best) else best


def _nothing_fits(problem: PartitionProblem, mode: str, tried: Sequence[Scored]) -> Infeasible:
    """Names the device that lacks the most, in the stages that lack the least."""
    assert problem.training is not None
    shortages = [np.array(one.evaluation.device_peak_bytes) - problem.device_memory_bytes for one in tried]
    at = min(range(len(tried)), key=lambda index: int(shortages[index].max()))
    device = int(shortages[at].argmax())
    needed, lacking = tried[at].evaluation.device_peak_bytes[device], int(shortages[at][device])
    stages = f"stages in a V, as schedule {problem.training.schedule.value} needs them,"
    if lacking <= 0:
        return Infeasible(
            f"mode {mode}: no {stages} that were tried let every node run where it may, by what is fixed and by what "
            f"devices can run; fix fewer modules, or choose another schedule"
        )
    name = problem.labels.devices[device]
    return Infeasible(
        f"mode {mode}: no {stages} were found that fit the devices' memory. In the closest, device {name!r} needs "
        f"{describe_bytes(needed)} and has {describe_bytes(needed - lacking)}: {describe_bytes(lacking)} are lacking; "
        f"give it more, or choose a schedule that keeps fewer microbatches{binding_constraint(problem)}",
        device=name,
        needed_bytes=needed,
        lacking_bytes=lacking,
    )


def _numbers_of_devices(problem: PartitionProblem, request: Request) -> Iterator[int]:
    assert problem.training is not None
    most = min(problem.num_devices, (allowed_positions(problem).size - 1) // 2)
    num_stages = request.num_stages
    if num_stages % 2 or num_stages > 2 * most or most < 1:
        raise OptionsError(
            f"mode {request.mode}: schedule {problem.training.schedule.value} needs two stages on each device; "
            f"{num_stages or 2} stages asked for, and an even number up to {2 * most} can be had of "
            f"{problem.num_devices} devices and {allowed_positions(problem).size} places to cut",
            num_stages=num_stages,
        )
    return iter([num_stages // 2] if num_stages else range(1, most + 1))


def _spread(problem: PartitionProblem, num_devices: int) -> Assignment:
    """On the fastest devices, in the order of the inventory."""
    seconds = np.where(np.isfinite(problem.work_seconds), problem.work_seconds, 0.0).sum(axis=1)
    fastest = np.sort(np.argsort(seconds, kind="stable")[:num_devices])
    return spread(problem, fastest.tolist(), there_and_back(num_devices))


def _moved(problem: PartitionProblem, request: Request, start: Assignment) -> Scored:
    """Each cut in turn as far as that is better, in strides that halve."""
    allowed = allowed_positions(problem)
    best, left = score(problem, start, request.objective), int(_EVALUATIONS * request.effort)
    stride = max(1, allowed.size // (2 * start.num_stages))
    while stride and left > 0:
        improved = False
        for cut in range(1, start.num_stages):
            for way in (-stride, stride):
                candidate = _with_cut(problem, best.assignment, allowed, cut, way)
                if candidate is None:
                    continue
                left -= 1
                scored = score(problem, candidate, request.objective)
                if scored.is_better_than(best) or (not best.fits and scored.fits):
                    best, improved = scored, True
        if not improved:
            stride //= 2
    return best


def _with_cut(
    problem: PartitionProblem, assignment: Assignment, allowed: Integers, cut: int, way: int
) -> Assignment | None:
    """With one cut so many places further; None where another one stands in between."""
    starts = np.searchsorted(assignment.stage_of_node, np.arange(assignment.num_stages))
    boundaries = [*starts.tolist(), problem.num_nodes]
    place = int(np.searchsorted(allowed, boundaries[cut])) + way
    if not 0 < place < allowed.size - 1 or not boundaries[cut - 1] < allowed[place] < boundaries[cut + 1]:
        return None
    boundaries[cut] = int(allowed[place])
    return contiguous(problem, boundaries, assignment.device_of_stage, assignment.reasons)


def _bound(problem: PartitionProblem, objective: Objective, value: float) -> float | None:
    """Work divided at will."""
    assert problem.training is not None
    turns = {Objective.THROUGHPUT: 1, Objective.STEP_TIME: problem.training.microbatches}.get(objective)
    return min(value, turns * work_bound(problem)) if turns else None
