"""A bound on the bottleneck that counts transfers: what a device holds of a long path, it was sent, and sends on.

Take a path from the graph's inputs to a node. A device that runs the node but does not hold the inputs is sent some
value of that path; and since all of the path from there on is its work, a value near the node. So each node has bytes
that its device is sent at least, unless it is the first; and bytes that it sends, unless it is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.bounds.work import fair_weights
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.traffic import UNKNOWN

_MARGIN = 1 - 1e-9
_THRESHOLDS = 6
_STEPS = 500
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
    kinds = distinct_rows(problem.work_seconds)
    weights = fair_weights(kinds.rows, kinds.counts)
    weights = weights / weights.max()
    weighted = kinds.rows * weights[:, None]
    best = 0.0
    for least_received in _thresholds(received, seconds):
        for least_sent in _thresholds(sent, seconds):
            into, out = _overheads(problem, float(least_received), float(least_sent))
            shared = _Shared(
                weights=weights[kinds.kind_of_row],
                work=float(weighted.min(axis=0).sum()),
                into=into,
                out=out,
                work_not_sent=_most(weighted[:, received < least_received]),
                work_not_sending=_most(weighted[:, sent < least_sent]),
            )
            best = max(best, _least_time(shared, limit))
    return min(best * _MARGIN, limit)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """Work that all devices share, each second of device d weighing weights[d]; any weights give a bound.

    A device pays `into` unless it has only `work_not_sent`, and `out` unless it has only `work_not_sending`, at their
    heaviest; but for one device that is the first and one that is the last.
    """

    weights: Floats
    work: float
    into: Floats
    out: Floats
    work_not_sent: float
    work_not_sending: float


def _overheads(problem: PartitionProblem, received: float, sent: float) -> tuple[Floats, Floats]:
    """By device: seconds to be sent and to send so many bytes over its best link."""
    latency, per_byte = problem.best_latency_seconds, problem.best_seconds_per_byte
    into = (latency[UNKNOWN, :-1] + received * per_byte[UNKNOWN, :-1]) * (received != _NOTHING)
    out = (latency[:-1, UNKNOWN] + sent * per_byte[:-1, UNKNOWN]) * (sent != _NOTHING)
    return into, out


def _most(weighted: Floats) -> float:
    """What the nodes weigh where each weighs most, of the devices that can run it."""
    return float(np.where(np.isfinite(weighted), weighted, 0.0).max(axis=0, initial=0.0).sum())


def _least_time(shared: _Shared, limit: float) -> float:
    """The least time, up to `limit`, at which the devices have room for the work, in steps.

    A device that is spared a transfer has at least as much work as one that is not has room for: so what is spared is
    bounded by the work that it has to consist of.
    """
    ends = np.linspace(0.0, limit, _STEPS + 1)
    room = np.maximum(ends[:, None] - shared.into - shared.out, 0.0)
    spared_first = float((shared.weights * shared.into).max() + (shared.weights * shared.out).max())
    # In each step: room at its end, and what is spared at its start.
    most = room[1:] @ shared.weights + spared_first
    for overhead, work in ((shared.into, shared.work_not_sent), (shared.out, shared.work_not_sending)):
        share = np.divide(overhead, room[:-1], out=np.full_like(room[:-1], np.inf), where=room[:-1] > 0).max(axis=1)
        every = float((shared.weights * overhead).sum())
        most += np.minimum(every, share * work) if work > 0 else 0.0
    enough = np.flatnonzero(most >= shared.work * _MARGIN)
    return float(ends[enough[0]]) if enough.size else limit


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
    order = np.argsort(problem.read_node, kind="stable")
    value = problem.read_value[order]
    nothing = np.full(problem.num_nodes, _NOTHING)
    ends = problem.read_node[order], problem.value_producer[value]
    return _paths(*ends, problem.value_bytes[value], nothing, seconds, usual, penalty)


def _forward_paths(problem: PartitionProblem, seconds: Floats, usual: float, penalty: float) -> _Paths:
    """From each node to a reader, as backward; what the graph returns ends a path."""
    returned = np.flatnonzero(problem.value_returned & (problem.value_producer >= 0))
    sizes = np.full(problem.num_nodes, _NOTHING)
    np.maximum.at(sizes, problem.value_producer[returned], problem.value_bytes[returned])
    inside = np.flatnonzero(problem.value_producer[problem.read_value] >= 0)
    producers = problem.value_producer[problem.read_value[inside]]
    order = inside[np.lexsort((problem.read_node[inside], producers))][::-1]
    value = problem.read_value[order]
    ends = problem.value_producer[value], problem.read_node[order]
    return _paths(*ends, problem.value_bytes[value], sizes, seconds, usual, penalty)


def _paths(
    nodes: Integers,
    others: Integers,
    value_bytes: Integers,
    end_bytes: Floats,
    seconds: Floats,
    usual: float,
    penalty: float,
) -> _Paths:
    """From reads by node, each after those of its other ends (-1: none)."""
    following, sizes = [-1] * seconds.size, end_bytes.tolist()
    took, reached, worth = seconds.tolist(), seconds.tolist(), seconds.tolist()
    current, best = -1, (-np.inf, -1.0)
    for node, other, size in zip(nodes.tolist(), others.tolist(), value_bytes.tolist(), strict=True):
        if node != current:
            current, best = node, (-np.inf, -1.0)
        before = worth[other] if other >= 0 else 0.0
        candidate = (before - (penalty if size < usual else 0.0), float(size))
        if candidate > best:
            best = candidate
            following[node], sizes[node], worth[node] = other, float(size), candidate[0] + took[node]
            reached[node] = (reached[other] if other >= 0 else 0.0) + took[node]
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
