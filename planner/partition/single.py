"""Mode "single": the whole program on the first of the largest devices."""

from __future__ import annotations

import math

import numpy as np

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.describe import describe_bytes, describe_stage, smaller_batch_hint
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from planner.partition.score import score


def single(problem: PartitionProblem) -> Assignment:
    """Raises Infeasible if it does not fit there, OptionsError if a node is fixed to another device."""
    largest = int(np.argmax(problem.device_memory_bytes))
    name, room = problem.labels.devices[largest], int(problem.device_memory_bytes[largest])
    reason = f"the whole program fits {name!r}, the first of the largest devices"
    assignment = contiguous(problem, (0, problem.num_nodes), (largest,), (reason,))
    found = score(problem, assignment, Objective.MEMORY)
    stage = found.evaluation.stages[0]
    if not math.isfinite(stage.compute_seconds):
        raise OptionsError(f"mode single: some nodes are fixed to other devices than {name!r}; use another mode")
    lacking = stage.peak_bytes - room
    if lacking > 0:
        raise Infeasible(
            f"mode single: {describe_stage(problem, (0, problem.num_nodes), 0, stage)}, and the largest device, "
            f"{name!r}, has {describe_bytes(room)}: {describe_bytes(lacking)} are lacking. A mode that uses several "
            f"devices may fit{smaller_batch_hint(stage, lacking)}",
            stage=0,
            device=name,
            needed_bytes=stage.peak_bytes,
            lacking_bytes=lacking,
        )
    return assignment
