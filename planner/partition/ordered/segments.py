"""What each contiguous segment of the program would hold and move, for all ends of one start at once.

These are evaluate's definitions for stages that are segments: there, what enters and what is live depends on where
the segment starts and ends alone. (One exception, on the safe side: a view of a state that crosses a cut counts as
live to the segment's end if anything reads that state later.) In training, how many microbatches a segment keeps
depends on its place in the pipeline: `peak_bytes` counts the most that it could be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.training.memory import most_kept_microbatches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentRow:
    """Bytes of segments [start, start + 1 + k), k along each array.

    `received_bytes` and `sent_bytes` count each crossing value once, however many stages there are at the other end.
    `receives` and `sends`: whether any value crosses, even of 0 bytes. In training, `trained_bytes` are gradients and
    what the optimizer keeps, `saved_bytes` what one microbatch keeps for its backward pass, `recomputed_bytes` the
    activations that are computed again, of one microbatch at a time; `gradients_returned_bytes` go back for what is
    received, `gradients_awaited_bytes` come back for what is sent.
    """

    start: int
    state_bytes: Floats
    activation_bytes: Floats
    buffer_bytes: Floats
    received_bytes: Floats
    sent_bytes: Floats
    receives: Booleans
    sends: Booleans
    trained_bytes: Floats
    recomputed_bytes: Floats
    saved_bytes: Floats
    gradients_returned_bytes: Floats
    gradients_awaited_bytes: Floats
    most_kept_microbatches: int

    @property
    def peak_bytes(self) -> Floats:
        return self.resting_bytes + self.most_kept_microbatches * self.saved_bytes

    @property
    def resting_bytes(self) -> Floats:
        """The peak, but for what is saved."""
        states = self.state_bytes + self.trained_bytes
        return states + self.buffer_bytes + self.activation_bytes + self.recomputed_bytes


class Segments:
    """Rows cost O(values + reads from the start to the furthest end)."""

    def __init__(self, problem: PartitionProblem) -> None:
        self._problem = problem
        n = problem.num_nodes
        self._last = problem.value_last_read
        self._root_last = problem.root_last_access[problem.value_root]
        self._bytes = problem.value_bytes.astype(np.float64)
        self._ones = np.ones(problem.num_values)
        self._some_are_empty = bool((problem.value_bytes == 0).any())
        self._made = _SortedItems(problem.value_producer, n)
        self._roots = _SortedItems(problem.root_producer, n)
        # The caller reads what the graph returns from the last stage, so its read stands with the last node.
        returned = np.flatnonzero(problem.value_returned)
        nodes = np.concatenate([problem.read_node, np.full(returned.size, n - 1, dtype=np.int64)])
        self._reads = _FirstUses(nodes, np.concatenate([problem.read_value, returned]), n)
        self._uses = _FirstUses(problem.use_node, problem.use_state, n)
        self._most_kept = 0
        if problem.training is not None:
            self._most_kept = most_kept_microbatches(problem.training, problem.num_devices)
            self._gradient_bytes = problem.value_gradient_bytes.astype(np.float64)
            self._trained_bytes = (problem.state_gradient_bytes + problem.state_optimizer_bytes).astype(np.float64)
            differentiated = problem.recomputes_activations | problem.node_has_gradient[problem.read_node]
            self._saved_reads = _FirstUses(problem.read_node[differentiated], problem.read_value[differentiated], n)

    def row(self, start: int, furthest_end: int) -> SegmentRow:
        problem, width = self._problem, furthest_end - start
        entering = self._entering(start, width)
        given = entering.cumulated(self._bytes, width)
        own_values = self._made.between(start, furthest_end)
        leaving = _sums(self._bytes, own_values, problem.value_producer, self._last, start, width)
        sent, received = self._crossing(self._bytes, start, width, entering, leaving)
        num_sent, num_received = sent, received
        if self._some_are_empty:
            num_leaving = _sums(self._ones, own_values, problem.value_producer, self._last, start, width)
            num_sent, num_received = self._crossing(self._ones, start, width, entering, num_leaving)
        return SegmentRow(
            start=start,
            state_bytes=self._uses.sums(problem.state_bytes.astype(np.float64), start, width),
            activation_bytes=self._activation(start, width, entering, given),
            buffer_bytes=problem.microbatches_in_flight * (given + leaving),
            received_bytes=received,
            sent_bytes=sent,
            receives=num_received > 0,
            sends=num_sent > 0,
            **self._training(start, width, entering, own_values),
        )

    def _training(self, start: int, width: int, entering: _Uses, own_values: Integers) -> dict[str, Any]:
        """The row's fields about training; zeros in inference."""
        problem, nothing = self._problem, np.zeros(width)
        if problem.training is None:
            names = (
                "trained_bytes",
                "recomputed_bytes",
                "saved_bytes",
                "gradients_returned_bytes",
                "gradients_awaited_bytes",
            )
            return {**dict.fromkeys(names, nothing), "most_kept_microbatches": 0}
        own = self._roots.between(start, start + width)
        root_bytes = np.bincount(problem.root_producer[own] - start, problem.root_saved_bytes[own], minlength=width)
        received = self._saved_reads.sums(self._bytes, start, width, problem.value_producer)
        leaving = _sums(self._gradient_bytes, own_values, problem.value_producer, self._last, start, width)
        awaited, returned = self._crossing(self._gradient_bytes, start, width, entering, leaving)
        made_bytes = np.cumsum(root_bytes + problem.node_kept_bytes[start : start + width])
        once = problem.recomputes_activations
        return {
            "trained_bytes": self._uses.sums(self._trained_bytes, start, width),
            "recomputed_bytes": made_bytes if once else nothing,
            "saved_bytes": received if once else made_bytes + received,
            "gradients_returned_bytes": returned,
            "gradients_awaited_bytes": awaited,
            "most_kept_microbatches": self._most_kept,
        }

    def _entering(self, start: int, width: int) -> _Uses:
        """Values that a segment is sent once it has that node. What is relayed, and what the caller gives, enters
        whatever the segment reads."""
        producer = self._problem.value_producer
        if not (self._problem.relay or start == 0):
            return self._reads.first(start, width, producer)
        values = np.flatnonzero((producer < start) & (self._last >= start))
        return _Uses(np.zeros_like(values), values)

    def _activation(self, start: int, width: int, entering: _Uses, given: Floats) -> Floats:
        """`given`: bytes of what has entered by each node."""
        problem = self._problem
        change = np.zeros(width + 1)
        own = self._roots.between(start, start + width)
        own_bytes = problem.root_bytes[own].astype(np.float64)
        _add(change, problem.root_producer[own] - start, own_bytes)
        _add(change, np.minimum(problem.root_last_access[own] + 1 - start, width), -own_bytes)
        entering_bytes = self._bytes[entering.items]
        _add(change, entering.nodes, entering_bytes)
        _add(change, np.minimum(self._root_last[entering.items] + 1 - start, width), -entering_bytes)
        # What enters with a later node lies there from the start on, beside what is live at each node before.
        return np.maximum.accumulate(np.cumsum(change[:-1]) - given) + given

    def _crossing(
        self, sizes: Floats, start: int, width: int, entering: _Uses, leaving: Floats
    ) -> tuple[Floats, Floats]:
        """(sent, received), counting each value as its size."""
        problem, n = self._problem, self._problem.num_nodes
        sent = leaving.copy()
        passing = entering.items
        if passing.size and (problem.relay or start == 0):
            # What enters and is still needed goes on: every stage relays, stage 0 hands on the graph's inputs.
            change = np.zeros(width + 1)
            change[0] = sizes[passing].sum()
            _add(change, np.minimum(self._last[passing] - start, width), -sizes[passing])
            sent += np.cumsum(change[:-1])
        if start + width == n:
            sent[-1] = 0.0
        return sent, np.zeros(width) if start == 0 else entering.cumulated(sizes, width)


