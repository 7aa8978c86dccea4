"""Seconds and lacking bytes of a segment under each label of a state space."""

from __future__ import annotations

import numpy as np

from planner.partition.communication import UNKNOWN
from planner.partition.device_classes import DeviceClasses
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.segments import SegmentRow
from planner.partition.state_space import NOBODY, StateSpace


class SegmentLoads:
    """[labels, ends] seconds, inf where the device's memory does not hold the segment.

    Exact where links are equal or tensors are relayed. Otherwise a lower bound: every crossing value is paid once at
    each end, over the neighbour's link where it provably goes there, else over the best link that the device has.
    """

    def __init__(self, problem: PartitionProblem, classes: DeviceClasses, space: StateSpace) -> None:
        self._problem = problem
        self._classes = classes
        own = np.array([classes.representatives[label[1]] for label in space.labels], dtype=np.int64)
        self._own = own
        self._memory = problem.device_memory_bytes[own].astype(np.float64)[:, None]
        self._far_in_latency = problem.best_latency_seconds[UNKNOWN, own][:, None]
        self._far_out_latency = problem.best_latency_seconds[own, UNKNOWN][:, None]
        self._far_in = problem.best_seconds_per_byte[UNKNOWN, own][:, None]
        self._far_out = problem.best_seconds_per_byte[own, UNKNOWN][:, None]
        before = [(label[0], label[1]) for label in space.labels]
        after = [(label[1], label[2]) for label in space.labels]
        self._near_in_latency, self._near_in = self._near(before, self._far_in_latency, self._far_in)
        self._near_out_latency, self._near_out = self._near(after, self._far_out_latency, self._far_out)
        self._near_bytes = _bytes_between_neighbours(problem)

    def seconds(self, row: SegmentRow, ends: Integers) -> Floats:
        at = ends - row.start - 1
        compute_before = self._problem.compute_before
        seconds: Floats = compute_before[self._own][:, ends] - compute_before[self._own, row.start][:, None]
        received, sent = row.received_bytes[at], row.sent_bytes[at]
        near_in, near_out = self._near_parts(row, ends)
        seconds += near_in * self._near_in + (received - near_in) * self._far_in
        seconds += near_out * self._near_out + (sent - near_out) * self._far_out
        receives, sends = row.receives[at], row.sends[at]
        # Relayed tensors all come from, and go to, the neighbour.
        from_near, to_near = (receives, sends) if self._problem.relay else (near_in > 0, near_out > 0)
        seconds += np.where(from_near, self._near_in_latency, self._far_in_latency * receives)
        seconds += np.where(to_near, self._near_out_latency, self._far_out_latency * sends)
        fitting: Floats = np.where(row.peak_bytes[at] <= self._memory, seconds, np.inf)
        return fitting

    def _near_parts(self, row: SegmentRow, ends: Integers) -> tuple[Floats, Floats]:
        """Bytes received from, and sent to, the neighbours at least."""
        at = ends - row.start - 1
        received, sent = row.received_bytes[at], row.sent_bytes[at]
        if self._problem.relay:
            return received, sent
        return np.minimum(self._near_bytes[row.start], received), np.minimum(self._near_bytes[ends], sent)

    def lacking_bytes(self, row: SegmentRow, ends: Integers) -> Floats:
        """[labels, ends] bytes beyond the device's memory; negative where some are left."""
        lacking: Floats = row.peak_bytes[ends - row.start - 1] - self._memory
        return lacking

    def _near(self, pairs: list[tuple[int, int]], far_latency: Floats, far: Floats) -> tuple[Floats, Floats]:
        latency, per_byte = far_latency.copy(), far.copy()
        for index, (source, target) in enumerate(pairs):
            if NOBODY not in (source, target):
                latency[index] = self._classes.latency_seconds[source, target]
                per_byte[index] = self._classes.seconds_per_byte[source, target]
        return latency, per_byte


def _bytes_between_neighbours(problem: PartitionProblem) -> Floats:
    """By position p: bytes that node p - 1 makes and node p reads, which a cut at p sends over the neighbours' link."""
    between = np.zeros(problem.num_nodes + 1)
    adjacent = (problem.value_producer[problem.read_value] == problem.read_node - 1) & (problem.read_node > 0)
    sizes = problem.value_bytes[problem.read_value[adjacent]].astype(np.float64)
    np.add.at(between, problem.read_node[adjacent], sizes)
    return between
