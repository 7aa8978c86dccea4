"""Random problems of a few nodes, and their optimum by trying every pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from planner.cost_graphs.hybrid.problem import HybridProblem, HybridStage, stage_costs


def random_problem(seed: int, *, nodes: int = 4, alternatives: int = 2) -> HybridProblem:
    """Degrees 1 and 2 and up to four microbatches; some nodes lack a degree, some an alternative."""
    random = np.random.default_rng(seed)
    shape = (2, nodes, alternatives)
    seconds = random.integers(0, 9, shape).astype(float)
    seconds[1] *= 0.6
    missing = random.random(shape) < 0.15
    missing[0, :, 0] = False
    seconds[missing] = np.inf
    arcs = sorted({(int(random.integers(node)), node) for node in range(1, nodes) for _ in range(2)})
    per_microbatch, always = random.integers(0, 6, shape).astype(float), random.integers(0, 6, shape).astype(float)
    return HybridProblem(
        degrees=np.array([1, 2], dtype=np.int64),
        seconds=seconds,
        parameter_bytes=random.integers(0, 8, shape).astype(float),
        held_per_microbatch=per_microbatch,
        held_always=always,
        edge_source=np.array([source for source, _ in arcs], dtype=np.int64),
        edge_target=np.array([target for _, target in arcs], dtype=np.int64),
        edge_bytes=random.integers(0, 5, len(arcs)).astype(float),
        entering_bytes=random.integers(0, 3, (2, len(arcs), alternatives)).astype(float),
        leaving_bytes=random.integers(0, 3, (2, len(arcs), alternatives)).astype(float),
        microbatches=int(random.integers(1, 5)),
        num_devices=int(random.integers(1, 6)),
        memory_bytes=float(random.integers(8, 60)),
        bandwidth=float(random.choice([0.5, 2.0, 10.0])),
    )


def least_seconds(problem: HybridProblem) -> float:
    """inf where no pipeline fits."""
    return min((_seconds(problem, stages) for stages in _pipelines(problem)), default=np.inf)


def _seconds(problem: HybridProblem, stages: tuple[HybridStage, ...]) -> float:
    costs = stage_costs(problem, stages)
    if any(cost.held_bytes > problem.memory_bytes for cost in costs):
        return float("inf")
    return max(cost.seconds for cost in costs)


def _pipelines(problem: HybridProblem) -> Iterator[tuple[HybridStage, ...]]:
    arcs = list(zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True))
    for stage_of in product(range(problem.num_nodes), repeat=problem.num_nodes):
        count = max(stage_of) + 1
        if set(stage_of) != set(range(count)) or any(stage_of[source] > stage_of[target] for source, target in arcs):
            continue
        members = [[node for node, stage in enumerate(stage_of) if stage == index] for index in range(count)]
        for shape in product(product(problem.copies.tolist(), range(len(problem.degrees))), repeat=count):
            devices = sum(copies * int(problem.degrees[degree]) for copies, degree in shape)
            if devices > problem.num_devices or sum(copies for copies, _ in shape) > problem.microbatches:
                continue
            choices = [
                [
                    alternative
                    for alternative in range(problem.seconds.shape[2])
                    if np.isfinite(problem.seconds[degree, node, alternative])
                ]
                for (_, degree), nodes in zip(shape, members, strict=True)
                for node in nodes
            ]
            for picked in product(*choices):
                rest = iter(picked)
                yield tuple(
                    HybridStage(copies=copies, degree=degree, alternatives=tuple((node, next(rest)) for node in nodes))
                    for (copies, degree), nodes in zip(shape, members, strict=True)
                )
