"""The problem as torch.fx's modes count it: bundles of nodes as operations, their bytes without storage or liveness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.operations.first_fit import PlacedGroups
from planner.partition.operations.grouping import running_order
from planner.partition.operations.operation_graph import OperationGraph
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BundleOperations:
    """`graph`: first the program's inputs, which are given, then bundles in an order in which they can run.

    `seconds` by node of the graph, on the device that is quickest; transfers over the mean link. `operation_of_bundle`
    indexes the graph.
    """

    graph: OperationGraph
    seconds: tuple[float, ...]
    bytes_per_second: float
    operation_of_bundle: Integers

    def devices_of_nodes(self, bundles: Bundles, groups: PlacedGroups) -> Integers:
        devices = np.zeros(len(self.seconds), dtype=np.int64)
        for group, at in zip(groups.groups, groups.devices, strict=True):
            devices[list(group)] = at[0]
        return devices[self.operation_of_bundle][bundles.bundle_of_node]

    def placed(self, bundles: Bundles, stage_of_node: Integers, device_of_stage: Integers) -> PlacedGroups:
        members: list[list[int]] = [[] for _ in device_of_stage]
        for bundle, nodes in enumerate(bundles.members):
            members[int(stage_of_node[nodes[0]])].append(int(self.operation_of_bundle[bundle]))
        groups = tuple(frozenset(self.graph.with_givens(group)) for group in members)
        return PlacedGroups(groups=groups, devices=tuple((int(device),) for device in device_of_stage))


def bundle_operations(problem: PartitionProblem, bundles: Bundles) -> BundleOperations:
    """Linear but for sorting."""
    order = np.array(running_order(bundles.after), dtype=np.int64)
    inputs = np.flatnonzero(problem.value_producer < 0)
    operation_of_bundle = np.empty(bundles.count, dtype=np.int64)
    operation_of_bundle[order] = inputs.size + np.arange(bundles.count)
    owner = operation_of_bundle[bundles.bundle_of_node]
    size = inputs.size + bundles.count
    source = np.empty(problem.num_values, dtype=np.int64)
    source[inputs] = np.arange(inputs.size)
    made = problem.value_producer >= 0
    source[made] = owner[problem.value_producer[made]]
    out = _sums(source, problem.value_bytes, size)
    pairs = np.unique(owner[problem.use_node] * max(1, problem.state_bytes.size) + problem.use_state)
    states = _sums(
        pairs // max(1, problem.state_bytes.size), problem.state_bytes[pairs % max(1, problem.state_bytes.size)], size
    )
    seconds = np.zeros(size)
    np.add.at(seconds, owner, problem.work_seconds.min(axis=0))
    return BundleOperations(
        graph=OperationGraph(
            out_bytes=tuple(out.tolist()),
            total_bytes=tuple((out + states).tolist()),
            inputs=_inputs(source[problem.read_value], owner[problem.read_node], size),
            is_operation=(False,) * inputs.size + (True,) * bundles.count,
        ),
        seconds=tuple(seconds.tolist()),
        bytes_per_second=_bytes_per_second(problem),
        operation_of_bundle=operation_of_bundle,
    )


def _sums(index: Integers, sizes: Integers, count: int) -> Integers:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, index, sizes)
    return total


def _inputs(sources: Integers, readers: Integers, size: int) -> tuple[tuple[int, ...], ...]:
    pairs = np.unique(readers * size + sources)
    read: list[list[int]] = [[] for _ in range(size)]
    for pair in pairs.tolist():
        if pair // size != pair % size:
            read[pair // size].append(pair % size)
    return tuple(map(tuple, read))


def _bytes_per_second(problem: PartitionProblem) -> float:
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    mean = float(problem.link_seconds_per_byte[apart].mean()) if apart.any() else 0.0
    return 1 / mean if mean else float("inf")
