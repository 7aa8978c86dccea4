"""A longest path of a program's bundles, what lies between its nodes, and what it takes to send what they make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import after_of_arcs, distinct_arcs
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles


def longest_path(order: list[int], before: list[list[int]], seconds: list[float]) -> list[int]:
    ended, source = [0.0] * len(order), [-1] * len(order)
    for bundle in order:
        for producer in before[bundle]:
            if source[bundle] < 0 or ended[producer] > ended[source[bundle]]:
                source[bundle] = producer
        ended[bundle] = seconds[bundle] + (ended[source[bundle]] if source[bundle] >= 0 else 0.0)
    at = max(order, key=lambda bundle: (ended[bundle], -bundle))
    path = [at]
    while source[at] >= 0:
        at = source[at]
        path.append(at)
    return path[::-1]


def between_path_nodes(
    order: list[int], before: list[list[int]], after: list[list[int]], path: list[int]
) -> tuple[Integers, Integers]:
    """By bundle: the place on the path of the last that leads to it, and of the first that it leads to.

    -1 and the path's length where there is none.
    """
    first, last = [-1] * len(order), [len(path)] * len(order)
    place = {bundle: at for at, bundle in enumerate(path)}
    for bundle in order:
        first[bundle] = place.get(bundle, max((first[producer] for producer in before[bundle]), default=-1))
    for bundle in reversed(order):
        last[bundle] = place.get(bundle, min((last[reader] for reader in after[bundle]), default=len(path)))
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


def neighbours(problem: PartitionProblem, bundles: Bundles) -> tuple[list[list[int]], list[list[int]]]:
    """Bundles that a value ties; others only have an order."""
    makers, readers = (bundles.bundle_of_node[ends] for ends in problem.node_arcs)
    first, second = (ends.tolist() for ends in distinct_arcs(makers, readers, bundles.count))
    return after_of_arcs(second, first, bundles.count), after_of_arcs(first, second, bundles.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reads:
    """Of what one bundle makes and another reads: bytes, and seconds of them over the best link."""

    makers: Integers
    readers: Integers
    size_bytes: Floats
    seconds: Floats


def reads_of_bundles(problem: PartitionProblem, bundles: Bundles) -> Reads:
    made_by = problem.value_producer[problem.read_value]
    reads = np.flatnonzero(made_by >= 0)
    makers, readers = bundles.bundle_of_node[made_by[reads]], bundles.bundle_of_node[problem.read_node[reads]]
    apart = makers != readers
    pairs = np.unique(np.stack([problem.read_value[reads][apart], makers[apart], readers[apart]]), axis=1)
    per_byte, size_bytes = least_of_links(problem, problem.link_seconds_per_byte), problem.value_bytes[pairs[0]]
    return Reads(makers=pairs[1], readers=pairs[2], size_bytes=size_bytes, seconds=size_bytes * per_byte)


def passed_bytes(reads: Reads) -> dict[tuple[int, int], float]:
    """Of all that one bundle makes and another reads, by the two."""
    passed: dict[tuple[int, int], float] = {}
    for maker, reader, size in zip(
        reads.makers.tolist(), reads.readers.tolist(), reads.size_bytes.tolist(), strict=True
    ):
        passed[maker, reader] = passed.get((maker, reader), 0.0) + size
    return passed


def message_seconds(problem: PartitionProblem, reads: Reads, num_bundles: int) -> Floats:
    """By bundle: what it takes at least to send anything that it makes; infinite where nothing of it is read."""
    message = np.full(num_bundles, np.inf)
    np.minimum.at(message, reads.makers, least_of_links(problem, problem.link_latency_seconds) + reads.seconds)
    return message


def least_of_links(problem: PartitionProblem, links: Floats) -> float:
    """Of any link between two devices."""
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    return float(links[apart].min()) if problem.num_devices > 1 else 0.0
