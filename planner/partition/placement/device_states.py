"""Which devices are used, by class: the second coordinate of a search over chains of ideals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from planner.partition.problem import Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceStates:
    """States [s] by class [k], the first with no device used. `used` and `left` [s, k]: devices.

    `step` [s, k]: the state after one more device of class k, -1 for none. `complete`: any order of the devices can be
    reached.
    """

    used: Integers
    left: Integers
    step: Integers
    complete: bool

    @property
    def num_states(self) -> int:
        return int(self.used.shape[0])


def num_counted_states(counts: tuple[int, ...]) -> int:
    return prod(count + 1 for count in counts)


def counted_states(counts: tuple[int, ...]) -> DeviceStates:
    """How many of each class are used, the last class's count running fastest."""
    used = np.array(list(product(*(range(count + 1) for count in counts))), dtype=np.int64).reshape(-1, len(counts))
    strides = np.array([num_counted_states(counts[index + 1 :]) for index in range(len(counts))], dtype=np.int64)
    state = np.arange(used.shape[0])[:, None]
    return DeviceStates(
        used=used,
        left=np.array(counts) - used,
        step=np.where(used < np.array(counts), state + strides, -1),
        complete=True,
    )


def ordered_states(classes: Sequence[int], num_classes: int) -> DeviceStates:
    """Devices in one order, where any may be passed over: state s has the first s of them behind."""
    count = len(classes)
    used = np.zeros((count + 1, num_classes), dtype=np.int64)
    step = np.full((count + 1, num_classes), -1, dtype=np.int64)
    for position, own in enumerate(classes):
        used[position + 1] = used[position]
        used[position + 1, own] += 1
    for position in reversed(range(count)):
        step[position] = step[position + 1]
        step[position, classes[position]] = position + 1
    return DeviceStates(used=used, left=used[-1] - used, step=step, complete=False)


def uncounted_states(num_classes: int) -> DeviceStates:
    """One state: any number of devices of each class."""
    zeros = np.zeros((1, num_classes), dtype=np.int64)
    return DeviceStates(used=zeros, left=zeros, step=zeros, complete=True)