class _SortedItems:
    """Indexes in order of an integer key, to be cut by ranges of keys."""

    def __init__(self, keys: Integers, num_positions: int) -> None:
        self.order = np.argsort(keys, kind="stable")
        self._offsets = np.searchsorted(keys[self.order], np.arange(num_positions + 1))

    def between(self, start: int, end: int) -> Integers:
        return self.order[self._offsets[start] : self._offsets[end]]


class _Uses(NamedTuple):
    """Nodes, counted from the start, and what each uses first."""

    nodes: Integers
    items: Integers

    def cumulated(self, sizes: Floats, width: int) -> Floats:
        """Sizes of the items that are used by each node, or one before it."""
        return np.cumsum(np.bincount(self.nodes, weights=sizes[self.items], minlength=width)[:width])


class _FirstUses:
    """Which uses of an item are its first at or after a position."""

    def __init__(self, nodes: Integers, items: Integers, num_positions: int) -> None:
        order = np.lexsort((nodes, items))
        nodes, items = nodes[order], items[order]
        repeated = np.zeros(nodes.size, dtype=np.bool_)
        repeated[1:] = (items[1:] == items[:-1]) & (nodes[1:] == nodes[:-1])
        nodes, items = nodes[~repeated], items[~repeated]
        previous = np.full(nodes.size, -1, dtype=np.int64)
        same = items[1:] == items[:-1]
        previous[1:][same] = nodes[:-1][same]
        by_node = np.argsort(nodes, kind="stable")
        self._nodes, self._items, self._previous = nodes[by_node], items[by_node], previous[by_node]
        self._offsets = np.searchsorted(self._nodes, np.arange(num_positions + 1))

    def sums(self, sizes: Floats, start: int, width: int, producer: Integers | None = None) -> Floats:
        """Bytes of distinct items used in each [start, start + 1 + k); given producers, of those made before it."""
        return self.first(start, width, producer).cumulated(sizes, width)

    def first(self, start: int, width: int, producer: Integers | None = None) -> _Uses:
        """First uses there; given producers, of what is made before it."""
        window = slice(self._offsets[start], self._offsets[start + width])
        first = self._previous[window] < start
        items = self._items[window]
        if producer is not None:
            first &= producer[items] < start
        return _Uses(self._nodes[window][first] - start, items[first])


def _sums(sizes: Floats, items: Integers, producer: Integers, last: Integers, start: int, width: int) -> Floats:
    """Bytes of the items made in each [start, end) that are needed at or after its end."""
    items = items[last[items] > producer[items]]
    change = np.zeros(width + 1)
    _add(change, producer[items] - start, sizes[items])
    _add(change, np.minimum(last[items] - start, width), -sizes[items])
    return np.cumsum(change[:-1])


def _add(change: Floats, positions: Integers, amounts: Floats) -> None:
    if positions.size:
        change += np.bincount(positions, weights=amounts, minlength=change.size)
