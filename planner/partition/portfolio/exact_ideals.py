"""The least bottleneck, or share of memory, over every chain of order ideals: whatever order the program runs in.

Tarnawski et al. (NeurIPS 2020), with evaluate's own loads and bytes: a stage is the difference of two ideals, and all
that it holds and moves follows from the two. Exact over equal links; elsewhere a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.ordered.least_over_walks import Walk
from planner.partition.portfolio.ideal_stages import Ideals, IdealStages, all_ideals
from planner.partition.portfolio.least_over_stages import Least, least_over_stages
from planner.partition.portfolio.paths import Path, longest_path, path_of_strides
from planner.partition.problem import Booleans, PartitionProblem
from planner.partition.program_orders import Bundles

# Numbers of an ideal that are kept, of all ideals: its nodes, values and their readers.
MAX_ELEMENTS = 3e6
MAX_IDEALS = 1500
# On hosts, a bound that leaves a larger gap is tried along a second path, of so many strides.
_ENOUGH, _STRIDES = 0.01, 32
# Loads of stages between ideals, each on each device and between each of its neighbours: two seconds.
MAX_STAGE_LOADS = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealSolution:
    """`value`: what no chain of ideals undercuts, and the assignment's own if there is one and `exact`."""

    assignment: Assignment | None
    value: float
    exact: bool


def least_over_ideals(
    problem: PartitionProblem,
    bundles: Bundles,
    objective: Objective,
    *,
    num_stages: int = 0,
    limit: float = np.inf,
    effort: float = 1.0,
    unlinked: Booleans | None = None,
) -> IdealSolution | None:
    """Of values below `limit`; None where that is too much to search. For throughput and memory. `unlinked` [values]:
    those that may travel over any link."""
    size = problem.num_nodes + problem.num_values + problem.read_value.size
    ideals = all_ideals(bundles, int(min(MAX_IDEALS, MAX_ELEMENTS * effort / size)))
    if ideals is None:
        return None
    unlinked = np.zeros(problem.num_values, np.bool_) if unlinked is None else unlinked
    stages = IdealStages(problem, bundles, ideals)

    def along(path: Path, least: float) -> Least | None:
        return least_over_stages(
            problem,
            stages,
            path,
            objective,
            unlinked=unlinked,
            num_stages=num_stages,
            least=least,
            limit=limit,
            effort=effort,
            max_loads=MAX_STAGE_LOADS * effort,
        )

    first = along(longest_path(problem, bundles, unlinked), 0.0)
    if first is None:
        return None
    value, is_plan = first.value, first.is_one_host or objective is Objective.MEMORY
    if not is_plan and value < limit * (1 - _ENOUGH):
        # What passes beside that path may be more.
        second = along(path_of_strides(problem, bundles, unlinked, _STRIDES), value)
        value = max(value, second.value if second else 0.0)
    exact = first.walk.is_least and is_plan and problem.training is None
    return IdealSolution(assignment=_assignment(bundles, ideals, first.walk), value=value, exact=exact)


def _assignment(bundles: Bundles, ideals: Ideals, walk: Walk) -> Assignment | None:
    if not walk.devices:
        return None
    stage_of_bundle = len(walk.devices) - ideals.members[list(walk.boundaries[1:])].sum(axis=0)
    return bundles.assignment(stage_of_bundle, walk.devices)
