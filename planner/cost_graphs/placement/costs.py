"""What a placement costs, from the problem alone: each device's load and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.problem import Floats, Integers


def device_loads(problem: PlacementProblem, device_of_node: Sequence[int] | Integers) -> Floats:
    """[devices] seconds: compute, and each tensor that leaves or enters once. Forward and backward add up."""
    devices = np.asarray(device_of_node, dtype=np.int64)
    classes = problem.class_of_device[devices]
    loads = np.zeros(problem.num_devices)
    np.add.at(loads, devices, problem.seconds[classes, np.arange(devices.size)])
    source = devices[problem.tensor_producer[problem.read_tensor]]
    target = devices[problem.read_node]
    apart = source != target
    cut_tensors = np.unique(problem.read_tensor[apart])
    makers = devices[problem.tensor_producer[cut_tensors]]
    np.add.at(loads, makers, problem.transfer_seconds[problem.class_of_device[makers], cut_tensors])
    receipts = np.unique(problem.read_tensor[apart] * problem.num_devices + target[apart])
    tensors, takers = receipts // problem.num_devices, receipts % problem.num_devices
    np.add.at(loads, takers, problem.transfer_seconds[problem.class_of_device[takers], tensors])
    return loads


def device_bytes(problem: PlacementProblem, device_of_node: Sequence[int] | Integers) -> Floats:
    """[devices] bytes that each holds."""
    devices = np.asarray(device_of_node, dtype=np.int64)
    used = np.zeros(problem.num_devices)
    np.add.at(used, devices, problem.node_bytes)
    return used
