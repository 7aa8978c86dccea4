"""Devices that no plan can tell apart: equal speed, memory and links. Choosing among them is choosing once.

And the distinct rows of a matrix by device: devices of one kind have equal rows, and a kind is worked out once.

Memory beyond what any plan needs tells no devices apart. Where telling all apart is still too much, their memory comes
in few tiers. With each device rounded down to the least of its tier, what fits fits in truth; rounded up to the most,
nothing that fits is left out: one gives a plan, the other a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.problem import Floats, Integers, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceClasses:
    """`members` by class, in inventory order."""

    members: tuple[tuple[int, ...], ...]

    @property
    def representatives(self) -> tuple[int, ...]:
        return tuple(members[0] for members in self.members)

    def counts(self) -> tuple[int, ...]:
        return tuple(len(members) for members in self.members)


def device_classes(problem: PartitionProblem) -> DeviceClasses:
    """O(devices^3)."""
    members: list[list[int]] = []
    for device in range(problem.num_devices):
        for alike in members:
            if _alike(problem, alike[0], device):
                alike.append(device)
                break
        else:
            members.append([device])
    return DeviceClasses(members=tuple(map(tuple, members)))


def linked_alike(problem: PartitionProblem, one: int, other: int) -> bool:
    """Whether every link stays as it is where the two devices change places."""
    swapped = np.arange(problem.num_devices)
    swapped[[one, other]] = other, one
    return all(
        np.array_equal(matrix, matrix[np.ix_(swapped, swapped)])
        for matrix in (problem.link_latency_seconds, problem.link_seconds_per_byte)
    )


def _alike(problem: PartitionProblem, one: int, other: int) -> bool:
    if problem.device_memory_bytes[one] != problem.device_memory_bytes[other]:
        return False
    if not np.array_equal(problem.compute_seconds[one], problem.compute_seconds[other]):
        return False
    return linked_alike(problem, one, other)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistinctRows:
    """`rows` [kinds, columns] in order of their first, `kind_of_row` [rows], `counts` [kinds]."""

    rows: Floats
    kind_of_row: Integers
    counts: Integers


def distinct_rows(matrix: Floats) -> DistinctRows:
    """Linear, where np.unique sorts."""
    kinds: dict[bytes, int] = {}
    kind_of_row = np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in matrix], dtype=np.int64)
    _, first = np.unique(kind_of_row, return_index=True)
    return DistinctRows(rows=matrix[first], kind_of_row=kind_of_row, counts=np.bincount(kind_of_row))


def without_idle_memory(problem: PartitionProblem) -> PartitionProblem:
    """Each device with at most the bytes that the whole program needs: the same plans fit."""
    return replace(problem, device_memory_bytes=np.minimum(problem.device_memory_bytes, everything_bytes(problem)))


def everything_bytes(problem: PartitionProblem) -> int:
    """Every state, every storage and every value at once, and every value buffered; in training all of them saved."""
    values, roots = int(problem.value_bytes.sum()), int(problem.root_bytes.sum())
    needed = int(problem.whole_state_bytes.sum()) + roots + values + problem.microbatches_in_flight * values
    if problem.training is not None:
        needed += problem.training.microbatches * (roots + values)
    return needed


def in_memory_tiers(
    problem: PartitionProblem, affordable: Callable[[PartitionProblem], bool], *, round_up: bool
) -> PartitionProblem | None:
    """As many tiers as are affordable, among devices alike in all else; None where one is too many."""
    alike = device_classes(replace(problem, device_memory_bytes=np.zeros(problem.num_devices, dtype=np.int64)))
    best: PartitionProblem | None = None
    for num_tiers in range(1, problem.num_devices + 1):
        memory = _rounded(problem, alike, num_tiers, round_up=round_up)
        tiered = replace(problem, device_memory_bytes=memory)
        if not affordable(tiered):
            return best
        best = tiered
    return best


def _rounded(problem: PartitionProblem, alike: DeviceClasses, num_tiers: int, *, round_up: bool) -> Integers:
    memory = problem.device_memory_bytes.copy()
    for members in alike.members:
        by_memory = sorted(members, key=lambda device: (memory[device], device))
        for tier in np.array_split(np.array(by_memory), min(num_tiers, len(by_memory))):
            memory[tier] = memory[tier].max() if round_up else memory[tier].min()
    return memory
