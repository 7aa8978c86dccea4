"""Copies of every stage on idle devices, as long as these suffice for all of them: torch.fx's host saturation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.evaluate import evaluate
from planner.partition.problem import FREE, PartitionProblem


def saturate_host(problem: PartitionProblem, assignment: Assignment) -> Assignment:
    """Each used device in list order gets the smallest idle one that holds its stages; all of them, or none, per round.

    Nothing changes where nodes are fixed to devices: a copy would run them elsewhere. A round in which copies, which
    hold messages from more neighbours, do not fit their devices gives nothing either.
    """
    if (problem.fixed_device != FREE).any():
        return assignment
    peaks = evaluate(problem, assignment).device_peak_bytes
    used = {device for devices in assignment.devices_of_stage for device in devices}
    needed = [peak if device in used else -1 for device, peak in enumerate(peaks)]
    able = _able(problem, assignment) if problem.some_are_barred else None
    copies = replicas_of_devices(problem.device_memory_bytes.tolist(), needed, able)
    for num_rounds in range(max(map(len, copies)), 0, -1):
        replicas = tuple(
            (*devices[1:], *(copy for device in devices for copy in copies[device][:num_rounds]))
            for devices in assignment.devices_of_stage
        )
        saturated = replace(assignment, replicas=replicas)
        if problem.training is not None or evaluate(problem, saturated).fits(problem):
            return saturated
    return assignment


def _able(problem: PartitionProblem, assignment: Assignment) -> list[list[bool]]:
    """[device, other]: whether the other can run every node that the device holds."""
    stages = np.asarray(assignment.stage_of_node)
    barred = np.isinf(problem.compute_seconds)
    able = np.ones((problem.num_devices, problem.num_devices), dtype=np.bool_)
    for stage, devices in enumerate(assignment.devices_of_stage):
        runs = stages == stage
        if assignment.recomputed:
            runs[list(assignment.recomputed[stage])] = True
        can = ~barred[:, runs].any(axis=1)
        able[list(devices)] &= can
    return able.tolist()


def replicas_of_devices(
    capacities: Sequence[int], needed_bytes: Sequence[int], able: Sequence[Sequence[bool]] | None = None
) -> tuple[tuple[int, ...], ...]:
    """By device: the idle devices that run copies of all it holds. `needed_bytes` is -1 for an idle device.

    `able` [used, idle]: whether the idle one can run all that the used one holds; None where all can.

    While idle devices suffice, each used device in list order gets the smallest idle one that holds what it holds; a
    round in which one of them gets none gives nothing.
    """
    copies: list[list[int]] = [[] for _ in capacities]
    used = [device for device, needed in enumerate(needed_bytes) if needed >= 0]
    idle = [device for device, needed in enumerate(needed_bytes) if needed < 0]
    while used and len(idle) >= len(used):
        left, copied = list(idle), list[tuple[int, int]]()
        for device in used:
            fitting = [
                other
                for other in left
                if capacities[other] >= needed_bytes[device] and (able is None or able[device][other])
            ]
            if not fitting:
                return tuple(map(tuple, copies))
            copy = min(fitting, key=capacities.__getitem__)
            left.remove(copy)
            copied.append((device, copy))
        for device, copy in copied:
            copies[device].append(copy)
        idle = left
    return tuple(map(tuple, copies))
