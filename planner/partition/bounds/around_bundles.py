"""What whoever runs a bundle does for it: sets of bundles, what each counts and what crosses their borders, as cuts.

A value that crosses is received once and sent once, whatever number reads it. So the least that any set with a bundle
counts is a least cut (project selection: Picard 1976).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner.partition.least_cut import Network
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

SCALE = 1 << 40
SINK = -1

# What it counts that what a bundle makes is read by others, at either end, by (maker, readers).
Messages = dict[tuple[int, tuple[int, ...]], float]


def read_elsewhere(problem: PartitionProblem, bundles: Bundles) -> tuple[Integers, Integers]:
    """(values, bundles that read them), each pair once, of values that another bundle makes."""
    made = problem.value_producer[problem.read_value] >= 0
    values, readers = problem.read_value[made], bundles.bundle_of_node[problem.read_node[made]]
    apart = bundles.bundle_of_node[problem.value_producer[values]] != readers
    pairs = np.unique(values[apart] * bundles.count + readers[apart])
    return pairs // bundles.count, pairs % bundles.count


def messages_of(
    problem: PartitionProblem, bundles: Bundles, values: Integers, readers: Integers, count_of_value: Floats
) -> Messages:
    makers = bundles.bundle_of_node[problem.value_producer[values]]
    reading: dict[int, list[int]] = defaultdict(list)
    for value, reader in zip(values.tolist(), readers.tolist(), strict=True):
        reading[value].append(reader)
    messages: Messages = defaultdict(float)
    for value, maker in zip(values.tolist(), makers.tolist(), strict=True):
        if others := reading.pop(value, None):
            messages[maker, tuple(others)] += float(count_of_value[value])
    return messages


def network_of(own: Floats, messages: Messages, most: float) -> Network:
    """In shares of `most`; `own` is what each bundle counts. On the source's side stands the set. For a message with
    several readers, one node stands there if it is received by any of them, one if it is sent to none."""
    network, count = Network(), own.size

    def units(counted: float) -> int:
        """Rounded down. No cut that matters holds more than `most`."""
        return int(min(counted / most, 1.0) * SCALE)

    for bundle, counted in enumerate(own.tolist()):
        network.add(bundle, SINK, units(counted))
    for index, ((maker, readers), counted) in enumerate(messages.items()):
        room = units(counted)
        if len(readers) == 1:
            network.add(readers[0], maker, room)
            network.add(maker, readers[0], room)
            continue
        received, kept = count + 2 * index, count + 2 * index + 1
        network.add(received, maker, room)
        network.add(maker, kept, room)
        for reader in readers:
            network.add(reader, received, SCALE)
            network.add(kept, reader, SCALE)
    return network
