"""The fewest seconds per sample, by a search for the least limit that some chain of stages keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.cost_graphs.hybrid.alternatives import FITS
from planner.cost_graphs.hybrid.chains import COPIES, DEGREE, NEVER, NEXT, SLACK, Room, chains_within, choose_in_stage
from planner.cost_graphs.hybrid.ideal_sums import Costs, costs_of, tables_of
from planner.cost_graphs.hybrid.problem import (
    HybridPlan,
    HybridProblem,
    HybridStage,
    idle_sources,
    stage_costs,
    with_idle_sources,
    without_nodes,
)
from planner.errors import Infeasible
from planner.partition.arcs import topological_order
from planner.partition.lattice import Order, enumerate_ideals, order_of, prefixes

MAX_IDEALS = 40_000
# Ideals times devices: 512 MiB.
MAX_STATES = 1 << 24
# Entries of what is known of stages from limit to limit: 96 MiB.
MAX_ROOM = 1 << 22
# Limits are halved, until so many in a row were too low or the next are so close; then the best plan's own is tried.
PATIENCE = 2
CLOSE = 1e-3
# Of the work bound. Higher limits take longer, so that lower ones come first.
FIRST_LIMITS = (1.02, 1.1, 1.5, 3.0, 10.0, np.inf)


def best_hybrid(problem: HybridProblem, out_of_time: Callable[[], bool] = lambda: False) -> HybridPlan:
    """Exact, but for knapsacks that are given up and graphs of more than MAX_IDEALS ideals, where the stages follow one
    order of the nodes; the bound says so. Raises Infeasible where no plan fits the devices' memory."""
    idle = idle_sources(problem)
    plan = _best_hybrid(without_nodes(problem, idle), out_of_time)
    return replace(plan, stages=with_idle_sources(problem, idle, plan.stages))


def _best_hybrid(problem: HybridProblem, out_of_time: Callable[[], bool]) -> HybridPlan:
    order = order_of(problem.num_nodes, problem.edge_source, problem.edge_target)
    costs = costs_of(problem)
    ideals = enumerate_ideals(order, min(MAX_IDEALS, MAX_STATES // costs.num_devices))
    search = _Search(problem, costs, list(ideals) if ideals is not None else _of_one_order(order))
    # All devices busy all the time with the least device seconds of every node.
    least = search.work_seconds / problem.num_devices
    bound, is_exact, stages = least, ideals is not None, None
    for factor in FIRST_LIMITS:
        stages = search.stages_within(least * factor if least else np.inf)
        if stages is not None:
            break
        bound, is_exact = least * factor, is_exact and search.is_decided
    if stages is None:
        raise Infeasible(
            f"no pipeline fits {problem.num_devices} devices of {problem.memory_bytes:.0f} bytes; give more devices, "
            "more memory, or alternatives that hold less"
        )
    best = _seconds(problem, stages)
    failures = 0
    while bound < best * (1 - SLACK) and not out_of_time():
        is_close = failures == PATIENCE or best <= bound * (1 + CLOSE)
        limit = best * (1 - SLACK) if is_close else (bound * best) ** 0.5 if bound > 0 else best / 2
        better = search.stages_within(limit)
        if better is None:
            bound, is_exact, failures = limit, is_exact and search.is_decided, failures + 1
            continue
        failures = 0
        seconds = _seconds(problem, better)
        if seconds >= best:
            # Rounding: what the chain promised is what was there already.
            bound = limit
            continue
        stages, best = better, seconds
    return HybridPlan(stages=stages, seconds_per_sample=best, lower_bound_seconds=bound if is_exact else least)


class _Search:
    """`is_decided`: whether the last search gave no knapsack up."""

    def __init__(self, problem: HybridProblem, costs: Costs, ideals: Sequence[int]) -> None:
        self._costs, self._tables = costs, tables_of(problem, ideals)
        shape = (len(ideals) * (len(ideals) - 1) // 2, len(problem.degrees), len(problem.copies))
        if np.prod(shape) > MAX_ROOM:
            shape = (1, 1, 1)
        self._room = Room(
            least=np.zeros(shape, dtype=np.int64),
            most=np.full(shape, problem.microbatches, dtype=np.int64),
            now=np.zeros(shape, dtype=np.int64),
        )
        self.is_decided = True

    @property
    def work_seconds(self) -> float:
        return float(self._tables.work[-1])

    def stages_within(self, limit_seconds: float) -> tuple[HybridStage, ...] | None:
        """Stages that take no longer each, by how the chains add up; None if there are none."""
        num_ideals, num_devices = len(self._tables.work), self._costs.num_devices
        used_copies = np.full((num_ideals, num_devices + 1), NEVER, dtype=np.int64)
        steps = np.zeros((num_ideals, num_devices + 1, 3), dtype=np.int64)
        self._room.now.fill(-1)
        given_up = chains_within(self._costs, self._tables, limit_seconds, used_copies, steps, self._room)
        self.is_decided = not given_up
        reached = np.nonzero(used_copies[0] < NEVER)[0]
        if self.is_decided:
            self._remember(is_feasible=bool(len(reached)))
        if not len(reached):
            return None
        stages, inner, devices = [], 0, int(reached[0])
        while inner < num_ideals - 1:
            outer, degree, copies = (int(steps[inner, devices, column]) for column in (NEXT, DEGREE, COPIES))
            in_flight = -(-int(used_copies[inner, devices]) // copies)
            stages.append(self._stage(inner, outer, degree, copies, in_flight, limit_seconds))
            inner, devices = outer, devices - copies * int(self._costs.degrees[degree])
        return tuple(stages)

    def _remember(self, *, is_feasible: bool) -> None:
        """Later limits are below those that some chain keeps, and above all others."""
        least, most, now = self._room
        if is_feasible:
            np.copyto(most, np.minimum(most, now), where=now >= 0)
        else:
            np.maximum(least, now, out=least)

    def _stage(
        self, inner: int, outer: int, degree: int, copies: int, in_flight: int, limit_seconds: float
    ) -> HybridStage:
        nodes = np.empty(self._costs.seconds.shape[1], dtype=np.int64)
        choice = np.empty_like(nodes)
        # Sums over ideals round: what just fitted there may just not fit here.
        for limit in (limit_seconds, limit_seconds * (1 + SLACK)):
            answer, count = choose_in_stage(
                self._costs, self._tables, inner, outer, degree, copies, in_flight, limit, nodes, choice
            )
            if answer == FITS:
                break
        assert answer == FITS
        alternatives = tuple(zip(nodes[:count].tolist(), choice[:count].tolist(), strict=True))
        return HybridStage(copies=copies, degree=degree, alternatives=alternatives)


def _seconds(problem: HybridProblem, stages: Sequence[HybridStage]) -> float:
    return max(cost.seconds for cost in stage_costs(problem, stages))


def _of_one_order(order: Order) -> list[int]:
    return prefixes([topological_order(order.before, order.after)])
