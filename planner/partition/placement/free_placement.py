"""Devices for what the stages leave out: items that may go anywhere, moved one by one while the loads get better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.placement.loads import device_bytes, device_loads
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Integers

_MAX_PASSES = 8
# Trials of one item on one device, each a whole evaluation.
_MAX_TRIALS = 20_000

Cost = tuple[float, tuple[float, ...]]


def place_free_items(
    problem: PlacementProblem, device_of_node: Integers, nodes_of_item: Sequence[Integers]
) -> Integers:
    """`device_of_node` is -1 for the free items' nodes. Greedy, then local search: no guarantee, not even to fit."""
    devices = device_of_node.copy()
    homes = [_allowed(problem, nodes) for nodes in nodes_of_item]
    for nodes, allowed in zip(nodes_of_item, homes, strict=True):
        devices[nodes] = _nearest(problem, devices, nodes, allowed)
    best, trials = _cost(problem, devices), 0
    for _ in range(_MAX_PASSES):
        before = best
        for nodes, allowed in zip(nodes_of_item, homes, strict=True):
            for device in allowed:
                if device == devices[nodes[0]]:
                    continue
                if (trials := trials + 1) > _MAX_TRIALS:
                    return devices
                old = devices[nodes[0]]
                devices[nodes] = device
                cost = _cost(problem, devices)
                if cost < best:
                    best = cost
                else:
                    devices[nodes] = old
        if best == before:
            break
    return devices


def _cost(problem: PlacementProblem, devices: Integers) -> Cost:
    excess = device_bytes(problem, devices) - problem.class_bytes[problem.class_of_device]
    loads = device_loads(problem, devices)
    return float(np.maximum(excess, 0.0).sum()), tuple(np.sort(loads)[::-1].tolist())


def _allowed(problem: PlacementProblem, nodes: Integers) -> list[int]:
    runs = np.isfinite(problem.seconds[:, nodes].sum(axis=1))
    return np.flatnonzero(runs[problem.class_of_device]).tolist()


def _nearest(problem: PlacementProblem, devices: Integers, nodes: Integers, allowed: Sequence[int]) -> int:
    """The device that the most seconds of its tensors come from or go to, among those already placed."""
    made = np.isin(problem.tensor_producer[problem.read_tensor], nodes)
    read = np.isin(problem.read_node, nodes)
    others = np.concatenate([problem.read_node[made], problem.tensor_producer[problem.read_tensor[read]]])
    seconds = problem.transfer_seconds.max(axis=0)
    weights = seconds[np.concatenate([problem.read_tensor[made], problem.read_tensor[read]])]
    placed = devices[others] >= 0
    pull = np.bincount(devices[others[placed]], weights[placed], problem.num_devices)
    return allowed[int(np.argmax(pull[allowed]))]
