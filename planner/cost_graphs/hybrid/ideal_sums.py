"""What the search reads of each order ideal: sums over its nodes, and the edges that leave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.cost_graphs.hybrid.problem import HybridProblem
from planner.partition.lattice import Words, as_bits, as_words
from planner.partition.problem import Floats, Integers

# Columns of Tables.sums: the least that any alternatives come to; from QUICKEST on, what the quickest ones come to.
SECONDS, PARAMETERS, PER_MICROBATCH, ALWAYS = 0, 1, 2, 3
QUICKEST = 4


class Costs(NamedTuple):
    """The problem's arrays as compiled code takes them."""

    degrees: Integers
    copies: Integers
    seconds: Floats
    parameter_bytes: Floats
    held_per_microbatch: Floats
    held_always: Floats
    edge_source: Integers
    edge_target: Integers
    edge_bytes: Floats
    entering_bytes: Floats
    leaving_bytes: Floats
    microbatches: int
    num_devices: int
    memory_bytes: float
    bandwidth: float


class Tables(NamedTuple):
    """Ideals [i], smaller ones first, the last with all nodes; sums are of the ideal's nodes.

    `work` [i]: the least seconds of a device. `sums` [t, i, 8]: see the columns above. `absent`
    [t, i]: nodes that cannot run at that degree. Edges out of ideal i are `cut_edge[cut_first[i]:cut_first[i + 1]]`.
    `quickest` [t, n]: an alternative. `entering`, `leaving` [2, t, e]: bytes besides the edge's, least and quickest.
    """

    words: Words
    work: Floats
    sums: Floats
    absent: Integers
    cut_first: Integers
    cut_edge: Integers
    quickest: Integers
    entering: Floats
    leaving: Floats


def costs_of(problem: HybridProblem) -> Costs:
    """Of one layout: a kernel is compiled for each that it is given."""
    same = {name: getattr(problem, name) for name in Costs._fields}
    same = {name: np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one for name, one in same.items()}
    # More devices than all copies can have are of no use.
    most = problem.microbatches * int(problem.degrees[-1])
    return Costs(**same | {"num_devices": min(problem.num_devices, most)})


def tables_of(problem: HybridProblem, ideals: Sequence[int]) -> Tables:
    """O(ideals * (nodes + edges) * degrees)."""
    words = as_words(ideals, problem.num_nodes)
    inside = as_bits(words, problem.num_nodes)
    there = np.isfinite(problem.seconds)
    exists = there.any(axis=2)
    quickest = np.where(there, problem.seconds, np.inf).argmin(axis=2)
    columns = (problem.seconds, problem.parameter_bytes, problem.held_per_microbatch, problem.held_always)
    least = [np.where(exists, np.where(there, table, np.inf).min(axis=2), 0.0) for table in columns]
    quick = [np.where(exists, _taken(table, quickest), 0.0) for table in columns]
    node_work = np.where(exists, least[SECONDS] * problem.degrees[:, None], np.inf).min(axis=0)
    crossing = inside[:, problem.edge_source] & ~inside[:, problem.edge_target]
    return Tables(
        words=words,
        work=inside @ node_work,
        # Of one layout, as costs are.
        sums=np.ascontiguousarray(np.stack([(inside @ table.T).T for table in (*least, *quick)], axis=2)),
        absent=np.ascontiguousarray((inside.astype(np.int64) @ (~exists).astype(np.int64).T).T),
        cut_first=np.concatenate([[0], np.cumsum(crossing.sum(axis=1))]).astype(np.int64),
        cut_edge=np.nonzero(crossing)[1].astype(np.int64),
        quickest=quickest.astype(np.int64),
        entering=_edge_bytes(problem.entering_bytes, there, quickest, problem.edge_target),
        leaving=_edge_bytes(problem.leaving_bytes, there, quickest, problem.edge_source),
    )


def _taken(table: Floats, alternative: Integers) -> Floats:
    return np.take_along_axis(table, alternative[:, :, None], axis=2)[:, :, 0]


def _edge_bytes(extra: Floats, there: np.ndarray, quickest: Integers, ends: Integers) -> Floats:
    """[2, t, e]."""
    least = np.where(there[:, ends], extra, np.inf).min(axis=2, initial=np.inf)
    both = [np.where(np.isfinite(least), least, 0.0), _taken(extra, quickest[:, ends])]
    return np.ascontiguousarray(np.stack(both))
