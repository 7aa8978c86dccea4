"""The best contiguous placement so far: chains of stages become devices here, free items included."""

from __future__ import annotations

from collections import deque

import numpy as np

from planner.partition.placement.costs import device_bytes, device_loads
from planner.partition.placement.ideals.contraction import Items
from planner.partition.placement.ideals.least_bottleneck import Chain
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Booleans, Integers

# Relative: a bound so close to the value proves it; sums of the same numbers in another order differ by less.
PROVEN = 1e-10


class Incumbent:
    """`value` is inf and `devices` None until something fits."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.value = float("inf")
        self.devices: Integers | None = None
        self._nearest: Integers | None = None

    def offer(self, items: Items, chain: Chain, left: Integers) -> None:
        """Takes the chain if it fits and is better; `left` [i] are the numbers in `items` of what it places."""
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
        devices = place_free_items(problem, device_of_item[items.item_of_node], items.item_of_node, self._nearest)
        value = float(device_loads(problem, devices).max())
        fits = device_bytes(problem, devices) <= problem.class_bytes[problem.class_of_device]
        if fits.all() and value < self.value:
            self.value, self.devices = value, devices

    def is_proven_by(self, bound: float) -> bool:
        return bound >= self.value * (1 - PROVEN)

    def slower_than(self, bound: float) -> Booleans:
        """[devices]."""
        if self.devices is None:
            return np.ones(self.problem.num_devices, dtype=np.bool_)
        return device_loads(self.problem, self.devices) > bound * (1 + PROVEN)


def place_free_items(
    problem: PlacementProblem, device_of_node: Integers, item_of_node: Integers, nearest: Integers
) -> Integers:
    """`device_of_node` is -1 for the free items' nodes, `nearest` [n] a node with a device to start from, or -1.

    Greedy: no guarantee, not even to fit.
    """
    free = np.flatnonzero(device_of_node < 0)
    if not free.size:
        return device_of_node
    devices = device_of_node.copy()
    devices[free] = np.where(nearest[free] < 0, 0, device_of_node[nearest[free]])
    order = free[np.argsort(item_of_node[free], kind="stable")]
    for nodes in np.split(order, np.flatnonzero(np.diff(item_of_node[order])) + 1):
        allowed = _allowed(problem, nodes)
        counts = np.bincount(devices[nodes], minlength=problem.num_devices)
        devices[nodes] = allowed[int(np.argmax(counts[allowed]))]
    return devices


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


def _allowed(problem: PlacementProblem, nodes: Integers) -> list[int]:
    runs = np.isfinite(problem.seconds[:, nodes].sum(axis=1))
    return [int(device) for device in np.flatnonzero(runs[problem.class_of_device])]
