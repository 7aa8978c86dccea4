"""The question: which device takes which node, where load and memory add up and devices come in classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.errors import GraphError, InventoryError
from planner.partition.arcs import topological_order
from planner.partition.problem import Booleans, Floats, Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """Arrays by device class [k], node [n], tensor [t] and read [r].

    - `seconds` [k, n]: a node's time on a device of each class; inf where it cannot run there. `node_bytes` [n].
    - `tensor_producer` [t]; `read_tensor`, `read_node` [r]: distinct (tensor, reading node) pairs. The arcs of the DAG.
    - `transfer_seconds` [k, t]: paid by the producer's device if any other device reads the tensor, once whatever the
      fan-out; and by each other device that reads it, once. 0 for a class whose memory everything passes through.
    - `is_backward` [n]: of a training step's backward pass; contiguity is asked of forward nodes only.
    - `colocation` [n]: nodes with one number share a device; numbers run from 0 without gaps.
    - `class_devices` [k]: devices of the class. `class_bytes` [k]: what each may hold; inf for no limit.
    - `class_is_parallel` [k]: in a single pass, its nodes run as soon as their inputs are there, any number at once.

    Devices are numbered class by class, class 0's first.
    """

    seconds: Floats
    node_bytes: Floats
    tensor_producer: Integers
    read_tensor: Integers
    read_node: Integers
    transfer_seconds: Floats
    is_backward: Booleans
    colocation: Integers
    class_devices: Integers
    class_bytes: Floats
    class_is_parallel: Booleans
    node_names: tuple[str, ...]
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.num_nodes == 0:
            raise GraphError("the graph has no nodes; there is nothing to place")
        if self.num_devices == 0:
            raise InventoryError("there are no devices; give at least one")
        _check_seconds("seconds", self.seconds, self, infinite=True)
        _check_seconds("transfer seconds", self.transfer_seconds, self, infinite=False)
        bad = np.flatnonzero(~(np.isfinite(self.node_bytes) & (self.node_bytes >= 0)))
        if bad.size:
            node = int(bad[0])
            size = self.node_bytes[node]
            raise GraphError(f"node {self.node_names[node]!r} holds {size} bytes, needs a finite number from 0")

    @property
    def num_nodes(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def num_tensors(self) -> int:
        return int(self.tensor_producer.size)

    @property
    def num_classes(self) -> int:
        return int(self.class_devices.size)

    @property
    def num_devices(self) -> int:
        return int(self.class_devices.sum())

    @cached_property
    def class_of_device(self) -> Integers:
        return np.repeat(np.arange(self.num_classes), self.class_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`device_of_node` [n]. `value_seconds` is the objective's; nothing feasible is below `lower_bound_seconds`."""

    device_of_node: tuple[int, ...]
    value_seconds: float
    lower_bound_seconds: float

    @property
    def gap(self) -> float:
        """How far above the bound, as a share of the value; 0 when proven optimal."""
        return max(0.0, 1.0 - self.lower_bound_seconds / self.value_seconds) if self.value_seconds else 0.0


def _check_seconds(name: str, values: Floats, problem: PlacementProblem, *, infinite: bool) -> None:
    wrong = np.isnan(values) | (values < 0) | (np.isinf(values) & (not infinite))
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        node = column if values is problem.seconds else int(problem.tensor_producer[column])
        raise GraphError(
            f"node {problem.node_names[node]!r} on a device of class {problem.class_names[row]!r}: {name} "
            f"{values[row, column]}, needs a number from 0"
        )


def producers_of_nodes(problem: PlacementProblem) -> list[list[int]]:
    """[n] the distinct nodes whose tensors each reads, ascending."""
    producers: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    made_by = problem.tensor_producer.tolist()
    for tensor, node in zip(problem.read_tensor.tolist(), problem.read_node.tolist(), strict=True):
        producers[node].add(made_by[tensor])
    return [sorted(nodes) for nodes in producers]


def node_order(problem: PlacementProblem) -> list[int]:
    """Producers before readers, otherwise by number as they become ready. Raises GraphError where there is a cycle."""
    producers = producers_of_nodes(problem)
    readers: list[list[int]] = [[] for _ in producers]
    for node, read in enumerate(producers):
        for producer in read:
            readers[producer].append(node)
    order = topological_order(producers, readers)
    if len(order) < len(producers):
        stuck = min(set(range(len(producers))).difference(order))
        raise GraphError(f"node {problem.node_names[stuck]!r} waits for itself; nodes that form a cycle cannot run")
    return order
