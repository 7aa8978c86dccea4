"""What a placement takes for a single pass, from the problem alone.

A pass is that of Tarnawski et al. (NeurIPS 2020, section on latency): nodes on parallel classes run alone; an
accelerator loads the inputs of a block, computes all of it and stores its outputs. Nodes that a path reaches by leaving
the device and coming back form later blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem, node_order, producers_of_nodes
from planner.partition.arcs import after_of_arcs, least_first_order
from planner.partition.problem import Floats, Integers


def single_pass_seconds(problem: PlacementProblem, device_of_node: Sequence[int] | Integers) -> float | None:
    """Until the last node has finished; None if blocks wait for each other. O((nodes + reads) log reads).

    A block starts when all outside producers have finished and the device's earlier blocks too; it lasts for the
    transfers in, all its nodes and the transfers out.
    """
    devices = np.asarray(device_of_node, dtype=np.int64)
    block_of_node = _blocks(problem, devices)
    lasting = _block_seconds(problem, devices, block_of_node)
    waits = np.stack([block_of_node[problem.tensor_producer[problem.read_tensor]], block_of_node[problem.read_node]])
    waits = waits[:, waits[0] != waits[1]]
    return _longest(lasting, np.concatenate([waits, _turns(problem, devices, block_of_node)], axis=1))


def _blocks(problem: PlacementProblem, devices: Integers) -> Integers:
    """[n] a number for each node on a parallel class, and for each (accelerator, level); a device's in level order."""
    parallel = problem.class_is_parallel[problem.class_of_device[devices]]
    levels = _levels(problem, devices, parallel)
    alone = np.where(parallel, np.arange(devices.size), 0)
    keys = np.stack([devices, levels, alone], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def _levels(problem: PlacementProblem, devices: Integers, parallel: np.ndarray) -> Integers:
    """[n] for a node on an accelerator: 1 and how often some path to it has left that device and come back."""
    level_of_node = np.zeros(devices.size, dtype=np.int64)
    producers = producers_of_nodes(problem)
    order = node_order(problem)
    for device in np.unique(devices[~parallel]).tolist():
        level = [0] * devices.size
        for node in order:
            own = devices[node] == device
            highest = 1 if own else 0
            for producer in producers[node]:
                highest = max(highest, level[producer] + (1 if own and devices[producer] != device else 0))
            level[node] = highest
            if own:
                level_of_node[node] = highest
    return level_of_node


def _block_seconds(problem: PlacementProblem, devices: Integers, block_of_node: Integers) -> Floats:
    """[blocks]."""
    classes = problem.class_of_device[devices]
    lasting = np.zeros(int(block_of_node.max()) + 1)
    np.add.at(lasting, block_of_node, problem.seconds[classes, np.arange(devices.size)])
    transfer = np.where(problem.class_is_parallel[:, None], 0.0, problem.transfer_seconds)
    source = block_of_node[problem.tensor_producer[problem.read_tensor]]
    target = block_of_node[problem.read_node]
    apart = source != target
    cut_tensors = np.unique(problem.read_tensor[apart])
    makers = problem.tensor_producer[cut_tensors]
    np.add.at(lasting, block_of_node[makers], transfer[classes[makers], cut_tensors])
    receipts, first = np.unique(np.stack([problem.read_tensor[apart], target[apart]]), axis=1, return_index=True)
    takers = problem.read_node[apart][first]
    np.add.at(lasting, receipts[1], transfer[classes[takers], receipts[0]])
    return lasting


def _turns(problem: PlacementProblem, devices: Integers, block_of_node: Integers) -> Integers:
    """[2, turns] each accelerator's blocks, one after the other."""
    serial = ~problem.class_is_parallel[problem.class_of_device[devices]]
    pairs = np.unique(np.stack([devices[serial], block_of_node[serial]]), axis=1)
    same = pairs[0, 1:] == pairs[0, :-1]
    return np.stack([pairs[1, :-1][same], pairs[1, 1:][same]])


def _longest(lasting: Floats, waits: Integers) -> float | None:
    """The longest path in seconds; None if there is a cycle."""
    pairs = np.unique(waits, axis=1)
    after = after_of_arcs(pairs[0].tolist(), pairs[1].tolist(), lasting.size)
    order = least_first_order(after)
    start, finish = [0.0] * lasting.size, 0.0
    for block in order:
        end = start[block] + float(lasting[block])
        finish = max(finish, end)
        for later in after[block]:
            start[later] = max(start[later], end)
    return finish if len(order) == lasting.size else None
