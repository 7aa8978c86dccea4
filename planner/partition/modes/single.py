"""Mode "single": the whole program on the first of the largest devices.

Other modes weigh it on each device, and a training step is compared with what it takes on the fastest alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.describe import describe_bytes, describe_node, describe_stage, smaller_batch_hint
from planner.partition.objective import Activations, Objective, PipelineSchedule
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import FREE, PartitionProblem
from planner.partition.score import score


def single(problem: PartitionProblem) -> Assignment:
    """Raises Infeasible if it does not fit there, OptionsError if a node is fixed to another device."""
    largest = int(np.argmax(problem.device_memory_bytes))
    name, room = problem.labels.devices[largest], int(problem.device_memory_bytes[largest])
    reason = f"the whole program fits {name!r}, the first of the largest devices"
    assignment = contiguous(problem, (0, problem.num_nodes), (largest,), (reason,))
    scored = score(problem, assignment, Objective.MEMORY)
    stage = scored.evaluation.stages[0]
    if not math.isfinite(stage.compute_seconds):
        raise _barred(problem, largest)
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


def _barred(problem: PartitionProblem, device: int) -> OptionsError:
    node = int(np.argmax(np.isinf(problem.compute_seconds[device])))
    name, other = problem.labels.devices[device], int(problem.fixed_device[node])
    why = f"is fixed to {problem.labels.devices[other]!r}" if other != FREE else "cannot run there"
    return OptionsError(
        f"mode single: everything would go on {name!r}, the first of the largest devices, and "
        f"{describe_node(problem, node)} {why}; use another mode, or leave {name!r} out",
        device=name,
        node=problem.labels.nodes[node],
    )


def offer_single_devices(portfolio: Portfolio) -> None:
    """One of each kind, the one with the most memory; with copies, whose host matters, of each size too."""
    problem = portfolio.problem
    if portfolio.request.num_stages > 1:
        return
    kinds = distinct_rows(problem.compute_seconds).kind_of_row.tolist()
    room = problem.device_memory_bytes.tolist()
    kinds_offered = set()
    for device in sorted(range(problem.num_devices), key=lambda device: (-room[device], device)):
        alike = (kinds[device], room[device] if portfolio.has_copies else 0)
        if alike not in kinds_offered and np.isfinite(problem.compute_seconds[device]).all():
            kinds_offered.add(alike)
            portfolio.offer(contiguous(problem, (0, problem.num_nodes), (device,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    device: int
    step_seconds: float


def fastest_alone(problem: PartitionProblem) -> OneDevice | None:
    """None where no device holds the program, or can run all of it. One evaluation a device.

    With one stage nothing is better than 1F1B: each microbatch forward and back, so that one is kept.
    """
    assert problem.training is not None
    training = replace(problem.training, schedule=PipelineSchedule.ONE_F_ONE_B, activations=Activations.KEPT)
    alone = replace(problem, training=training)
    fastest: OneDevice | None = None
    for device in range(problem.num_devices):
        scored = score(alone, contiguous(alone, (0, problem.num_nodes), (device,)), Objective.STEP_TIME)
        if scored.fits and (fastest is None or scored.value < fastest.step_seconds):
            fastest = OneDevice(device=device, step_seconds=scored.value)
    return fastest
