"""What crosses between stages: which values each is given, and the values and bytes of each edge of their DAG.

Direct: a producer sends to each stage that reads the value. Relay: a value passes through every stage up to its last
reader. Either way stage 0 takes the graph's inputs and the last stage returns its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Integers, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossings:
    """Distinct (value, the stage that sends it, the stage that it is sent to). A stage is sent a value by one other."""

    values: Integers
    sources: Integers
    targets: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """By value: the stage that makes it (-1: an input), the last that needs it (-1: none). `edges`: bytes by pair."""

    num_stages: int
    made_in: Integers
    last_needed_in: Integers
    crossings: Crossings
    edges: Mapping[tuple[int, int], int]


def traffic(problem: PartitionProblem, stage_of_node: Integers, num_stages: int) -> Traffic:
    made_in = np.where(problem.value_producer >= 0, stage_of_node[problem.value_producer], -1)
    last_needed_in = np.full(problem.num_values, -1, dtype=np.int64)
    np.maximum.at(last_needed_in, problem.read_value, stage_of_node[problem.read_node])
    last_needed_in[problem.value_returned] = num_stages - 1
    crossings = (
        _relayed(made_in, last_needed_in) if problem.relay else _direct(problem, made_in, stage_of_node, num_stages)
    )
    return Traffic(
        num_stages=num_stages,
        made_in=made_in,
        last_needed_in=last_needed_in,
        crossings=crossings,
        edges=_edges(problem, crossings, num_stages),
    )


def _relayed(made_in: Integers, last_needed_in: Integers) -> Crossings:
    first = np.maximum(made_in, 0)
    hops = np.maximum(last_needed_in - first, 0)
    values = np.repeat(np.arange(made_in.size), hops)
    sources = first[values] + np.arange(values.size) - np.repeat(np.cumsum(hops) - hops, hops)
    return Crossings(values=values, sources=sources, targets=sources + 1)


def _direct(problem: PartitionProblem, made_in: Integers, stage_of_node: Integers, num_stages: int) -> Crossings:
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([stage_of_node[problem.read_node], np.full(returned.size, num_stages - 1)])
    pairs = np.unique(values * num_stages + readers)
    values, readers = pairs // num_stages, pairs % num_stages
    sources = np.maximum(made_in[values], 0)
    crossing = sources != readers
    return Crossings(values=values[crossing], sources=sources[crossing], targets=readers[crossing])


def _edges(problem: PartitionProblem, crossings: Crossings, num_stages: int) -> dict[tuple[int, int], int]:
    pairs, edge_of_crossing = np.unique(crossings.sources * num_stages + crossings.targets, return_inverse=True)
    sizes = np.zeros(pairs.size, dtype=np.int64)
    np.add.at(sizes, edge_of_crossing, problem.value_bytes[crossings.values])
    ends = zip((pairs // num_stages).tolist(), (pairs % num_stages).tolist(), strict=True)
    return dict(zip(ends, sizes.tolist(), strict=True))
