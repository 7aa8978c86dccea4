"""What no assignment undercuts, by arithmetic alone: it holds for any order, any cuts and any number of stages."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

_ROUNDS = 40
# Below what rounding in long sums may add.
_MARGIN = 1 - 1e-9


def work_bound(problem: PartitionProblem) -> float:
    """Seconds of the most loaded device if work could be divided at will, and of the largest group of nodes.

    The first is a linear programme's dual: for weights of devices that sum to 1, the bottleneck is at least the sum of
    each node's least weighted seconds. Weights go up where the least-weighted choice overloads.
    """
    kinds = distinct_rows(problem.work_seconds)
    rows, counts = kinds.rows, kinds.counts
    weights = fair_weights(rows, counts)
    return float((rows * weights[:, None]).min(axis=0).sum()) / float((weights * counts).sum()) * _MARGIN


def fair_weights(rows: Floats, counts: Integers) -> Floats:
    """[kinds] weights of the best bound: those by speed, which nothing betters where kinds differ by a factor, or those
    that steps towards equal loads come to. `rows` [kinds, nodes] seconds, `counts` [kinds] devices."""
    seconds = np.where(np.isfinite(rows), rows, 0.0).sum(axis=1)
    weights = _shares(1 / np.maximum(seconds, np.finfo(np.float64).tiny ** 0.5), counts)
    best, best_weights = float((rows * weights[:, None]).min(axis=0).sum()), weights
    weights = _shares(np.ones(counts.size), counts)
    for round_ in range(_ROUNDS if counts.size > 1 else 0):
        weighted = rows * weights[:, None]
        kind_of_node = weighted.argmin(axis=0)
        nodes = np.arange(kind_of_node.size)
        bound = float(weighted[kind_of_node, nodes].sum())
        if bound > best:
            best, best_weights = bound, weights
        loads = np.bincount(kind_of_node, rows[kind_of_node, nodes], counts.size) / counts
        # Ever smaller.
        weights = _shares(weights * np.exp((loads / (loads.mean() or 1.0) - 1.0) * (0.5 / (1 + round_))), counts)
    return best_weights


def _shares(weights: Floats, counts: Integers) -> Floats:
    return np.asarray(weights / (weights * counts).sum(), dtype=np.float64)


def largest_bundle_bound(problem: PartitionProblem, bundles: Bundles) -> float:
    """Seconds of the dearest nodes that have to stay together, where they run fastest."""
    return float(least_seconds_of_bundles(problem, bundles).max()) * _MARGIN


def least_seconds_of_bundles(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """[bundles] seconds of each where it runs fastest."""
    seconds = np.array([np.bincount(bundles.bundle_of_node, row, bundles.count) for row in problem.work_seconds])
    return np.asarray(seconds.min(axis=0), dtype=np.float64)


def memory_bound(problem: PartitionProblem) -> float:
    """The fullest device's share: all states spread evenly, or what one node holds while it runs on the largest."""
    used = np.unique(problem.use_state)
    room = problem.device_memory_bytes.astype(np.float64)
    if room.sum() <= 0:
        return 0.0
    largest = (node_state_bytes(problem) + held_bytes(problem)).max() / room.max()
    return max(float(problem.whole_state_bytes[used].sum() / room.sum()), float(largest)) * _MARGIN


def held_bytes(problem: PartitionProblem) -> Floats:
    """[n] bytes that a stage holds while it runs each node, states aside: the storage that the node reads and makes,
    and a buffer for each microbatch under way of what it reads from the caller and makes for it."""
    made_roots, num_roots, num_values = problem.made_roots, problem.root_bytes.size, problem.num_values
    # Of what is made elsewhere a stage has the value alone.
    root_read = problem.value_root[problem.read_value]
    keys, of_read = np.unique(problem.read_node * num_roots + root_read, return_inverse=True)
    least = problem.root_bytes[keys % num_roots]
    np.minimum.at(least, of_read, problem.value_bytes[problem.read_value])
    is_input = problem.value_producer[problem.read_value] < 0
    from_caller = np.unique(problem.read_node[is_input] * num_values + problem.read_value[is_input])
    to_caller = np.flatnonzero(problem.value_returned & (problem.value_producer >= 0))
    held = np.zeros(problem.num_nodes)
    for nodes, sizes, times in (
        (keys // num_roots, least, 1),
        (problem.root_producer[made_roots], problem.root_bytes[made_roots], 1),
        (from_caller // num_values, problem.value_bytes[from_caller % num_values], problem.microbatches_in_flight),
        (problem.value_producer[to_caller], problem.value_bytes[to_caller], problem.microbatches_in_flight),
    ):
        np.add.at(held, nodes, times * sizes)
    return held


def node_state_bytes(problem: PartitionProblem) -> Floats:
    """[n] bytes of the states that each node uses, with all that training adds."""
    sizes = problem.whole_state_bytes[problem.use_state].astype(np.float64)
    return np.bincount(problem.use_node, sizes, problem.num_nodes).astype(np.float64)


def first_users_bytes(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """[bundles] bytes, likewise, of the states that each is the first to use."""
    states, first = np.unique(problem.use_state, return_index=True)
    sizes, users = problem.whole_state_bytes[states].astype(np.float64), problem.use_node[first]
    return np.bincount(bundles.bundle_of_node[users], sizes, bundles.count).astype(np.float64)
