"""What a stage between two order ideals holds and moves: evaluate's definitions, for all ends of one start at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageRow:
    """By end. Each crossing value counts once, however many stages are at the other end."""

    peak_bytes: Floats
    received_bytes: Floats
    sent_bytes: Floats
    receives: Booleans
    sends: Booleans


class IdealStages:
    """`members` [ideals, nodes], the first empty, the last whole. A row costs O(ends x (nodes + values + reads))."""

    def __init__(self, problem: PartitionProblem, members: Booleans) -> None:
        n = problem.num_nodes
        self.members = members
        barred = np.isinf(problem.work_seconds)
        self._compute = np.where(barred, 0.0, problem.work_seconds) @ members.T
        self._barred = barred.astype(np.float64) @ members.T
        self._problem = problem
        self._made = np.concatenate([members, np.ones((members.shape[0], 1), dtype=np.bool_)], axis=1)[
            :, problem.value_producer
        ]
        self._num_read = _counts(members, problem.read_node, problem.read_value, problem.num_values)
        self._num_used = _counts(members, problem.use_node, problem.use_state, problem.state_bytes.size)
        self._needed = (self._num_read[-1] > self._num_read) | problem.value_returned
        self._bytes = problem.value_bytes.astype(np.float64)
        shown = problem.shown_node < n
        made = problem.value_producer >= 0
        num_roots = problem.root_bytes.size
        root = [problem.value_root[problem.read_value], problem.value_root[made], problem.shown_root[shown]]
        node = [problem.read_node, problem.value_producer[made], problem.shown_node[shown]]
        # One access that is never made keeps each root's run of accesses from being empty.
        root, node = [*root, np.arange(num_roots)], [*node, np.full(num_roots, n)]
        accessed = np.concatenate(root)
        order = np.argsort(accessed, kind="stable")
        self._access_node = np.concatenate(node)[order]
        self._access_begin = np.searchsorted(accessed[order], np.arange(num_roots))
        self._returned_states = problem.shown_root[~shown]
        # Likewise a value that is never kept, after all others.
        roots = np.concatenate([problem.value_root, np.arange(num_roots)])
        order = np.argsort(roots, kind="stable")
        self._values_by_root = np.minimum(order, problem.num_values)
        self._value_begin = np.searchsorted(roots[order], np.arange(num_roots))

    def seconds(self, devices: Integers, start: int, ends: Integers) -> Floats:
        """[devices, ends] of work; inf where the device cannot run all of it."""
        seconds = self._compute[devices][:, ends] - self._compute[devices, start][:, None]
        barred = self._barred[devices][:, ends] > self._barred[devices, start][:, None]
        return np.where(barred, np.inf, seconds)

    def ends(self, start: int, limit: float) -> Integers:
        """Ideals that hold the one at `start` and more, within `limit` seconds on some device."""
        after = np.arange(start + 1, self.members.shape[0])
        seconds = self.seconds(np.arange(self._problem.num_devices), start, after).min(axis=0)
        after = after[(seconds <= limit * (1 + 1e-9)) & (seconds < np.inf)]
        missing = np.flatnonzero(self.members[start])
        found: Integers = after[self.members[np.ix_(after, missing)].all(axis=1)]
        return found

    def row(self, start: int, ends: Integers) -> StageRow:
        problem, size = self._problem, self._bytes
        last = ends == self.members.shape[0] - 1
        entering = self._made[start] & self._needed[start]
        made_here = self._made[ends] & ~self._made[start]
        leaving = made_here & self._needed[ends]
        read_here = self._num_read[ends] > self._num_read[start]
        if problem.relay:
            received = np.broadcast_to(entering, leaving.shape)
            sent = (made_here | entering) & self._needed[ends]
        else:
            received = self._made[start] & (read_here | (problem.value_returned & last[:, None]))
            sent = leaving | (entering & self._needed[ends]) if start == 0 else leaving
        received, sent = np.logical_and(received, start > 0), sent & ~last[:, None]
        held = problem.state_bytes + problem.state_gradient_bytes + problem.state_optimizer_bytes
        states = (self._num_used[ends] > self._num_used[start]) @ held.astype(np.float64)
        buffers = problem.microbatches_in_flight * (size[entering].sum() + leaving @ size)
        return StageRow(
            peak_bytes=states + buffers + self._activation_bytes(start, ends, last, entering),
            received_bytes=received @ size,
            sent_bytes=sent @ size,
            receives=np.any(received, axis=1),
            sends=np.any(sent, axis=1),
        )

    def _activation_bytes(self, start: int, ends: Integers, last_stage: Booleans, entering: Booleans) -> Floats:
        problem, n = self._problem, self._problem.num_nodes
        inside = np.zeros((ends.size, n + 1), dtype=np.bool_)
        inside[:, :n] = self.members[ends] & ~self.members[start]
        if not problem.root_bytes.size:
            return np.zeros(ends.size)
        at = np.where(inside[:, self._access_node], self._access_node, -1)
        last = np.maximum.reduceat(at, self._access_begin, axis=1)
        last[np.ix_(last_stage, self._returned_states)] = n - 1
        kept = np.zeros((ends.size, problem.num_values + 1), dtype=np.bool_)
        kept[:, :-1] = self._made[ends] & self._needed[ends]
        kept = kept[:, self._values_by_root]
        last[np.logical_or.reduceat(kept, self._value_begin, axis=1)] = n - 1
        own = inside[:, problem.root_producer]
        own &= problem.root_producer >= 0
        sizes = own * problem.root_bytes.astype(np.float64)
        change = np.zeros((ends.size, n + 1))
        made = problem.root_producer >= 0
        np.add.at(change.T, problem.root_producer[made], sizes[:, made].T)
        given = np.bincount(problem.value_root[entering], self._bytes[entering], problem.root_bytes.size)
        change[:, 0] += given.sum()
        rows = np.repeat(np.arange(ends.size), last.shape[1])
        freed = np.bincount(rows * (n + 1) + last.ravel() + 1, (sizes + given).ravel(), ends.size * (n + 1))
        change -= freed.reshape(change.shape)
        peak: Floats = np.cumsum(change[:, :n], axis=1).max(axis=1)
        return peak


def _counts(members: Booleans, node: Integers, item: Integers, num_items: int) -> Integers:
    """[ideals, items]: how many of the pairs (node, item) have their node in each ideal."""
    found = np.zeros((members.shape[0], num_items), dtype=np.int64)
    np.add.at(found.T, item, members[:, node].T)
    return found
