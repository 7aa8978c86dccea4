"""A bound on a lone batch where each device runs one stage, which waits for all that it reads and sends at its end.

Take nodes of a path. What lies between two of them that stand in one stage stands in that stage too, since edges go to
higher stages only, and adds all its work to the path. Only as many pairs can stand apart as there are further devices,
and what lies between those may run meanwhile; but then something is sent.
"""

from __future__ import annotations

import numpy as np

from planner.partition.portfolio.program_orders import Bundles
from planner.partition.problem import Floats, Integers, PartitionProblem

# What lies between path nodes further apart is not counted, in turn: it would keep apart too many others.
_SPANS = (4, 8, 16, 32, 64, 128, 512)
_MARGIN = 1 - 1e-9


def serial_bound(problem: PartitionProblem, bundles: Bundles, num_stages: int = 0) -> float:
    """Not where a device may run several stages, or nodes again. O(reads + nodes). `num_stages` 0: any number."""
    fastest = problem.compute_seconds.min(axis=0)
    seconds: Floats = np.bincount(bundles.bundle_of_node, fastest, bundles.count).astype(np.float64)
    before, after = _neighbours(problem, bundles)
    order = _order(before, after)
    path = _longest_path(order, before, seconds.tolist())
    first, last = _between(order, before, after, path)
    on_path = np.zeros(bundles.count, dtype=np.bool_)
    on_path[path] = True
    beside = np.flatnonzero(~on_path & (first >= 0) & (last < len(path)))
    sent = _least_sent(problem)
    apart = min(problem.num_devices, num_stages or problem.num_devices) - 1
    longest = float(seconds[path].sum())
    found = [longest + _serial(seconds[beside], first[beside], last[beside], span, apart, sent) for span in _SPANS]
    return max(longest, *found) * _MARGIN


def _serial(seconds: Floats, first: Integers, last: Integers, span: int, num_apart: int, sent: float) -> float:
    """Seconds of what lies beside the path and runs in turn with it, cut where nothing within `span` is parted."""
    near = last - first <= span
    seconds, first, last = seconds[near], first[near], last[near]
    if not first.size:
        return 0.0
    size = int(last.max()) + 1
    crossed = np.zeros(size + 1)
    np.add.at(crossed, first + 1, 1)
    np.add.at(crossed, last, -1)
    whole = np.cumsum(crossed[:size]) == 0
    block = np.cumsum(whole)[first]
    spared = np.sort(np.maximum(np.bincount(block, seconds) - sent, 0.0))[::-1]
    return float(seconds.sum() - spared[:num_apart].sum())


def _neighbours(problem: PartitionProblem, bundles: Bundles) -> tuple[list[list[int]], list[list[int]]]:
    """Bundles that a value ties; others only have an order."""
    made_by = problem.value_producer[problem.read_value]
    inside = made_by >= 0
    tails, heads = bundles.bundle_of_node[made_by[inside]], bundles.bundle_of_node[problem.read_node[inside]]
    apart = tails != heads
    pairs = np.unique(tails[apart] * bundles.count + heads[apart])
    before: list[list[int]] = [[] for _ in range(bundles.count)]
    after: list[list[int]] = [[] for _ in range(bundles.count)]
    for tail, head in zip((pairs // bundles.count).tolist(), (pairs % bundles.count).tolist(), strict=True):
        before[head].append(tail)
        after[tail].append(head)
    return before, after


def _order(before: list[list[int]], after: list[list[int]]) -> list[int]:
    waiting = [len(own) for own in before]
    order = [bundle for bundle, left in enumerate(waiting) if not left]
    for bundle in order:
        for reader in after[bundle]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order


def _longest_path(order: list[int], before: list[list[int]], seconds: list[float]) -> list[int]:
    ended, source = [0.0] * len(order), [-1] * len(order)
    for bundle in order:
        for producer in before[bundle]:
            if source[bundle] < 0 or ended[producer] > ended[source[bundle]]:
                source[bundle] = producer
        ended[bundle] = seconds[bundle] + (ended[source[bundle]] if source[bundle] >= 0 else 0.0)
    at = max(order, key=lambda bundle: (ended[bundle], -bundle))
    path = [at]
    while source[at] >= 0:
        at = source[at]
        path.append(at)
    return path[::-1]


def _between(
    order: list[int], before: list[list[int]], after: list[list[int]], path: list[int]
) -> tuple[Integers, Integers]:
    """By bundle: the place on the path of the last that leads to it, and of the first that it leads to.

    -1 and the path's length where there is none.
    """
    first, last = [-1] * len(order), [len(path)] * len(order)
    place = {bundle: at for at, bundle in enumerate(path)}
    for bundle in order:
        first[bundle] = place.get(bundle, max((first[producer] for producer in before[bundle]), default=-1))
    for bundle in reversed(order):
        last[bundle] = place.get(bundle, min((last[reader] for reader in after[bundle]), default=len(path)))
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


def _least_sent(problem: PartitionProblem) -> float:
    """Seconds that any value takes at least from one device to another."""
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    return float(problem.link_latency_seconds[apart].min()) if problem.num_devices > 1 else 0.0
