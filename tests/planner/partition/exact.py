"""The optimum of small problems, by trying every assignment: what every search and every bound is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np

from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import Evaluation, evaluate, objective_value
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import bundles_of
from tests.planner.partition.reckoning import Reckoner


def all_contiguous(problem: PartitionProblem, num_stages: int = 0) -> Iterator[Assignment]:
    """Every cut of the program order into segments with every choice of distinct devices."""
    n = problem.num_nodes
    inner = [position for position in range(1, n) if problem.cut_allowed[position]]
    for stages in range(1, min(n, problem.num_devices) + 1):
        if num_stages and stages != num_stages:
            continue
        for cuts in combinations(inner, stages - 1):
            for devices in permutations(range(problem.num_devices), stages):
                yield contiguous(problem, (0, *cuts, n), devices, [""] * stages)


def every_assignment(problem: PartitionProblem, *, free: bool = False) -> Iterator[Assignment]:
    """Each way to give the bundles stages that edges follow, on devices of their own; with `free` on any devices."""
    bundles = bundles_of(problem)
    most = bundles.count if free else min(bundles.count, problem.num_devices)
    for num_stages in range(1, most + 1):
        placed = list(product(range(problem.num_devices), repeat=num_stages)) if free else []
        for stages in product(range(num_stages), repeat=bundles.count):
            if len(set(stages)) < num_stages or not _runs(bundles.after, stages):
                continue
            stage_of_node = tuple(stages[bundle] for bundle in bundles.bundle_of_node)
            for devices in placed or permutations(range(problem.num_devices), num_stages):
                yield Assignment(stage_of_node=stage_of_node, device_of_stage=devices, reasons=("",) * num_stages)


def _runs(after: tuple[tuple[int, ...], ...], stages: tuple[int, ...]) -> bool:
    return all(stages[bundle] <= stages[reader] for bundle, readers in enumerate(after) for reader in readers)


def value_of(problem: PartitionProblem, assignment: Assignment, objective: Objective) -> float:
    return objective_value(evaluate(problem, assignment), objective)


def fits(problem: PartitionProblem, assignment: Assignment) -> bool:
    """Every device has the bytes for what it holds, and can run it: the second no objective but seconds shows."""
    return _fits(problem, evaluate(problem, assignment))


def _fits(problem: PartitionProblem, evaluation: Evaluation) -> bool:
    in_memory = np.array(evaluation.device_peak_bytes) <= problem.device_memory_bytes
    return bool(in_memory.all()) and np.isfinite(evaluation.bottleneck_seconds)


def optima(
    problem: PartitionProblem, objectives: Sequence[Objective], candidates: Iterable[Assignment]
) -> dict[Objective, float]:
    """The lowest value of those that fit, for each objective; inf where none does."""
    if problem.training is not None:
        evaluations = (evaluate(problem, one) for one in candidates)
        fitting = [one for one in evaluations if _fits(problem, one)]
        return {
            objective: min((objective_value(one, objective) for one in fitting), default=np.inf)
            for objective in objectives
        }
    reckoner = Reckoner(problem)
    answers = [reckoned for reckoned in map(reckoner.reckon, candidates) if reckoner.fits(reckoned)]
    return {
        objective: min((reckoner.value(one, objective) for one in answers), default=np.inf) for objective in objectives
    }


def least(problem: PartitionProblem, objective: Objective, candidates: Iterable[Assignment]) -> float:
    return optima(problem, [objective], candidates)[objective]
