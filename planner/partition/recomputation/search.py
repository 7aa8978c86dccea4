"""Stages that run cheap nodes of earlier stages again rather than receive what they make: masks, position tables.

For each stage `Cones` proposes what to run again, once weighing seconds as they are and once sparing transfers at any
price; `evaluate` judges what all stages do at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.partition.objective import Objective
from planner.partition.problem import Floats, PartitionProblem
from planner.partition.recomputation.cones import Cones
from planner.partition.score import NEGLIGIBLE, Scored, score
from planner.partition.traffic import slowest_links

# What a second of running counts: as it is, or next to nothing beside what is sent.
RUN_WEIGHTS = (1.0, 1e-6)
_SAVES = 1e-9


def recompute(problem: PartitionProblem, scored: Scored, objective: Objective) -> Scored:
    """Never worse: a lower value, or the same with less load in sum. Every other part of the assignment stays."""
    if scored.assignment.num_stages < 2 or not problem.node_recomputable.any():
        return scored
    proposals, best = _Proposals(problem, scored), scored
    for weight in RUN_WEIGHTS:
        recomputed = proposals.of_all(weight)
        candidate = score(problem, replace(scored.assignment, recomputed=recomputed), objective)
        if _is_better(candidate, best):
            best = candidate
    return best


class _Proposals:
    def __init__(self, problem: PartitionProblem, start: Scored) -> None:
        self._problem, self._assignment = problem, start.assignment
        self._num_stages = start.assignment.num_stages
        self._cones = Cones(problem)
        self._stage_of_node = np.asarray(start.assignment.stage_of_node, dtype=np.int64)
        self._needed, self._num_targets = self._needs()
        self._seconds_per_byte = slowest_links(problem, start.assignment.devices_of_stage)[1]
        self._returned = frozenset(np.flatnonzero(problem.value_returned).tolist())

    def of_all(self, weight: float) -> tuple[tuple[int, ...], ...]:
        """What each stage runs again, from the last on: what it needs depends on those behind it. Empty if nothing."""
        run = list(self._assignment.recomputed) or [()] * self._num_stages
        for stage in reversed(range(1, self._num_stages)):
            run[stage] = self._cheapest(stage, weight, self._at_hand(stage, run))
        return tuple(run) if any(run) else ()

    def _cheapest(self, stage: int, weight: float, at_hand: frozenset[int]) -> tuple[int, ...]:
        devices = list(self._assignment.devices_of_stage[stage])
        run_seconds: Floats = self._problem.pass_seconds[devices].max(axis=0) * weight
        return self._cones.best(self._needed[stage], at_hand, self._send_seconds(stage), run_seconds)

    def _at_hand(self, stage: int, run: list[tuple[int, ...]]) -> frozenset[int]:
        """What is handed to the stage whatever it runs: what later ones need by relay, and what the last returns."""
        if not self._problem.relay:
            return self._returned if stage == self._num_stages - 1 else frozenset()
        values = set(self._returned)
        for later in range(stage + 1, self._num_stages):
            made = set(run[later])
            read = (value for node in run[later] for value in self._cones.reads(node))
            values.update(value for value in (*self._needed[later], *read) if self._cones.producer[value] not in made)
        return frozenset(value for value in values if self._made_in(value) < stage)

    def _made_in(self, value: int) -> int:
        """An input enters at stage 0."""
        node = self._cones.producer[value]
        return int(self._stage_of_node[node]) if node >= 0 else 0

    def _send_seconds(self, stage: int) -> Callable[[int], float]:
        """What both ends spend on a value; a sender that other stages keep busy anyhow is spared its share only."""
        sizes, per_byte = self._problem.value_bytes, self._seconds_per_byte

        def seconds(value: int) -> float:
            source = stage - 1 if self._problem.relay else self._made_in(value)
            ends = 2.0 if self._problem.relay else 1.0 + 1.0 / max(1, int(self._num_targets[value]))
            return float(sizes[value] * per_byte[source, stage]) * ends

        return seconds

    def _needs(self) -> tuple[list[list[int]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """[stages] values made in earlier stages that its own nodes read; [v] how many such stages a value has."""
        problem, count = self._problem, self._num_stages
        made_in = np.where(problem.value_producer >= 0, self._stage_of_node[problem.value_producer], 0)
        readers = self._stage_of_node[problem.read_node]
        crossing = made_in[problem.read_value] < readers
        pairs = np.unique(readers[crossing] * problem.num_values + problem.read_value[crossing])
        needed: list[list[int]] = [[] for _ in range(count)]
        for stage, value in zip(
            (pairs // problem.num_values).tolist(), (pairs % problem.num_values).tolist(), strict=True
        ):
            needed[stage].append(value)
        return needed, np.bincount(pairs % problem.num_values, minlength=problem.num_values)


def _is_better(candidate: Scored, best: Scored) -> bool:
    if not candidate.fits or candidate.value > best.value * (1 + NEGLIGIBLE):
        return False
    return candidate.value < best.value * (1 - NEGLIGIBLE) or _load_seconds(candidate) < _load_seconds(best) * (
        1 - _SAVES
    )


def _load_seconds(scored: Scored) -> float:
    return sum(stage.load_seconds for stage in scored.evaluation.stages)
