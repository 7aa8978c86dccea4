"""Devices that no plan can tell apart: equal speed, memory and links. Choosing among them is choosing once.

And the distinct rows of a matrix by device: devices of one kind have equal rows, and a kind is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Floats, Integers, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceClasses:
    """`members` by class, in inventory order."""

    members: tuple[tuple[int, ...], ...]
    uniform_links: bool

    @property
    def representatives(self) -> tuple[int, ...]:
        return tuple(members[0] for members in self.members)

    def link(self, source: int, target: int) -> tuple[int, int]:
        """Two devices with the link from one class to another. A class of one has 0 with itself."""
        # The last member stands at the far end, so that a class of several finds the link between two of its own.
        return self.members[source][0], self.members[target][-1]

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
    off_diagonal = ~np.eye(problem.num_devices, dtype=np.bool_)
    latencies = problem.link_latency_seconds[off_diagonal]
    per_byte = problem.link_seconds_per_byte[off_diagonal]
    return DeviceClasses(
        members=tuple(tuple(devices) for devices in members),
        uniform_links=bool(latencies.size == 0 or (np.ptp(latencies) == 0 and np.ptp(per_byte) == 0)),
    )


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
