"""Positions worth cutting at, where trying all would take too long, and how far a stage reaches from each."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Floats, Integers, PartitionProblem

# Room for rounding in sums of seconds, so that no segment on the limit is left out.
LIMIT_MARGIN = 1e-9


def allowed_positions(problem: PartitionProblem) -> Integers:
    """Ascending, with both ends."""
    return np.flatnonzero(problem.cut_allowed)


def crossing_bytes(problem: PartitionProblem) -> Floats:
    """By position: bytes of the values that are made before it and needed after it."""
    return _crossing(problem, problem.value_bytes.astype(np.float64))


def num_crossing(problem: PartitionProblem) -> Floats:
    """By position: how many values, even of 0 bytes."""
    return _crossing(problem, np.ones(problem.num_values))


def _crossing(problem: PartitionProblem, sizes: Floats) -> Floats:
    n = problem.num_nodes
    needed = problem.value_last_read > problem.value_producer
    change = np.zeros(n + 2)
    np.add.at(change, problem.value_producer[needed] + 1, sizes[needed])
    np.add.at(change, np.minimum(problem.value_last_read[needed], n) + 1, -sizes[needed])
    return np.cumsum(change)[: n + 1]


def few_positions(problem: PartitionProblem, count: int) -> Integers:
    """About `count` of them: those with the least to send in each slice of equal compute and bytes of state."""
    allowed = allowed_positions(problem)
    if allowed.size <= count:
        return allowed
    progress = _progress(problem)[allowed]
    slices = np.minimum((progress * (count - 1)).astype(np.int64), count - 2)
    order = np.lexsort((allowed, crossing_bytes(problem)[allowed], slices))
    first = np.concatenate([[True], np.diff(slices[order]) > 0])
    return np.unique(np.concatenate([allowed[order[first]], allowed[[0, -1]]]))


def near_positions(allowed: Integers, boundaries: tuple[int, ...], count: int) -> Integers:
    """About `count` of the allowed ones: all right beside each boundary, then ever further apart; and both ends."""
    own = np.searchsorted(allowed, boundaries)
    each = max(2, count // max(1, own.size))
    strides = np.unique(np.round(np.geomspace(1, max(2, allowed.size // 8), each // 2)).astype(np.int64))
    around = np.concatenate([[0], strides, -strides])
    places = np.clip((own[:, None] + around).ravel(), 0, allowed.size - 1)
    near: Integers = np.unique(np.concatenate([places, [0, allowed.size - 1]]))
    return np.asarray(allowed[near], dtype=np.int64)


def _progress(problem: PartitionProblem) -> Floats:
    """By position, from 0 to 1: how much of the nodes, of the compute and of the state lies before it."""
    runs = np.isfinite(problem.work_seconds)
    compute = np.where(runs, problem.work_seconds, 0.0).sum(axis=0) / runs.sum(axis=0)
    state = np.zeros(problem.num_nodes)
    np.add.at(state, problem.use_node, problem.state_bytes[problem.use_state].astype(np.float64))
    parts = [part / part.sum() for part in (compute, state, np.ones(problem.num_nodes)) if part.sum() > 0]
    before = np.zeros(problem.num_nodes + 1)
    np.cumsum(sum(parts) / len(parts), out=before[1:])
    return np.minimum(before, 1.0)


def furthest_end(problem: PartitionProblem, limit: float) -> Integers:
    """By start: the furthest end of a stage within `limit` seconds, on the device that gets furthest."""
    furthest = np.zeros(problem.num_nodes + 1, dtype=np.int64)
    for before in distinct_rows(problem.compute_before).rows:
        ends = np.searchsorted(before, before + limit * (1 + LIMIT_MARGIN), side="right") - 1
        furthest = np.maximum(furthest, ends)
    return furthest
