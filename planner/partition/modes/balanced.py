"""Mode "balanced": the least bottleneck over segments of the program order, and the devices that reach it."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.describe import describe_bytes, describe_node, describe_seconds
from planner.partition.infeasible import memory_shortage
from planner.partition.ordered.least_bottleneck import OrderedPlan, least_bottleneck
from planner.partition.ordered.positions import allowed_positions, crossing_bytes
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.problem import PartitionProblem


def balanced(problem: PartitionProblem, num_stages: int = 0) -> Assignment:
    """`num_stages` 0: as many as help. Raises OptionsError or Infeasible where there is no such plan."""
    check_num_stages(problem, num_stages, "balanced")
    layout = least_bottleneck(problem, num_stages)
    if layout is None:
        raise memory_shortage(problem, "balanced", num_stages)
    if not num_stages:
        layout = _fewest_stages(problem, layout)
    bound = min(layout.lower_bound_seconds, layout.bottleneck_seconds)
    return contiguous(problem, layout.boundaries, layout.devices, _reasons(problem, layout), bound)


def check_num_stages(problem: PartitionProblem, num_stages: int, mode: str) -> None:
    possible = allowed_positions(problem).size - 1
    if num_stages < 0 or num_stages > possible:
        raise OptionsError(
            f"mode {mode}: {num_stages} stages asked for, and the program's {problem.num_nodes} nodes can be cut "
            f"into 1 to {possible}",
            num_stages=num_stages,
        )
    if num_stages > problem.num_devices:
        raise Infeasible(
            f"mode {mode}: {num_stages} stages asked for, one device each, and the inventory has "
            f"{problem.num_devices}: ask for at most {problem.num_devices} or add "
            f"{num_stages - problem.num_devices} more",
            stages=num_stages,
            devices=problem.num_devices,
        )


def _fewest_stages(problem: PartitionProblem, layout: OrderedPlan) -> OrderedPlan:
    """Joins neighbouring stages while that costs nothing: an idle device is better left out."""
    improved = True
    while improved:
        improved = False
        for at in range(1, len(layout.devices)):
            joined = (_without_cut(problem, layout, at, keep) for keep in (at - 1, at))
            shorter = next(filter(None, joined), None)
            if shorter is not None:
                layout, improved = shorter, True
                break
    return layout


def _without_cut(problem: PartitionProblem, layout: OrderedPlan, at: int, keep: int) -> OrderedPlan | None:
    """Without its cut `at`, the joined stage on the device of stage `keep`; None if that costs or does not fit."""
    boundaries = (*layout.boundaries[:at], *layout.boundaries[at + 1 :])
    devices = (*layout.devices[: at - 1], layout.devices[keep], *layout.devices[at + 1 :])
    ends = np.array([layout.boundaries[at - 1], layout.boundaries[at + 1]])
    work = float(problem.segment_seconds(np.array(layout.devices[keep]), ends[0], ends[1]))
    if work > layout.bottleneck_seconds * (1 + 1e-9):
        return None
    evaluation = evaluate_layout(problem, boundaries, devices)
    fits = (np.array(evaluation.device_peak_bytes) <= problem.device_memory_bytes).all()
    if not fits or evaluation.bottleneck_seconds > layout.bottleneck_seconds:
        return None
    return OrderedPlan(
        boundaries=boundaries,
        devices=devices,
        bottleneck_seconds=evaluation.bottleneck_seconds,
        lower_bound_seconds=layout.lower_bound_seconds,
    )


def _reasons(problem: PartitionProblem, layout: OrderedPlan) -> list[str]:
    evaluation = evaluate_layout(problem, layout.boundaries, layout.devices)
    crossing = crossing_bytes(problem)
    reasons = []
    for stage, end in zip(evaluation.stages, layout.boundaries[1:], strict=True):
        share = stage.load_seconds / evaluation.bottleneck_seconds if evaluation.bottleneck_seconds else 1.0
        load = f"{describe_seconds(stage.load_seconds)} of work, {share:.0%} of the bottleneck"
        if end == problem.num_nodes:
            reasons.append(f"the program ends; {load}")
        else:
            last = describe_node(problem, end - 1)
            reasons.append(f"after {last}: {load}, with {describe_bytes(int(crossing[end]))} live across the cut")
    return reasons
