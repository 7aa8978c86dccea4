"""Stages that run cheap nodes of earlier stages again rather than receive what they make: masks, position tables.

For each stage `Cones` proposes what to run again, once weighing seconds as they are and once sparing transfers at any
price; `evaluate` judges. All stages change at once first, then one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.partition.communication import slowest_links
from planner.partition.objective import Objective
from planner.partition.problem import Floats, PartitionProblem
from planner.partition.recomputation.cones import Cones
from planner.partition.score import NEGLIGIBLE, Scored, score

# What a second of running counts: as it is, or next to nothing beside what is sent.
RUN_WEIGHTS = (1.0, 1e-6)
SWEEPS = 3
# Of evaluations in all, each counted as what it walks over.
MAX_STEPS = 500_000_000
_SAVES = 1e-9


def recompute(problem: PartitionProblem, scored: Scored, objective: Objective) -> Scored:
    """Never worse: a lower value, or the same with less load in sum. Every other part of the assignment stays."""
    if scored.assignment.num_stages < 2 or not problem.node_recomputable.any():
        return scored
    search = _Search(problem, scored, objective)
    search.all_at_once()
    search.one_by_one()
    return search.best


class _Search:
    def __init__(self, problem: PartitionProblem, start: Scored, objective: Objective) -> None:
        self.best = start
        self._problem, self._objective = problem, objective
        self._num_stages = start.assignment.num_stages
        self._cones = Cones(problem)
        self._proposals: dict[tuple[int, float, frozenset[int]], tuple[int, ...]] = {}
        self._run = list(start.assignment.recomputed) or [()] * self._num_stages
        self._stage_of_node = np.asarray(start.assignment.stage_of_node, dtype=np.int64)
        self._needed, self._num_targets = self._needs()
        self._seconds_per_byte = slowest_links(problem, start.assignment.devices_of_stage)[1]
        self._returned = frozenset(np.flatnonzero(problem.value_returned).tolist())
        walked = (problem.num_devices + self._num_stages) * (problem.num_nodes + problem.num_values)
        self._evaluations_left = max(2, MAX_STEPS // walked)

    def all_at_once(self) -> None:
        for weight in RUN_WEIGHTS:
            run: list[tuple[int, ...]] = list(self._run)
            for stage in reversed(range(1, self._num_stages)):
                run[stage] = self._proposal(stage, weight, run)
            self._try(run)

    def one_by_one(self) -> None:
        """Until nothing changes, or steps are used up."""
        for _ in range(SWEEPS):
            before = self._run
            for stage in reversed(range(1, self._num_stages)):
                for nodes in self._alternatives(stage):
                    self._try([*self._run[:stage], nodes, *self._run[stage + 1 :]])
            if self._run == before:
                return

    def _alternatives(self, stage: int) -> Iterator[tuple[int, ...]]:
        """What it runs again may be needed no more once another stage has changed."""
        seen = {self._run[stage]}
        for weight in RUN_WEIGHTS:
            nodes = self._proposal(stage, weight, self._run)
            if nodes not in seen:
                seen.add(nodes)
                yield nodes
        if () not in seen:
            yield ()

    def _try(self, run: list[tuple[int, ...]]) -> None:
        if run == self._run or self._evaluations_left <= 0:
            return
        self._evaluations_left -= 1
        recomputed = tuple(run) if any(run) else ()
        candidate = score(self._problem, replace(self.best.assignment, recomputed=recomputed), self._objective)
        if _is_better(candidate, self.best):
            self.best, self._run = candidate, run

    def _proposal(self, stage: int, weight: float, run: list[tuple[int, ...]]) -> tuple[int, ...]:
        at_hand = self._at_hand(stage, run)
        key = stage, weight, at_hand
        if key not in self._proposals:
            self._proposals[key] = self._cheapest(stage, weight, at_hand)
        return self._proposals[key]

    def _cheapest(self, stage: int, weight: float, at_hand: frozenset[int]) -> tuple[int, ...]:
        devices = list(self.best.assignment.devices_of_stage[stage])
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
