"""A bound on the bottleneck, or share of memory, where order ideals are too many to look at all stages between them.

Some of the work is left out, so that they have fewer (`bounds/fewer_nodes`), and the ideals that are left stand in
groups (`ideal_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.partition.bounds.fewer_nodes import FewerNodes, least_work_beside_most, without_nodes, work_beside
from planner.partition.lattice import Words
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import hosts_of
from planner.partition.portfolio.exact_ideals import MAX_IDEALS, least_over_ideals
from planner.partition.portfolio.ideal_groups import GroupStages, Held, Work, in_groups, work_of
from planner.partition.portfolio.ideal_stages import words_of_ideals
from planner.partition.portfolio.least_over_stages import least_over_stages
from planner.partition.portfolio.paths import Path, path_of_strides
from planner.partition.problem import Booleans, Floats, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of, least_seconds

# Of the work, what may be left out where ideals are too many, in turn: each is a gap that stays.
_SHARES = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04)
# What is left out of groups has its work done.
_SHARES_OF_GROUPS = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04)
# Beside how much of the work, as a share, what is left out of groups first of all may run; in turn.
_BESIDE_MUCH = (1.0, 0.32, 0.16, 0.14, 0.12, 0.1, 0.08, 0.04)
# Where more of the work is left out, groups are too wide to prove anything.
_MOST_BESIDE, _MUCH_BESIDE = 0.35, 0.05
# A table of bundles by bundles: 100 MB.
MAX_BUNDLES = 10_000
# A third of a second to list them.
MAX_GROUPED_IDEALS = 60_000
MAX_GROUPS, _FEWEST_GROUPS = 1_200, 100
# Loads of stages between groups, each on each device and between each of its neighbours: two seconds.
MAX_GROUP_LOADS = 10_000_000
# Of paths over unequal links, in turn: the more there are, the wider are groups. A smaller gap is enough.
_STRIDES, _ENOUGH = (180, 48), 0.01


def bound_by_fewer_nodes(
    problem: PartitionProblem, bundles: Bundles, objective: Objective, limit: float = np.inf, effort: float = 1.0
) -> float:
    """The least over ideals once enough work beside other work is left out; 0 if that is too much. For throughput and
    memory."""
    if bundles.count > MAX_BUNDLES:
        return 0.0
    beside = work_beside(problem, bundles)
    for _, fewer in with_less_work(problem, bundles, beside):
        solution = least_over_ideals(
            fewer.problem,
            bundles_of(fewer.problem),
            objective,
            limit=limit,
            effort=effort,
            unlinked=fewer.stands_in,
        )
        if solution is not None:
            return min(solution.value, limit)
    program = with_few_ideals(problem, bundles, beside, int(MAX_GROUPED_IDEALS * effort))
    return _bound_by_groups(program, objective, limit, effort) if program else 0.0


def with_less_work(
    problem: PartitionProblem, bundles: Bundles, beside: Floats
) -> Iterator[tuple[Booleans, FewerNodes]]:
    """(bundles left out, the problem without them), with ever less left of the work `beside` other work [bundles]. None
    where bundles are more than ideals may be."""
    for share in _SHARES if bundles.count <= MAX_IDEALS else ():
        left_out = least_work_beside_most(problem, bundles, beside, share)
        yield left_out, without_nodes(problem, left_out[bundles.bundle_of_node])


def _bound_by_groups(program: FewerIdeals, objective: Objective, limit: float, effort: float) -> float:
    # Over equal links nothing needs to be known of a path; and where much is divided at will, groups are wide already.
    paths = _STRIDES if program.work.beside_share < _MUCH_BESIDE else _STRIDES[-1:]
    has_links = objective is Objective.THROUGHPUT and hosts_of(program.problem).count > 1
    least = 0.0
    for strides in paths if has_links else (0,):
        if least < limit * (1 - _ENOUGH):
            bound = least_over_groups(program, objective, strides, MAX_GROUPS, least=least, limit=limit, effort=effort)
            least = max(least, bound or 0.0)
    return min(least, limit)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FewerIdeals:
    """A program with few enough ideals, as bits in `words`, and the `work` of what it was made of, of which some
    bundles are `left_out` [bundles]."""

    left_out: Booleans
    problem: PartitionProblem
    bundles: Bundles
    unlinked: Booleans
    words: Words
    work: Work


def with_fewer_ideals(problem: PartitionProblem, bundles: Bundles, left_out: Booleans, most: int) -> FewerIdeals | None:
    """Without some bundles [bundles], not the last node's; None if more than `most` ideals are left."""
    fewer = without_nodes(problem, left_out[bundles.bundle_of_node])
    own = bundles_of(fewer.problem)
    words = words_of_ideals(own, most)
    if words is None:
        return None
    return FewerIdeals(
        left_out=left_out,
        problem=fewer.problem,
        bundles=own,
        unlinked=fewer.stands_in,
        words=words,
        work=work_of(problem, bundles, left_out),
    )


def least_over_groups(
    fewer: FewerIdeals,
    objective: Objective,
    strides: int,
    most_groups: int,
    *,
    least: float = 0.0,
    limit: float = np.inf,
    effort: float = 1.0,
) -> float | None:
    """What no plan undercuts, or the limit, along a path of so many strides, 0: of none. Where that is too much to
    search it is tried with half as many groups, and so on; None where it still is with few."""
    path = Path(bundles=(), given_bytes=np.zeros(1))
    if strides:
        path = path_of_strides(fewer.problem, fewer.bundles, fewer.unlinked, strides)
    held, bound = Held(fewer.words, fewer.work, path), None
    while bound is None:
        groups = in_groups(held, most_groups)
        bound = least_over_stages(
            fewer.problem,
            GroupStages(fewer.problem, fewer.bundles, fewer.words, fewer.work, held, groups),
            path,
            objective,
            unlinked=fewer.unlinked,
            least=least,
            limit=limit,
            effort=effort,
            max_loads=MAX_GROUP_LOADS * effort,
        )
        most_groups //= 2
        if most_groups < _FEWEST_GROUPS:
            break
    return None if bound is None else bound.value


def with_few_ideals(problem: PartitionProblem, bundles: Bundles, beside: Floats, most: int) -> FewerIdeals | None:
    """First of what runs beside most, no more than needs be; then the least share that is enough, of those tried."""
    seconds = least_seconds(problem, bundles)

    def without(share: float, beside_much: float) -> FewerIdeals | None:
        left_out = least_work_beside_most(problem, bundles, beside, share, beside_much)
        if seconds[left_out].sum() > _MOST_BESIDE * seconds.sum():
            return None
        return with_fewer_ideals(problem, bundles, left_out, most)

    for beside_much in _BESIDE_MUCH:
        low, high = 0, len(_SHARES_OF_GROUPS) - 1
        best = without(_SHARES_OF_GROUPS[high], beside_much)
        while best and low < high:
            middle = (low + high) // 2
            fewer = without(_SHARES_OF_GROUPS[middle], beside_much)
            if fewer:
                best, high = fewer, middle
            else:
                low = middle + 1
        if best:
            return best
    return None
