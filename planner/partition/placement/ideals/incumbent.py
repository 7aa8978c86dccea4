"""The best contiguous placement so far: chains of stages become devices here, free items included."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.costs import device_bytes, device_loads
from planner.partition.placement.ideals.contraction import Items
from planner.partition.placement.ideals.free_placement import nearest_placed, place_free_items
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
