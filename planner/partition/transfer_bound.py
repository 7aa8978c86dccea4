"""A bound on the bottleneck that counts transfers: what a device holds of a long path, it was sent, and sends on.

Take a path from the graph's inputs to a node. A device that runs the node but does not hold the inputs is sent some
value of that path; and since all of the path from there on is its work, a value near the node. So each node has bytes
that its device is sent at least, unless it is the first; and bytes that it sends, unless it is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.communication import UNKNOWN
from planner.partition.problem import Floats, Integers, PartitionProblem

_MARGIN = 1 - 1e-9
_THRESHOLDS = 12
_NOTHING = -1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Paths:
    """By node: the next node on its path (-1: none), and the bytes of the value between, or of what ends it.

    _NOTHING where it ends without a transfer. `reached`: seconds of the path.
    """

    following: Integers
    sizes: Floats
    reached: Floats


def transfer_bound(problem: PartitionProblem, limit: float) -> float:
    """Holds for values up to `limit`, which is what is returned if the bound is above it. Not with copies of stages.

    O(reads + nodes log nodes).
    """
    if problem.num_devices == 1 or not np.isfinite(limit):
        return 0.0
    seconds = problem.work_seconds.min(axis=0)
    made = problem.value_bytes[problem.value_producer >= 0]
    # Any path will do: also one that keeps to larger values, since its smallest is what counts.
    usual = (0.0, float(np.median(made)) if made.size else 0.0)
    received = np.max(
        [_least_bytes(_backward_paths(problem, seconds, size, limit), seconds, limit) for size in usual], axis=0
    )
    sent = np.max(
        [_least_bytes(_forward_paths(problem, seconds, size, limit), seconds, limit) for size in usual], axis=0
    )
    rows, kind = np.unique(problem.work_seconds, axis=0, return_inverse=True)
    best = 0.0
    for least_received in _thresholds(received, seconds):
        for least_sent in _thresholds(sent, seconds):
            held = (received >= least_received) & (sent >= least_sent)
            best = max(best, _bound(problem, rows[:, held], kind, least_received, least_sent))
    return min(best * _MARGIN, limit)


def _bound(problem: PartitionProblem, rows: Floats, kind: Integers, received: float, sent: float) -> float:
    """Work of which each device's part costs it so many bytes in and out, but for one that is first and one last."""
    latency, per_byte = problem.best_latency_seconds, problem.best_seconds_per_byte
    into = (latency[UNKNOWN, :-1] + received * per_byte[UNKNOWN, :-1]) * (received != _NOTHING)
    out = (latency[:-1, UNKNOWN] + sent * per_byte[:-1, UNKNOWN]) * (sent != _NOTHING)
    best = 0.0
    # Any weights give a bound; those by speed are the best where kinds differ by a factor.
    for weights in {tuple(given) for given in (_by_speed(rows), [1.0] * rows.shape[0])}:
        own = np.array(weights)[kind]
        weighted = float((rows * np.array(weights)[:, None]).min(axis=0).sum())
        spared = float((own * into).max() + (own * out).max())
        best = max(best, _least_time(weighted - spared, own, into + out))
    return best


def _by_speed(rows: Floats) -> list[float]:
    finite = np.where(np.isfinite(rows), rows, 0.0).sum(axis=1)
    if not finite.all() or not np.isfinite(rows).all():
        return [1.0] * rows.shape[0]
    return [float(weight) for weight in finite.min() / finite]


def _least_time(work: float, weights: Floats, overhead: Floats) -> float:
    """The least T at which devices with `overhead` have `work` left in all: sum of weight x max(0, T - overhead)."""
    order = np.argsort(overhead, kind="stable")
    weights, overhead = weights[order], overhead[order]
    slope, paid = np.cumsum(weights), np.cumsum(weights * overhead)
    times = (work + paid) / slope
    ends = np.append(overhead[1:], np.inf)
    return max(0.0, float(times[np.argmax(times <= ends)])) if work > 0 else 0.0


