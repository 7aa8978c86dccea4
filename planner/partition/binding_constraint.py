"""Why nothing at all can fit, where that is plain: what is fixed, what stays together, or all of it is too much."""

from __future__ import annotations

import numpy as np

from planner.partition.bounds.work import node_state_bytes
from planner.partition.describe import describe_bytes, describe_node
from planner.partition.problem import FREE, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of


def binding_constraint(problem: PartitionProblem) -> str:
    """A sentence to append, or nothing: whatever the cuts, the first of these that holds keeps every plan away."""
    return _fixed(problem) or _large_node(problem) or _large_bundle(problem, bundles_of(problem)) or _all(problem)


def _held_bytes(problem: PartitionProblem) -> Integers:
    return problem.state_bytes + problem.state_gradient_bytes + problem.state_optimizer_bytes


def _distinct_bytes(problem: PartitionProblem, nodes: Integers) -> int:
    """Of the states that the nodes use."""
    states = np.unique(problem.use_state[np.isin(problem.use_node, nodes)])
    return int(_held_bytes(problem)[states].sum())


def _fixed(problem: PartitionProblem) -> str:
    for device in np.unique(problem.fixed_device[problem.fixed_device != FREE]).tolist():
        nodes = np.flatnonzero(problem.fixed_device == device)
        needed, room = _distinct_bytes(problem, nodes), int(problem.device_memory_bytes[device])
        if needed > room:
            largest = nodes[int(np.argmax(node_state_bytes(problem)[nodes]))]
            return (
                f". What is fixed to device {problem.labels.devices[device]!r} ({nodes.size} nodes, "
                f"{describe_node(problem, int(largest))} the largest) reads {describe_bytes(needed)} of state, and the "
                f"device has {describe_bytes(room)}: fix {describe_bytes(needed - room)} less of it there"
            )
    return ""


def _large_node(problem: PartitionProblem) -> str:
    used = node_state_bytes(problem)
    node, room = int(np.argmax(used)), int(problem.device_memory_bytes.max())
    if int(used[node]) <= room:
        return ""
    return (
        f". {describe_node(problem, node)} alone reads {describe_bytes(int(used[node]))} of state, more than any has: "
        f"the largest device lacks {describe_bytes(int(used[node]) - room)}"
    )


def _large_bundle(problem: PartitionProblem, bundles: Bundles) -> str:
    """States that several nodes of a bundle share count once."""
    size = max(1, problem.state_bytes.size)
    pairs = np.unique(bundles.bundle_of_node[problem.use_node] * size + problem.use_state)
    needed = np.bincount(pairs // size, _held_bytes(problem)[pairs % size], bundles.count)
    bundle, room = int(np.argmax(needed)), int(problem.device_memory_bytes.max())
    if needed[bundle] <= room:
        return ""
    members = bundles.members[bundle]
    return (
        f". {describe_node(problem, members[0])} to {describe_node(problem, members[-1])} have to stay together "
        f"({len(members)} nodes) and read {describe_bytes(int(needed[bundle]))} of state, more than any has: the "
        f"largest device lacks {describe_bytes(int(needed[bundle]) - room)}"
    )


def _all(problem: PartitionProblem) -> str:
    needed = _distinct_bytes(problem, np.arange(problem.num_nodes))
    room = int(problem.device_memory_bytes.sum())
    if needed <= room:
        return ""
    return (
        f". All states together are {describe_bytes(needed)}, and all devices have {describe_bytes(room)}: add at "
        f"least {describe_bytes(needed - room)}"
    )
