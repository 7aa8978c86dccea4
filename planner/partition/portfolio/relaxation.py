"""The problem as an additive placement problem that never costs more: what it cannot do, nothing can.

Transfers go over each device's best link and take no latency, what the caller gives and takes moves for nothing, and a
state is held by its first user alone. Its placements are candidates, its bounds hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.communication import UNKNOWN
from planner.partition.ordered.device_classes import device_classes
from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """`devices`: the problem's device for each of the placement's."""

    placement: PlacementProblem
    devices: Integers


def relaxed(problem: PartitionProblem, bundles: Bundles, room_share: float = 1.0) -> Relaxation:
    """`room_share` of each device's memory is for states; 1 for a bound, less to leave room for what flows."""
    classes = device_classes(problem)
    own = np.array(classes.representatives, dtype=np.int64)
    values, tensor_of_read, reads = _tensors(problem)
    per_byte = np.minimum(problem.best_seconds_per_byte[UNKNOWN, own], problem.best_seconds_per_byte[own, UNKNOWN])
    return Relaxation(
        placement=PlacementProblem(
            seconds=problem.work_seconds[own],
            node_bytes=_held_bytes(problem),
            tensor_producer=problem.value_producer[values],
            read_tensor=tensor_of_read,
            read_node=problem.read_node[reads],
            transfer_seconds=np.outer(per_byte, problem.value_bytes[values].astype(np.float64)),
            is_backward=np.zeros(problem.num_nodes, dtype=np.bool_),
            colocation=bundles.bundle_of_node,
            class_devices=np.array(classes.counts(), dtype=np.int64),
            class_bytes=problem.device_memory_bytes[own].astype(np.float64) * room_share,
            class_is_parallel=np.zeros(own.size, dtype=np.bool_),
            node_names=problem.labels.nodes,
            class_names=tuple(problem.labels.devices[device] for device in own.tolist()),
        ),
        devices=np.array([device for members in classes.members for device in members], dtype=np.int64),
    )


def _tensors(problem: PartitionProblem) -> tuple[Integers, Integers, Integers]:
    """Values that a node makes and some node reads; the tensor of each read of one; which reads those are."""
    reads = np.flatnonzero(problem.value_producer[problem.read_value] >= 0)
    values, tensor_of_read = np.unique(problem.read_value[reads], return_inverse=True)
    return values, tensor_of_read, reads


def _held_bytes(problem: PartitionProblem) -> Floats:
    sizes = problem.state_bytes + problem.state_gradient_bytes + problem.state_optimizer_bytes
    states, first = np.unique(problem.use_state, return_index=True)
    bytes_of_node = np.bincount(problem.use_node[first], sizes[states].astype(np.float64), problem.num_nodes)
    return bytes_of_node.astype(np.float64)