def _thresholds(sizes: Floats, seconds: Floats) -> Floats:
    """Bytes that split the nodes' work into few parts, each a value that some node has."""
    order = np.argsort(sizes, kind="stable")
    share = np.cumsum(seconds[order])
    at = np.searchsorted(share, np.linspace(0.0, share[-1] * 0.6, _THRESHOLDS))
    return np.unique(sizes[order][np.minimum(at, sizes.size - 1)])


def _backward_paths(problem: PartitionProblem, seconds: Floats, usual: float, penalty: float) -> _Paths:
    """From each node to the producer at the end of the longest path, less a penalty for each value below the usual.

    An input of the graph ends a path.
    """
    n = problem.num_nodes
    following, sizes, reached, worth = [-1] * n, [_NOTHING] * n, seconds.tolist(), seconds.tolist()
    order = np.argsort(problem.read_node, kind="stable")
    value = problem.read_value[order]
    reads = zip(
        problem.read_node[order].tolist(),
        problem.value_producer[value].tolist(),
        problem.value_bytes[value].tolist(),
        strict=True,
    )
    took, current = seconds.tolist(), -1
    best = (-np.inf, -1.0)
    for node, producer, size in reads:
        if node != current:
            current, best = node, (-np.inf, -1.0)
        before = worth[producer] if producer >= 0 else 0.0
        found = (before - (penalty if size < usual else 0.0), float(size))
        if found > best:
            best = found
            following[node], sizes[node], worth[node] = producer, float(size), found[0] + took[node]
            reached[node] = (reached[producer] if producer >= 0 else 0.0) + took[node]
    return _Paths(following=np.array(following), sizes=np.array(sizes), reached=np.array(reached))


def _forward_paths(problem: PartitionProblem, seconds: Floats, usual: float, penalty: float) -> _Paths:
    """From each node to a reader, as backward; what the graph returns ends a path."""
    n = problem.num_nodes
    following, sizes, reached, worth = [-1] * n, [_NOTHING] * n, seconds.tolist(), seconds.tolist()
    returned = np.flatnonzero(problem.value_returned & (problem.value_producer >= 0))
    for given in returned.tolist():
        producer = int(problem.value_producer[given])
        sizes[producer] = max(sizes[producer], float(problem.value_bytes[given]))
    inside = np.flatnonzero(problem.value_producer[problem.read_value] >= 0)
    producers = problem.value_producer[problem.read_value[inside]]
    order = inside[np.lexsort((problem.read_node[inside], producers))][::-1]
    value = problem.read_value[order]
    reads = zip(
        problem.value_producer[value].tolist(),
        problem.read_node[order].tolist(),
        problem.value_bytes[value].tolist(),
        strict=True,
    )
    took, current = seconds.tolist(), -1
    best = (-np.inf, -1.0)
    for node, reader, size in reads:
        if node != current:
            current, best = node, (-np.inf, -1.0)
        found = (worth[reader] - (penalty if size < usual else 0.0), float(size))
        if found > best:
            best = found
            following[node], sizes[node], worth[node] = reader, float(size), found[0] + took[node]
            reached[node] = reached[reader] + took[node]
    return _Paths(following=np.array(following), sizes=np.array(sizes), reached=np.array(reached))


def _least_bytes(paths: _Paths, seconds: Floats, limit: float) -> Floats:
    """By node: the smallest value on its path while the work from there to the node is within `limit`."""
    n = seconds.size
    # Jumps of 1, 2, 4, ... steps; node n stands for the end, which no path passes.
    jump = np.append(np.where(paths.following >= 0, paths.following, n), n)
    size = np.append(paths.sizes, np.inf)
    reached, took = np.append(paths.reached, -np.inf), np.append(seconds, np.inf)
    ahead = np.append(size[jump[:-1]], np.inf)
    jumps = [(jump, ahead)]
    for _ in range(n.bit_length()):
        jump, ahead = jump[jump], np.minimum(ahead, ahead[jump])
        jumps.append((jump, ahead))
    at, least = np.arange(n), paths.sizes.copy()
    room = limit * (1 + 1e-9) - paths.reached
    for jump, ahead in reversed(jumps):
        target = jump[at]
        within = (target < n) & (took[target] - reached[target] <= room)
        least = np.where(within, np.minimum(least, ahead[at]), least)
        at = np.where(within, target, at)
    return least
