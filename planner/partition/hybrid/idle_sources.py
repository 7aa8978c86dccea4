"""Nodes that only stand at the program's start: they cost nothing anywhere, and what reads them gets no bytes.

Such inputs multiply the order ideals, and a plan is as good without them. They go to the first stage that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.partition.hybrid.problem import HybridProblem, HybridStage
from planner.partition.problem import Booleans, Integers


def idle_sources(problem: HybridProblem) -> Booleans:
    """[n] those that read nothing, or idle sources alone. At least one node is not."""
    costs = (problem.seconds, problem.parameter_bytes, problem.held_per_microbatch, problem.held_always)
    idle = np.all([(cost[:, :, 0] == 0).all(axis=0) for cost in costs], axis=0)
    has_bytes = (problem.edge_bytes != 0) | (problem.entering_bytes != 0).any(axis=(0, 2))
    has_bytes |= (problem.leaving_bytes != 0).any(axis=(0, 2))
    idle[problem.edge_source[has_bytes]] = False
    waiting = True
    while waiting:
        waits = problem.edge_target[~idle[problem.edge_source]]
        waiting = bool(idle[waits].any())
        idle[waits] = False
    if idle.all():
        idle[np.setdiff1d(np.arange(problem.num_nodes), problem.edge_source)[:1]] = False
    return np.asarray(idle, dtype=np.bool_)


def without_nodes(problem: HybridProblem, left_out: Booleans) -> HybridProblem:
    """Also without their edges."""
    stays = ~left_out
    number = np.cumsum(stays) - 1
    inside = stays[problem.edge_source] & stays[problem.edge_target]
    return replace(
        problem,
        seconds=problem.seconds[:, stays],
        parameter_bytes=problem.parameter_bytes[:, stays],
        held_per_microbatch=problem.held_per_microbatch[:, stays],
        held_always=problem.held_always[:, stays],
        edge_source=number[problem.edge_source[inside]],
        edge_target=number[problem.edge_target[inside]],
        edge_bytes=problem.edge_bytes[inside],
        entering_bytes=problem.entering_bytes[:, inside],
        leaving_bytes=problem.leaving_bytes[:, inside],
    )


def with_idle_sources(
    problem: HybridProblem, left_out: Booleans, stages: Sequence[HybridStage]
) -> tuple[HybridStage, ...]:
    """`stages` of the problem without them. Each comes to the first stage that reads it, with its first alternative."""
    remaining = np.flatnonzero(~left_out)
    stage_of_node = np.full(problem.num_nodes, len(stages), dtype=np.int64)
    for index, stage in enumerate(stages):
        stage_of_node[remaining[[node for node, _ in stage.alternatives]]] = index
    _settle(problem, left_out, stage_of_node)
    completed = []
    for index, stage in enumerate(stages):
        alternatives = [(int(remaining[node]), alternative) for node, alternative in stage.alternatives]
        alternatives += [(node, 0) for node in np.flatnonzero(left_out & (stage_of_node == index)).tolist()]
        completed.append(replace(stage, alternatives=tuple(sorted(alternatives))))
    return tuple(completed)


def _settle(problem: HybridProblem, left_out: Booleans, stage_of_node: Integers) -> None:
    """Until each stands no later than its readers; those that nothing reads stand first."""
    read = np.zeros(problem.num_nodes, dtype=np.bool_)
    read[problem.edge_source] = True
    stage_of_node[left_out & ~read] = 0
    edges = np.flatnonzero(left_out[problem.edge_source])
    before = None
    while before is None or not np.array_equal(before, stage_of_node):
        before = stage_of_node.copy()
        np.minimum.at(stage_of_node, problem.edge_source[edges], before[problem.edge_target[edges]])
