"""What crosses between stages: which values each is given, and the bytes of each edge of their DAG.

Direct: a producer sends to each stage that reads the value. Relay: a value passes through every stage up to its last
reader. Either way stage 0 takes the graph's inputs and the last stage returns its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Integers, PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """By value: the stage that makes it (-1: an input), the last that needs it (-1: none). `edges`: bytes by pair."""

    made_in: Integers
    last_needed_in: Integers
    edges: Mapping[tuple[int, int], int]


def traffic(problem: PartitionProblem, stage_of_node: Integers, num_stages: int) -> Traffic:
    made_in = np.where(problem.value_producer >= 0, stage_of_node[problem.value_producer], -1)
    last_needed_in = np.full(problem.num_values, -1, dtype=np.int64)
    np.maximum.at(last_needed_in, problem.read_value, stage_of_node[problem.read_node])
    last_needed_in[problem.value_returned] = num_stages - 1
    edges = (
        _relayed(problem, made_in, last_needed_in, num_stages)
        if problem.relay
        else _direct(problem, made_in, stage_of_node, num_stages)
    )
    return Traffic(made_in=made_in, last_needed_in=last_needed_in, edges=edges)


def _relayed(
    problem: PartitionProblem, made_in: Integers, last_needed_in: Integers, num_stages: int
) -> dict[tuple[int, int], int]:
    edges: dict[tuple[int, int], int] = {}
    for stage in range(num_stages - 1):
        crossing = (made_in <= stage) & (last_needed_in > stage)
        if crossing.any():
            edges[stage, stage + 1] = int(problem.value_bytes[crossing].sum())
    return edges


def _direct(
    problem: PartitionProblem, made_in: Integers, stage_of_node: Integers, num_stages: int
) -> dict[tuple[int, int], int]:
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([stage_of_node[problem.read_node], np.full(returned.size, num_stages - 1)])
    pairs = np.unique(np.stack([values, readers]), axis=1)
    values, readers = pairs[0], pairs[1]
    sources = np.maximum(made_in[values], 0)
    crossing = sources != readers
    edges: dict[tuple[int, int], int] = {}
    for source, reader, size in zip(
        sources[crossing].tolist(),
        readers[crossing].tolist(),
        problem.value_bytes[values[crossing]].tolist(),
        strict=True,
    ):
        edges[source, reader] = edges.get((source, reader), 0) + size
    return dict(sorted(edges.items()))
