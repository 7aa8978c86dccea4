"""Mode "balanced": the least bottleneck over segments of the program order, and the devices that reach it."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.bounds.work import work_bound
from planner.partition.infeasible import fitting_segments
from planner.partition.objective import Objective
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.cut_search import fewest_stages
from planner.partition.portfolio.reasons import reasons
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from planner.partition.score import score


def balanced(problem: PartitionProblem, num_stages: int = 0) -> Assignment:
    """`num_stages` 0: as many as help. Raises OptionsError or Infeasible where there is no such plan."""
    check_num_stages(problem, num_stages, "balanced")
    layout = least_bottleneck(problem, num_stages)
    if layout is not None:
        segments, bound = (layout.boundaries, layout.devices), layout.lower_bound_seconds
    else:
        segments, bound = fitting_segments(problem, "balanced", num_stages), work_bound(problem)
    best = score(problem, contiguous(problem, *segments), Objective.THROUGHPUT)
    if not num_stages:
        best = fewest_stages(problem, bundles_of(problem), best, Objective.THROUGHPUT)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=min(bound, best.value))


def check_num_stages(problem: PartitionProblem, num_stages: int, mode: str, per_device: int = 1) -> None:
    """So many of them stand on each device, at most: with several, a multiple of two to so many."""
    possible = allowed_positions(problem).size - 1
    if num_stages < 0 or num_stages > possible:
        raise OptionsError(
            f"mode {mode}: {num_stages} stages asked for, and the program's {problem.num_nodes} nodes can be cut "
            f"into 1 to {possible}",
            num_stages=num_stages,
        )
    if num_stages <= problem.num_devices:
        return
    if per_device == 1:
        raise Infeasible(
            f"mode {mode}: {num_stages} stages asked for, one device each, and the inventory has "
            f"{problem.num_devices}: ask for at most {problem.num_devices} or add "
            f"{num_stages - problem.num_devices} more",
            stages=num_stages,
            devices=problem.num_devices,
        )
    if not any(
        num_stages % each == 0 and num_stages <= each * problem.num_devices for each in range(2, per_device + 1)
    ):
        raise Infeasible(
            f"mode {mode}: {num_stages} stages asked for, as many on each device, and the inventory has "
            f"{problem.num_devices}: ask for two to {per_device} times as many as some of the devices are",
            stages=num_stages,
            devices=problem.num_devices,
        )
