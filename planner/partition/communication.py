"""Seconds that each stage spends on transfers, as Tarnawski et al. model them (NeurIPS 2020, "Efficient Algorithms for
Device Placement of DNN Graph Operators").

A device pays once for each distinct tensor that leaves its stage, whatever the fan-out: copies to different devices
travel over different links at the same time, so the slowest of these links counts. It pays once for each distinct
tensor that enters. Each direction pays one latency, the largest of the links used. Nothing is paid within a device.
With equal links a segment's load therefore follows from its own two ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.traffic import Crossings

# A device that is not chosen yet: transfers with it are paid over the other end's best link, which none undercuts.
UNKNOWN = -1


def communication_seconds(
    problem: PartitionProblem, crossings: Crossings, device_of_stage: Sequence[int] | Integers
) -> Floats:
    """[stages]. With UNKNOWN devices, which are never those of another stage: a lower bound for the known ones."""
    devices = np.asarray(device_of_stage, dtype=np.int64)
    source, target = devices[crossings.sources], devices[crossings.targets]
    apart = (source != target) | (source == UNKNOWN)
    source, target = source[apart], target[apart]
    values, sources, targets = crossings.values[apart], crossings.sources[apart], crossings.targets[apart]
    latency = problem.best_latency_seconds[source, target]
    spent = problem.value_bytes[values] * problem.best_seconds_per_byte[source, target]
    into, out = np.zeros(devices.size), np.zeros(devices.size)
    np.maximum.at(into, targets, latency)
    np.maximum.at(out, sources, latency)
    np.add.at(into, targets, spent)
    slowest, senders = _slowest_copies(values, sources, spent, devices.size)
    np.add.at(out, senders, slowest)
    return into + out


def _slowest_copies(values: Integers, sources: Integers, spent: Floats, num_stages: int) -> tuple[Floats, Integers]:
    """(seconds, sending stage) of each distinct value that a stage sends."""
    sends, first = np.unique(values * num_stages + sources, return_inverse=True)
    slowest = np.zeros(sends.size)
    np.maximum.at(slowest, first, spent)
    return slowest, sends % num_stages
