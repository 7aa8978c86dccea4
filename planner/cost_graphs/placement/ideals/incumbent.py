"""The best contiguous placement so far: chains of stages become devices here.

Items that may go anywhere get theirs last, and are moved one by one while the loads get better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.cost_graphs.placement.ideals.contraction import Items
from planner.cost_graphs.placement.ideals.least_bottleneck import Chain
from planner.cost_graphs.placement.incumbent import Incumbent
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.problem import Booleans, Integers

_MAX_PASSES = 8
# Trials of one item on one device, each an evaluation of the whole placement.
_MAX_TRIALS = 4_000
# With more items than this, a pass over them all costs more than it gains.
_MAX_MOVED = 1_000
Cost = tuple[float, tuple[float, ...]]


class StagesIncumbent(Incumbent):
    """The least bottleneck of stages in an order."""

    def __init__(self, problem: PlacementProblem) -> None:
        super().__init__(problem, _bottleneck)
        self._nearest: Integers | None = None

    def offer_chain(self, items: Items, chain: Chain, left: Integers) -> None:
        """`left` [i] are the numbers in `items` of what the chain places."""
        if np.isinf(chain.value_seconds):
            return
        problem = self.problem
        first = np.concatenate([[0], np.cumsum(problem.class_devices)])
        used = [0] * problem.num_classes
        device_of_item = np.full(items.num_items, -1, dtype=np.int64)
        for stage in chain.stages:
            device_of_item[left[list(stage.items)]] = first[stage.device_class] + used[stage.device_class]
            used[stage.device_class] += 1
        if self._nearest is None:
            self._nearest = nearest_placed(problem, items.item_of_node < items.num_ordered)
        self.offer(place_free_items(problem, device_of_item[items.item_of_node], items.item_of_node, self._nearest))


def _bottleneck(problem: PlacementProblem, devices: Integers) -> float | None:
    """None where the devices' memory does not suffice."""
    fits = device_bytes(problem, devices) <= problem.class_bytes[problem.class_of_device]
    return float(device_loads(problem, devices).max()) if fits.all() else None


def place_free_items(
    problem: PlacementProblem, device_of_node: Integers, item_of_node: Integers, nearest: Integers
) -> Integers:
    """`device_of_node` is -1 for the free items' nodes, `nearest` [n] a node with a device to start from, or -1.

    Greedy, then local search: no guarantee, not even to fit.
    """
    free = np.flatnonzero(device_of_node < 0)
    if not free.size:
        return device_of_node
    devices = device_of_node.copy()
    devices[free] = np.where(nearest[free] < 0, 0, device_of_node[nearest[free]])
    order = free[np.argsort(item_of_node[free], kind="stable")]
    members = np.split(order, np.flatnonzero(np.diff(item_of_node[order])) + 1)
    homes = [_allowed(problem, nodes) for nodes in members]
    for nodes, allowed in zip(members, homes, strict=True):
        counts = np.bincount(devices[nodes], minlength=problem.num_devices)
        devices[nodes] = allowed[int(np.argmax(counts[allowed]))]
    return _improved(problem, devices, members, homes) if len(members) <= _MAX_MOVED else devices


def nearest_placed(problem: PlacementProblem, placed: Booleans) -> Integers:
    """[n] a placed node that is the fewest tensors away, or -1. O(n + r)."""
    source, target = problem.tensor_producer[problem.read_tensor], problem.read_node
    ends = np.concatenate([source, target])
    order = np.argsort(ends, kind="stable")
    others = np.concatenate([target, source])[order].tolist()
    begins = np.searchsorted(ends[order], np.arange(problem.num_nodes + 1)).tolist()
    nearest = np.where(placed, np.arange(problem.num_nodes), -1).tolist()
    waiting = deque(np.flatnonzero(placed).tolist())
    while waiting:
        node = waiting.popleft()
        for other in others[begins[node] : begins[node + 1]]:
            if nearest[other] < 0:
                nearest[other] = nearest[node]
                waiting.append(other)
    return np.array(nearest, dtype=np.int64)


def _improved(
    problem: PlacementProblem, devices: Integers, members: Sequence[Integers], homes: Sequence[Sequence[int]]
) -> Integers:
    best, trials = _cost(problem, devices), 0
    for _ in range(_MAX_PASSES):
        before = best
        for nodes, allowed in zip(members, homes, strict=True):
            for device in allowed:
                old = int(devices[nodes[0]])
                if device == old:
                    continue
                if (trials := trials + 1) > _MAX_TRIALS:
                    return devices
                devices[nodes] = device
                cost = _cost(problem, devices)
                if cost < best:
                    best = cost
                else:
                    devices[nodes] = old
        if best == before:
            break
    return devices


def _cost(problem: PlacementProblem, devices: Integers) -> Cost:
    excess = device_bytes(problem, devices) - problem.class_bytes[problem.class_of_device]
    loads = device_loads(problem, devices)
    return float(np.maximum(excess, 0.0).sum()), tuple(np.sort(loads)[::-1].tolist())


def _allowed(problem: PlacementProblem, nodes: Integers) -> list[int]:
    runs = np.isfinite(problem.seconds[:, nodes].sum(axis=1))
    return [int(device) for device in np.flatnonzero(runs[problem.class_of_device])]
