"""Seconds and lacking bytes of a segment on each of some devices, between each of some neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.positions import allowed_positions, crossing_bytes, num_crossing
from planner.partition.ordered.segments import SegmentRow
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.traffic import UNKNOWN

Link = tuple[int, int]


class StageLinks(NamedTuple):
    """A stage's device, and the links (source device, target device) to the stages before and behind it, None where
    they may be any; `kept_microbatches` in training, else 0. `is_aside`: of no account for the links of the others."""

    own: int
    into: Link | None
    out: Link | None
    kept_microbatches: int
    is_aside: bool = False

    @property
    def is_linked(self) -> bool:
        return self.into is not None or self.out is not None


class SegmentLoads:
    """[labels, ends] seconds, inf where the device's memory does not hold the segment or it cannot run it.

    Exact where links are equal or tensors are relayed. Otherwise a lower bound: every crossing value is paid once at
    each end, over the neighbour's link where it provably goes there, else over the best link that the device has. In
    training, gradients likewise on their way back; memory counts the microbatches that the label says are kept.
    """

    def __init__(self, problem: PartitionProblem, labels: Sequence[StageLinks]) -> None:
        self._problem = problem
        self._own = np.array([label.own for label in labels], dtype=np.int64)
        self._memory = problem.device_memory_bytes[self._own].astype(np.float64)[:, None]
        self._kept = np.array([label.kept_microbatches for label in labels], dtype=np.float64)[:, None]
        self._forward = Transfers(problem, labels, back=False)
        self._near_bytes = _bytes_between_neighbours(problem, problem.value_bytes)
        if problem.training is not None:
            self._back = Transfers(problem, labels, back=True)
            self._near_gradients = _bytes_between_neighbours(problem, problem.value_gradient_bytes)

    def seconds(self, row: SegmentRow, ends: Integers) -> Floats:
        at = ends - row.start - 1
        seconds = self._problem.segment_seconds(self._own[:, None], np.array(row.start), ends)
        near = self._near_bytes
        seconds += self._forward.received_seconds(row.received_bytes[at], near[row.start], row.receives[at])
        seconds += self._forward.sent_seconds(row.sent_bytes[at], near[ends], row.sends[at])
        if self._problem.training is not None:
            returned, awaited = row.gradients_returned_bytes[at], row.gradients_awaited_bytes[at]
            seconds += self._back.received_seconds(returned, self._near_gradients[row.start], returned > 0)
            seconds += self._back.sent_seconds(awaited, self._near_gradients[ends], awaited > 0)
        fitting: Floats = np.where(self._needed_bytes(row, at) <= self._memory, seconds, np.inf)
        return fitting

    def path_seconds(self, row: SegmentRow, ends: Integers) -> Floats:
        """What a lone batch spends on the segment, and on receiving what it needs, as if the stage before it had made
        all of that: no bound."""
        at = ends - row.start - 1
        seconds = self._problem.segment_seconds(self._own[:, None], np.array(row.start), ends)
        received = row.received_bytes[at]
        seconds += self._forward.received_seconds(received, received, row.receives[at])
        fitting: Floats = np.where(self._needed_bytes(row, at) <= self._memory, seconds, np.inf)
        return fitting

    def memory_share(self, row: SegmentRow, ends: Integers) -> Floats:
        """Of the device's memory."""
        needed = np.broadcast_to(self._needed_bytes(row, ends - row.start - 1), (self._own.size, ends.size))
        runs = np.isfinite(self._problem.segment_seconds(self._own[:, None], np.array(row.start), ends))
        fits = runs & (needed <= self._memory)
        share: Floats = np.where(fits, needed / np.maximum(self._memory, 1.0), np.inf)
        return share

    def lacking_bytes(self, row: SegmentRow, ends: Integers) -> Floats:
        """[labels, ends] bytes beyond the device's memory; negative where some are left, inf where it cannot run it."""
        lacking = self._needed_bytes(row, ends - row.start - 1) - self._memory
        runs = np.isfinite(self._problem.segment_seconds(self._own[:, None], np.array(row.start), ends))
        return np.where(runs, lacking, np.inf)

    def _needed_bytes(self, row: SegmentRow, at: Integers) -> Floats:
        needed: Floats = row.resting_bytes[at] + self._kept * row.saved_bytes[at]
        return needed


