"""Seconds and lacking bytes of a segment under each label of a state space."""

from __future__ import annotations

import numpy as np

from planner.partition.device_classes import DeviceClasses
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.repeated_sends import RepeatedSends
from planner.partition.segments import SegmentRow
from planner.partition.state_space import NOBODY, StateSpace


class SegmentLoads:
    """[labels, ends] seconds, inf where the device's memory does not hold the segment.

    Exact where tensors are relayed. Otherwise a lower bound: every crossing value is paid once at each end, over the
    neighbour's link where it provably goes there, else over the best link that the device has; and as often again as it
    must be sent if no stage takes longer than `limit`.
    """

    def __init__(
        self, problem: PartitionProblem, classes: DeviceClasses, space: StateSpace, limit: float = np.inf
    ) -> None:
        self._problem = problem
        self._repeated = RepeatedSends(problem, limit)
        self._classes = classes
        own = np.array([classes.representatives[label[1]] for label in space.labels], dtype=np.int64)
        self._own = own
        self._memory = problem.device_memory_bytes[own].astype(np.float64)[:, None]
        best_in, best_out = (
            best_seconds_per_byte(problem, into=True)[own],
            best_seconds_per_byte(problem, into=False)[own],
        )
        self._far_in, self._far_out = best_in[:, None], best_out[:, None]
        before = [(label[0], label[1]) for label in space.labels]
        after = [(label[1], label[2]) for label in space.labels]
        self._near_in_latency, self._near_in = self._near(before, best_in)
        self._near_out_latency, self._near_out = self._near(after, best_out)
        self._near_bytes = np.zeros(problem.num_nodes + 1) if problem.relay else _bytes_between_neighbours(problem)

    def seconds(self, row: SegmentRow, ends: Integers) -> Floats:
        at = ends - row.start - 1
        problem = self._problem
        compute = problem.compute_before[self._own][:, ends] - problem.compute_before[self._own, row.start][:, None]
        received, sent = row.received_bytes[at], row.sent_bytes[at]
        # Relayed tensors all come from, and go to, the neighbour.
        near_in = received if problem.relay else np.minimum(self._near_bytes[row.start], received)
        near_out = sent if problem.relay else np.minimum(self._near_bytes[ends], sent)
        seconds = compute + near_in * self._near_in + (received - near_in) * self._far_in
        seconds += near_out * self._near_out + (sent - near_out) * self._far_out
        best = self._classes.best_latency_seconds
        seconds += np.where(near_in > 0, self._near_in_latency, best * (received > 0))
        seconds += np.where(near_out > 0, self._near_out_latency, best * (sent > 0))
        again_bytes, again_edges = self._repeated.of(row.start, ends)
        seconds += again_bytes * self._far_out + again_edges * best
        fitting: Floats = np.where(row.peak_bytes[at] <= self._memory, seconds, np.inf)
        return fitting

    def lacking_bytes(self, row: SegmentRow, ends: Integers) -> Floats:
        """[labels, ends] bytes beyond the device's memory; negative where some are left."""
        lacking: Floats = row.peak_bytes[ends - row.start - 1] - self._memory
        return lacking

    def _near(self, pairs: list[tuple[int, int]], best: Floats) -> tuple[Floats, Floats]:
        latency = np.full((len(pairs), 1), self._classes.best_latency_seconds)
        per_byte = best[:, None].copy()
        for index, (source, target) in enumerate(pairs):
            if NOBODY not in (source, target):
                latency[index] = self._classes.latency_seconds[source, target]
                per_byte[index] = self._classes.seconds_per_byte[source, target]
        return latency, per_byte


def best_seconds_per_byte(problem: PartitionProblem, *, into: bool) -> Floats:
    """Each device's least seconds per byte over its links in one direction."""
    per_byte = problem.link_seconds_per_byte.copy()
    if problem.num_devices == 1:
        return np.zeros(1)
    np.fill_diagonal(per_byte, np.inf)
    best: Floats = per_byte.min(axis=0 if into else 1)
    return best


def _bytes_between_neighbours(problem: PartitionProblem) -> Floats:
    """By position p: bytes that node p - 1 makes and node p reads, which a cut at p sends over the neighbours' link."""
    between = np.zeros(problem.num_nodes + 1)
    adjacent = (problem.value_producer[problem.read_value] == problem.read_node - 1) & (problem.read_node > 0)
    sizes = problem.value_bytes[problem.read_value[adjacent]].astype(np.float64)
    np.add.at(between, problem.read_node[adjacent], sizes)
    return between
