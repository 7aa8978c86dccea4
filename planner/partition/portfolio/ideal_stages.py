"""Order ideals, sets of bundles that hold all that their own read; and the stages between two of them.

What a stage holds and moves is by the definitions of `evaluate`, for many stages at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import grouped
from planner.partition.lattice import Order, Words, as_bits, as_words, enumerate_ideals
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.portfolio.paths import Path
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ideals:
    """`members` [ideals, bundles], and the same as bits; smaller ideals first, from the empty one to all."""

    members: Booleans
    words: Words

    @property
    def count(self) -> int:
        return int(self.members.shape[0])


def all_ideals(bundles: Bundles, limit: int) -> Ideals | None:
    """None if there are more than `limit`. O(ideals x bundles)."""
    words = words_of_ideals(bundles, limit)
    return None if words is None else Ideals(members=as_bits(words, bundles.count), words=words)


def words_of_ideals(bundles: Bundles, limit: int) -> Words | None:
    """The members of all as bits, smaller ones first; None if there are more than `limit`."""
    following = enumerate_ideals(Order(before=bundles.before, after=bundles.after), limit)
    if following is None:
        return None
    return as_words(sorted(following, key=lambda ideal: (ideal.bit_count(), ideal)), bundles.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchanges:
    """By stage. Each crossing value counts once, however many stages are at the other end."""

    received_bytes: Floats
    sent_bytes: Floats
    receives: Booleans
    sends: Booleans


class IdealStages:
    """Between ideals, exactly: see Stages in `least_over_stages`. O(ideals x (values + reads)), as is each method by
    stage."""

    def __init__(self, problem: PartitionProblem, bundles: Bundles, ideals: Ideals) -> None:
        self._problem, self._bundles, self._ideals = problem, bundles, ideals
        self._nodes = np.ascontiguousarray(ideals.members[:, bundles.bundle_of_node])
        barred = np.isinf(problem.work_seconds)
        self._compute = np.where(barred, 0.0, problem.work_seconds) @ self._nodes.T
        self._barred = barred.astype(np.int64) @ self._nodes.T.astype(np.int64)
        whole = np.concatenate([self._nodes, np.ones((ideals.count, 1), dtype=np.bool_)], axis=1)
        self._made = np.ascontiguousarray(whole[:, problem.value_producer])
        self._num_read = _counts(self._nodes, problem.read_node, problem.read_value, problem.num_values)
        self._needed = (self._num_read[-1] > self._num_read) | problem.value_returned
        self._sizes = problem.value_bytes.astype(np.float64)

    @property
    def count(self) -> int:
        return self._ideals.count

    def num_held(self, path: Path) -> Integers:
        num_held: Integers = self._ideals.members[:, list(path.bundles)].sum(axis=1)
        return num_held

    def within(self, limit: float) -> tuple[Integers, Integers]:
        from planner.partition.portfolio.ideal_stages_kernel import stages_within

        kinds = distinct_rows(np.concatenate([self._compute, self._barred], axis=1)).rows
        seconds, barred = np.split(kinds, 2, axis=1)
        limit = min(limit * (1 + 1e-9), np.finfo(np.float64).max)
        return stages_within(
            self._ideals.words, np.ascontiguousarray(seconds), np.ascontiguousarray(barred.astype(np.int64)), limit
        )

    def seconds(self, devices: Integers, starts: Integers, ends: Integers) -> Floats:
        seconds = self._compute[devices][:, ends] - self._compute[devices][:, starts]
        barred = self._barred[devices][:, ends] > self._barred[devices][:, starts]
        return np.where(barred, np.inf, seconds)

    def exchanges(self, starts: Integers, ends: Integers) -> Exchanges:
        from planner.partition.portfolio.ideal_stages_kernel import exchanges

        problem = self._problem
        received, sent = np.zeros((2, starts.size))
        counts = np.zeros((starts.size, 2), dtype=np.int64)
        exchanges(
            starts, ends, self._made, self._num_read, self._needed, problem.value_returned, self._sizes, problem.relay,
            received, sent, counts,
        )  # fmt: skip
        return Exchanges(
            received_bytes=received,
            sent_bytes=sent,
            receives=counts[:, 0] > 0,
            sends=counts[:, 1] > 0,
        )

    def between_neighbours(self, starts: Integers, ends: Integers, unlinked: Booleans) -> tuple[Floats, Floats]:
        from planner.partition.portfolio.ideal_stages_kernel import between_neighbours

        problem, bundles, members = self._problem, self._bundles, self._ideals.members
        made = np.flatnonzero(problem.value_producer >= 0)
        reader, value = np.unique([bundles.bundle_of_node[problem.read_node], problem.read_value], axis=1)
        reads = np.zeros((bundles.count, bundles.count), dtype=np.float32)
        for bundle, readers in enumerate(bundles.after):
            reads[bundle, list(readers)] = 1
        last_of, last = np.nonzero(members & (members @ reads.T == 0))
        next_of, following = np.nonzero(~members & (~members @ reads == 0))
        received, sent = np.zeros((2, starts.size))
        between_neighbours(
            starts, ends, self._made, self._num_read, problem.value_returned, np.where(unlinked, 0.0, self._sizes),
            *grouped(bundles.bundle_of_node[problem.value_producer[made]], made, bundles.count),
            *grouped(reader, value, bundles.count), *grouped(last_of, last, members.shape[0]),
            *grouped(next_of, following, members.shape[0]), received, sent,
        )  # fmt: skip
        return received, sent

    def peak_bytes(self, starts: Integers, ends: Integers) -> Floats:
        from planner.partition.portfolio.ideal_stages_kernel import flowing_bytes

        problem, n = self._problem, self._problem.num_nodes
        sizes = problem.whole_state_bytes
        num_used = _counts(self._nodes, problem.use_node, problem.use_state, sizes.size)
        states = np.zeros(starts.size)
        for state in np.flatnonzero(sizes).tolist():
            states += sizes[state] * (num_used[ends, state] > num_used[starts, state])
        shown, made = problem.shown_node < n, np.flatnonzero(problem.value_producer >= 0)
        roots = [problem.value_root[problem.read_value], problem.value_root[made], problem.shown_root[shown]]
        nodes = [problem.read_node, problem.value_producer[made], problem.shown_node[shown]]
        is_returned = np.zeros(problem.root_bytes.size, dtype=np.bool_)
        is_returned[problem.shown_root[~shown]] = True
        accesses = grouped(np.concatenate(roots), np.concatenate(nodes), problem.root_bytes.size)
        flowing: Floats = flowing_bytes(
            starts, ends, self._nodes, self._made, self._needed, self._sizes, self._num_read, problem.value_returned,
            problem.relay, problem.value_root, problem.root_bytes.astype(np.float64), problem.root_producer, *accesses,
            is_returned, problem.microbatches_in_flight,
        )  # fmt: skip
        return states + flowing


def _counts(members: Booleans, node: Integers, item: Integers, num_items: int) -> Integers:
    """[ideals, items]: how many of the pairs (node, item) have their node in each ideal."""
    counts = np.zeros((num_items, members.shape[0]), dtype=np.int64)
    np.add.at(counts, item, members.T[node])
    return np.ascontiguousarray(counts.T)
