"""How many devices of each serial class a chain has used: the second coordinate of a search over ideals."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from planner.partition.placement.passes.unit_graph import PassGraph
from planner.partition.problem import Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceStates:
    """States [s], first with nothing used: `counts` [s, a], `following` [a, s] with one device more; -1: none left."""

    counts: Integers
    following: Integers

    @property
    def num_states(self) -> int:
        return int(self.counts.shape[0])


def uncounted(graph: PassGraph) -> DeviceStates:
    """One state: any number of blocks."""
    rows = graph.serial.size
    return DeviceStates(counts=np.zeros((1, rows), dtype=np.int64), following=np.zeros((rows, 1), dtype=np.int64))


def counted(graph: PassGraph, max_states: int) -> DeviceStates | None:
    """A block takes a device of its own. None if there are more than `max_states` ways to have used devices."""
    limits = graph.problem.class_devices[graph.serial].tolist()
    size = 1
    for limit in limits:
        size *= limit + 1
    if size > max_states:
        return None
    keys = list(itertools.product(*(range(limit + 1) for limit in limits)))
    number = {key: index for index, key in enumerate(keys)}
    following = np.array(
        [[number.get((*key[:row], key[row] + 1, *key[row + 1 :]), -1) for key in keys] for row in range(len(limits))],
        dtype=np.int64,
    ).reshape(len(limits), size)
    return DeviceStates(counts=np.array(keys, dtype=np.int64).reshape(size, len(limits)), following=following)