class Transfers:
    """[labels, stages] seconds of what a stage exchanges with others in one direction: `back` is what gradients take.

    `near`: bytes that are known to travel between it and the stage beside it, at most; the others over the best link.
    """

    def __init__(self, problem: PartitionProblem, labels: Sequence[StageLinks], *, back: bool) -> None:
        self._relay = problem.relay
        own = np.array([label.own for label in labels], dtype=np.int64)
        into, out = ((own, UNKNOWN), (UNKNOWN, own)) if back else ((UNKNOWN, own), (own, UNKNOWN))
        self._far_in_latency = problem.best_latency_seconds[into][:, None]
        self._far_out_latency = problem.best_latency_seconds[out][:, None]
        self._far_in = problem.best_seconds_per_byte[into][:, None]
        self._far_out = problem.best_seconds_per_byte[out][:, None]
        before = [label.into[:: -1 if back else 1] if label.into else None for label in labels]
        after = [label.out[:: -1 if back else 1] if label.out else None for label in labels]
        self._near_in_latency, self._near_in = _near(problem, before, self._far_in_latency, self._far_in)
        self._near_out_latency, self._near_out = _near(problem, after, self._far_out_latency, self._far_out)

    def received_seconds(self, received: Floats, near: Floats, receives: Booleans) -> Floats:
        near = received if self._relay else np.minimum(near, received)
        # Relayed tensors all come from, and go to, the neighbour.
        latency = np.where(
            receives if self._relay else near > 0, self._near_in_latency, self._far_in_latency * receives
        )
        seconds: Floats = near * self._near_in + (received - near) * self._far_in + latency
        return seconds

    def sent_seconds(self, sent: Floats, near: Floats, sends: Booleans) -> Floats:
        near = sent if self._relay else np.minimum(near, sent)
        latency = np.where(sends if self._relay else near > 0, self._near_out_latency, self._far_out_latency * sends)
        seconds: Floats = near * self._near_out + (sent - near) * self._far_out + latency
        return seconds


def _near(
    problem: PartitionProblem, links: Sequence[tuple[int, ...] | None], far_latency: Floats, far: Floats
) -> tuple[Floats, Floats]:
    latency, per_byte = far_latency.copy(), far.copy()
    for index, link in enumerate(links):
        if link is not None:
            latency[index] = problem.link_latency_seconds[link]
            per_byte[index] = problem.link_seconds_per_byte[link]
    return latency, per_byte


def _bytes_between_neighbours(problem: PartitionProblem, sizes: Integers) -> Floats:
    """By position p: bytes that are made just before a cut at p and read just behind it, with no allowed cut between,
    and that it sends over the neighbours' link."""
    piece = np.cumsum(problem.cut_allowed[:-1])
    producer = problem.value_producer[problem.read_value]
    adjacent = (producer >= 0) & (piece[producer] == piece[problem.read_node] - 1)
    values = np.unique(problem.read_value[adjacent])
    positions = np.append(np.flatnonzero(problem.cut_allowed), problem.num_nodes)
    between = np.zeros(problem.num_nodes + 1)
    np.add.at(between, positions[piece[problem.value_producer[values]]], sizes[values].astype(np.float64))
    return between


def only_neighbours_exchange(problem: PartitionProblem) -> bool:
    """Whether all that crosses a cut goes from the stage before it to the stage behind it, and costs what their link
    does. Where nothing but values of 0 bytes cross, a latency is paid, and their link's is not counted."""
    inner = allowed_positions(problem)[1:-1]
    between = _bytes_between_neighbours(problem, problem.value_bytes)[inner]
    is_counted = (between > 0) | (num_crossing(problem)[inner] == 0)
    return bool((is_counted & (crossing_bytes(problem)[inner] <= between)).all())
