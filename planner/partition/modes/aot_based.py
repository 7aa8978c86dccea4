"""Mode "aot_based": partitions and their devices as given, once all that could be wrong with them is ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.errors import Infeasible, OptionsError, few_of
from planner.graph.cycle import find_cycle
from planner.partition.arcs import after_of_arcs, distinct_arcs, least_first_order
from planner.partition.assignment import Assignment
from planner.partition.describe import describe_bytes, describe_node
from planner.partition.evaluate import evaluate
from planner.partition.problem import FREE, Integers, PartitionProblem

_SHOWN = 10


def aot_based(
    problem: PartitionProblem, partition_of_node: Sequence[int], device_of_partition: Sequence[int]
) -> Assignment:
    """Stages are the partitions in an order in which they can run. Raises OptionsError, or Infeasible for memory."""
    _check_devices(problem, device_of_partition)
    _check_cover(problem, partition_of_node, len(device_of_partition))
    part = np.asarray(partition_of_node, dtype=np.int64)
    _check_groups(problem, part)
    _check_fixed(problem, part, device_of_partition)
    _check_runnable(problem, part, device_of_partition)
    order = _order(problem, part, len(device_of_partition))
    rank = np.argsort(np.asarray(order, dtype=np.int64))
    assignment = Assignment(
        stage_of_node=tuple(rank[part].tolist()),
        device_of_stage=tuple(device_of_partition[part] for part in order),
        reasons=tuple(f"partition {part}, as given" for part in order),
    )
    _check_memory(problem, assignment, order)
    return assignment


def _check_devices(problem: PartitionProblem, device_of_partition: Sequence[int]) -> None:
    if not device_of_partition:
        raise OptionsError("mode aot_based: device_of_partition is empty; give each partition's device")
    for part, device in enumerate(device_of_partition):
        if not 0 <= device < problem.num_devices:
            raise OptionsError(
                f"mode aot_based: partition {part} is on device {device}, and the inventory has {problem.num_devices} "
                f"(0 to {problem.num_devices - 1})",
                partition=part,
                device=device,
            )


def _check_cover(problem: PartitionProblem, partition_of_node: Sequence[int], count: int) -> None:
    if len(partition_of_node) != problem.num_nodes:
        raise OptionsError(
            f"mode aot_based: partition_of_node has {len(partition_of_node)} entries, the graph {problem.num_nodes} "
            f"nodes; give one for each node, in order"
        )
    wrong = [node for node, part in enumerate(partition_of_node) if not 0 <= part < count]
    if wrong:
        raise OptionsError(
            f"mode aot_based: {len(wrong)} nodes have no partition of 0 to {count - 1}: {_named(problem, wrong)}",
            node=wrong[0],
        )
    empty = sorted(set(range(count)) - set(partition_of_node))
    if empty:
        raise OptionsError(
            f"mode aot_based: no node is in partition {', '.join(map(str, empty[:_SHOWN]))}; number the partitions "
            f"without gaps",
            partition=empty[0],
        )


def _named(problem: PartitionProblem, nodes: Sequence[int]) -> str:
    return few_of([describe_node(problem, node) for node in nodes], _SHOWN)


def _check_groups(problem: PartitionProblem, part: Integers) -> None:
    """Nodes around storage that is written in place, and modules that are asked to stay together."""
    first: dict[int, int] = {}
    for node in np.flatnonzero(problem.node_group >= 0).tolist():
        other = first.setdefault(int(problem.node_group[node]), node)
        if part[other] != part[node]:
            raise OptionsError(
                f"mode aot_based: {describe_node(problem, other)} is in partition {part[other]} and "
                f"{describe_node(problem, node)} in {part[node]}, but they have to share a stage: they use storage "
                f"that is written in place, or were asked to stay together",
                node=node,
            )


def _check_fixed(problem: PartitionProblem, part: Integers, device_of_partition: Sequence[int]) -> None:
    devices = np.asarray(device_of_partition, dtype=np.int64)[part]
    wrong = np.flatnonzero((problem.fixed_device != FREE) & (problem.fixed_device != devices))
    if wrong.size:
        node = int(wrong[0])
        raise OptionsError(
            f"mode aot_based: {describe_node(problem, node)} is fixed to device "
            f"{problem.labels.devices[problem.fixed_device[node]]!r}, and its partition {part[node]} is on "
            f"{problem.labels.devices[devices[node]]!r}",
            node=node,
        )


def _check_runnable(problem: PartitionProblem, part: Integers, device_of_partition: Sequence[int]) -> None:
    devices = np.asarray(device_of_partition, dtype=np.int64)[part]
    wrong = np.flatnonzero(np.isinf(problem.compute_seconds[devices, np.arange(problem.num_nodes)]))
    if wrong.size:
        node = int(wrong[0])
        able = np.flatnonzero(np.isfinite(problem.compute_seconds[:, node])).tolist()
        raise OptionsError(
            f"mode aot_based: {describe_node(problem, node)} is in partition {part[node]}, on "
            f"{problem.labels.devices[devices[node]]!r}, which cannot run it; "
            f"{', '.join(repr(problem.labels.devices[device]) for device in able[:_SHOWN])} can",
            node=node,
        )


def _order(problem: PartitionProblem, part: Integers, count: int) -> tuple[int, ...]:
    """Partitions so that each runs after those that it reads from; the lowest of those that can first."""
    tails, heads = problem.node_arcs
    parents, readers = (ends.tolist() for ends in distinct_arcs(part[tails], part[heads], count))
    children = after_of_arcs(parents, readers, count)
    order = tuple(least_first_order(children))
    if len(order) == count:
        return _with_last(problem, int(part[-1]), children, order)
    cycle = find_cycle(count, zip(parents, readers, strict=True))
    assert cycle is not None
    cycle = cycle[(first := cycle.index(min(cycle))) :] + cycle[:first]
    steps = []
    for parent, child in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        at = int(np.flatnonzero((part[tails] == parent) & (part[heads] == child))[0])
        steps.append(f"{describe_node(problem, int(heads[at]))} of partition {child} reads from partition {parent}")
    raise OptionsError(
        f"mode aot_based: partitions {', '.join(map(str, cycle))} wait for each other: {'; '.join(steps)}. Join them "
        f"or cut elsewhere",
        partitions=", ".join(map(str, cycle)),
    )


def _with_last(
    problem: PartitionProblem, last: int, children: Sequence[Sequence[int]], order: tuple[int, ...]
) -> tuple[int, ...]:
    """The last node's partition runs last where that node is bound to: it returns what is kept with it."""
    if problem.node_group[-1] < 0:
        return order
    if children[last]:
        raise OptionsError(
            f"mode aot_based: partition {last} holds {describe_node(problem, problem.num_nodes - 1)}, which ends the "
            f"program and returns states, and partition {children[last][0]} reads from it; join the two",
            partition=last,
        )
    return (*(part for part in order if part != last), last)


def _check_memory(problem: PartitionProblem, assignment: Assignment, order: Sequence[int]) -> None:
    evaluation = evaluate(problem, assignment)
    for device, peak in enumerate(evaluation.device_peak_bytes):
        room = int(problem.device_memory_bytes[device])
        if peak <= room:
            continue
        here = [stage for stage, at in enumerate(assignment.device_of_stage) if at == device]
        parts = ", ".join(f"{order[stage]} ({evaluation.stages[stage].peak_bytes} bytes)" for stage in here)
        worst = max(here, key=lambda stage: (evaluation.stages[stage].peak_bytes, -stage))
        raise Infeasible(
            f"mode aot_based: device {problem.labels.devices[device]!r} has {describe_bytes(room)}, its partitions "
            f"{parts} need {describe_bytes(peak)}: {describe_bytes(peak - room)} are lacking; move stage {worst}, "
            f"partition {order[worst]}, or some of its nodes elsewhere",
            stage=worst,
            device=problem.labels.devices[device],
            needed_bytes=peak,
            lacking_bytes=peak - room,
        )
