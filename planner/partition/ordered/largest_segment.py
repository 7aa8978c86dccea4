"""The most bytes that any segment within a limit on seconds can need, from above and for all starts at once."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.positions import crossing_bytes, furthest_end
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.training.memory import most_kept_microbatches


def largest_segment_bytes(problem: PartitionProblem, limit: float) -> int:
    """At least what any such segment needs: its states, and all that can be live with it. O(n log n + uses)."""
    n = problem.num_nodes
    starts = np.flatnonzero(problem.cut_allowed[:n])
    furthest = furthest_end(problem, limit)[:n]
    ends = np.maximum(furthest, np.arange(n) + 1)
    crossing = crossing_bytes(problem)
    entering = crossing[:n]
    needed = _state_bytes(problem, ends) + entering
    needed += _largest_within(_live_root_bytes(problem), ends)
    leaving = _largest_within(crossing[1:], ends)
    needed += problem.microbatches_in_flight * (entering + leaving)
    if problem.training is not None:
        saved = _running(problem.root_producer, problem.root_saved_bytes, n)
        microbatches = most_kept_microbatches(problem.training, problem.num_devices)
        needed += microbatches * (saved[ends] - saved[:n] + entering)
    reached = starts[furthest[starts] > starts]
    return int(needed[reached].max(initial=0.0))


def _live_root_bytes(problem: PartitionProblem) -> Floats:
    """[n] bytes of the storages that nodes made and that are live at each."""
    n = problem.num_nodes
    made = problem.root_producer >= 0
    change = np.zeros(n + 2)
    np.add.at(change, problem.root_producer[made], problem.root_bytes[made])
    np.add.at(change, np.minimum(problem.root_last_access[made], n) + 1, -problem.root_bytes[made])
    return np.cumsum(change)[:n]


def _state_bytes(problem: PartitionProblem, ends: Integers) -> Floats:
    """[n] bytes of the distinct states used in [start, ends[start]); `ends` ascend.

    All uses in it, less those of a state that the segment used before: pairs of consecutive uses that are both inside.
    """
    n, state_bytes = problem.num_nodes, problem.whole_state_bytes.astype(np.float64)
    order = np.lexsort((problem.use_node, problem.use_state))
    node, state = problem.use_node[order], problem.use_state[order]
    again = np.flatnonzero(state[1:] == state[:-1])
    before, after, size = node[again], node[again + 1], state_bytes[state[again]]
    used, ended = _running(node, state_bytes[state], n), _running(after, size, n)
    begun = _running(before, size, n)
    # Pairs that begin before the start and end after the segment were taken for begun ones: starts (before, first).
    outside = np.zeros(n + 1)
    first = np.searchsorted(ends, after, side="right")
    spans = first > before + 1
    np.add.at(outside, before[spans] + 1, size[spans])
    np.add.at(outside, first[spans], -size[spans])
    pairs = ended[ends] - begun[:n] + np.cumsum(outside)[:n]
    return np.asarray(used[ends] - used[:n] - pairs, dtype=np.float64)


def _running(nodes: Integers, sizes: Integers | Floats, n: int) -> Floats:
    """[n + 1] sizes at nodes before each position; -1 is no node."""
    change = np.zeros(n + 1)
    at = nodes >= 0
    np.add.at(change, nodes[at] + 1, sizes[at])
    return np.cumsum(change)


def _largest_within(sizes: Floats, ends: Integers) -> Floats:
    """[n] the largest of sizes[start:ends[start]], by the largest of every 1, 2, 4, ... in a row."""
    n = sizes.size
    starts, width = np.arange(n), ends - np.arange(n)
    most, span, largest = np.full(n, -np.inf), 1, sizes
    while True:
        own = (width >= span) & (width < 2 * span)
        most[own] = np.maximum(largest[starts[own]], largest[ends[own] - span])
        if 2 * span > n or not (width >= 2 * span).any():
            return most
        longer = largest.copy()
        longer[:-span] = np.maximum(largest[:-span], largest[span:])
        largest, span = longer, 2 * span
