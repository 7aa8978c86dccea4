"""The best contiguous placement so far: chains of stages become devices here, free items included."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.costs import device_bytes, device_loads
from planner.partition.placement.ideals.contraction import Items
from planner.partition.placement.ideals.free_placement import nearest_placed, place_free_items
from planner.partition.placement.ideals.least_bottleneck import Chain
from planner.partition.placement.incumbent import Incumbent
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Integers


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
