"""The least bottleneck over every chain of order ideals, where these are few: whatever order the program runs in.

Tarnawski et al. (NeurIPS 2020), with evaluate's own loads and bytes: a stage is the difference of two ideals, and all
that it holds and moves follows from the two. Exact over equal links; elsewhere a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.communication import UNKNOWN
from planner.partition.objective import Objective
from planner.partition.ordered.device_classes import device_classes
from planner.partition.ordered.state_space import build_space, counted_choices, num_counted_states
from planner.partition.portfolio.ideal_stages import IdealStages
from planner.partition.portfolio.program_orders import Bundles
from planner.partition.problem import Floats, Integers, PartitionProblem

# Elements that the tables of all pairs of ideals may have: about a second.
MAX_ELEMENTS = 3e7
MAX_STATES = 512
MAX_IDEALS = 4000


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
) -> IdealSolution | None:
    """Of values below `limit`; None where that is too much to search. For throughput and memory."""
    classes = device_classes(problem)
    if num_counted_states(classes) > MAX_STATES * effort:
        return None
    size = problem.num_nodes + problem.num_values + problem.read_value.size
    ideals = _ideals(bundles, int(min(MAX_IDEALS, (2 * MAX_ELEMENTS * effort / size) ** 0.5)))
    if ideals is None:
        return None
    space = build_space(
        (0,) * len(classes.members),
        counted_choices(classes),
        num_stages=num_stages,
        max_stages=problem.num_devices,
        linked=False,
    )
    device = np.array([classes.representatives[label[1]] for label in space.labels], dtype=np.int64)
    stages = IdealStages(problem, _members(ideals, bundles, problem.num_nodes))
    best = np.full((space.num_states, len(ideals)), np.inf)
    best[space.final, -1] = 0.0
    step_of = np.full(best.shape, -1, dtype=np.int64)
    end_of = np.full(best.shape, -1, dtype=np.int64)
    for start in range(len(ideals) - 2, -1, -1):
        ends = stages.ends(start, limit if objective is Objective.THROUGHPUT else np.inf)
        if not ends.size:
            continue
        loads = _loads(problem, stages, device, start, ends, objective)
        values = np.maximum(loads[space.label], best[space.target][:, ends])
        chosen = values.argmin(axis=1)
        found = values[np.arange(chosen.size), chosen]
        order = np.lexsort((-np.arange(found.size), -found))
        order = order[found[order] < limit]
        states = space.source[order]
        best[states, start], step_of[states, start] = found[order], order
        end_of[states, start] = ends[chosen[order]]
    value = float(best[0, 0])
    exact = (classes.uniform_links or objective is Objective.MEMORY) and problem.training is None
    if not np.isfinite(value):
        return IdealSolution(assignment=None, value=limit, exact=exact)
    own = [list(members) for members in classes.members]
    state, at, stage_of_node, devices = 0, 0, np.zeros(problem.num_nodes, dtype=np.int64), list[int]()
    while at < len(ideals) - 1:
        step, end = int(step_of[state, at]), int(end_of[state, at])
        stage_of_node[stages.members[end] & ~stages.members[at]] = len(devices)
        devices.append(own[space.labels[space.label[step]][1]].pop(0))
        state, at = int(space.target[step]), end
    assignment = Assignment(
        stage_of_node=tuple(stage_of_node.tolist()), device_of_stage=tuple(devices), reasons=("",) * len(devices)
    )
    return IdealSolution(assignment=assignment, value=value, exact=exact)


def _loads(
    problem: PartitionProblem,
    stages: IdealStages,
    device: Integers,
    start: int,
    ends: Integers,
    objective: Objective,
) -> Floats:
    """[labels, ends]; inf where memory does not suffice or the device cannot run a node."""
    row = stages.row(start, ends)
    memory = problem.device_memory_bytes[device].astype(np.float64)[:, None]
    loads = stages.seconds(device, start, ends)
    if objective is Objective.MEMORY:
        shares = np.divide(row.peak_bytes, memory, out=np.full((device.size, ends.size), np.inf), where=memory > 0)
        fits = (row.peak_bytes <= memory) & np.isfinite(loads)
        return np.where(fits, np.where(row.peak_bytes > 0, shares, 0.0), np.inf)
    latency, per_byte = problem.best_latency_seconds, problem.best_seconds_per_byte
    loads += row.received_bytes * per_byte[UNKNOWN, device][:, None] + row.receives * latency[UNKNOWN, device][:, None]
    loads += row.sent_bytes * per_byte[device, UNKNOWN][:, None] + row.sends * latency[device, UNKNOWN][:, None]
    return np.where(row.peak_bytes <= memory, loads, np.inf)


def _ideals(bundles: Bundles, limit: int) -> list[int] | None:
    """All order ideals of the bundles as bitsets, smaller ones first; None if there are more than `limit`."""
    if bundles.count >= limit:
        return None
    before = [sum(1 << producer for producer in producers) for producers in bundles.before]
    level, found = {0}, [0]
    for _ in range(bundles.count):
        longer: set[int] = set()
        for held in level:
            for bundle, needed in enumerate(before):
                if not held >> bundle & 1 and needed & held == needed:
                    longer.add(held | 1 << bundle)
            if len(found) + len(longer) > limit:
                return None
        level = longer
        found.extend(sorted(level))
    return found


def _members(ideals: list[int], bundles: Bundles, num_nodes: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[ideals, nodes]."""
    rows = np.zeros((len(ideals), bundles.count), dtype=np.bool_)
    for row, ideal in zip(rows, ideals, strict=True):
        row[[bundle for bundle in range(bundles.count) if ideal >> bundle & 1]] = True
    return rows[:, bundles.bundle_of_node]
