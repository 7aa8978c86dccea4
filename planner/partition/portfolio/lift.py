"""From which device holds what to stages in an order in which they can run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.topological_order import least_first_order, topological_order


def one_stage_each(problem: PartitionProblem, bundles: Bundles, device_of_node: Integers) -> Assignment | None:
    """A stage for each device's nodes; None if such stages would wait for each other."""
    device_of_bundle = [int(device_of_node[members[0]]) for members in bundles.members]
    return _assignment(problem, bundles, device_of_bundle, device_of_bundle)


def stages_by_level(problem: PartitionProblem, bundles: Bundles, device_of_node: Integers) -> Assignment:
    """As few stages on each device as a pass early and a pass late find, so that edges go to higher stages only."""
    device = [int(device_of_node[members[0]]) for members in bundles.members]
    order = topological_order(bundles.before, bundles.after)
    level = [0] * bundles.count
    for bundle in order:
        steps = [level[producer] + (device[producer] != device[bundle]) for producer in bundles.before[bundle]]
        level[bundle] = max(steps, default=0)
    top = max(level)
    levels_of_device = [set[int]() for _ in range(problem.num_devices)]
    for bundle in reversed(order):
        steps = [level[reader] - (device[reader] != device[bundle]) for reader in bundles.after[bundle]]
        latest, own = min(steps, default=top), levels_of_device[device[bundle]]
        # As late as a stage that is there already; else where it first could run.
        level[bundle] = max(
            (at for at in own if level[bundle] <= at <= latest), default=latest if steps else level[bundle]
        )
        own.add(level[bundle])
    keys = [(level[bundle], device[bundle]) for bundle in range(bundles.count)]
    assignment = _assignment(problem, bundles, keys, device)
    assert assignment is not None
    return assignment


def _assignment(
    problem: PartitionProblem, bundles: Bundles, keys: Sequence[Hashable], device_of_bundle: Sequence[int]
) -> Assignment | None:
    """Bundles of one key are a stage."""
    names: dict[Hashable, int] = {}
    part = np.array([names.setdefault(key, len(names)) for key in keys], dtype=np.int64)
    after: list[set[int]] = [set() for _ in names]
    for bundle, readers in enumerate(bundles.after):
        after[part[bundle]].update(int(part[reader]) for reader in readers)
    for own, readers_of in enumerate(after):
        readers_of.discard(own)
    part_of_node = part[bundles.bundle_of_node]
    rank = _stage_order(after, _last(problem, part_of_node, after))
    if rank is None:
        return None
    device_of_stage = [0] * len(names)
    for bundle, device in enumerate(device_of_bundle):
        device_of_stage[rank[part[bundle]]] = device
    return bundles.assignment(np.array(rank, dtype=np.int64)[part], device_of_stage)


def _last(problem: PartitionProblem, part_of_node: Integers, after: Sequence[set[int]]) -> int:
    """The part without readers that makes the most of what the graph returns; that of the last node if it is bound."""
    own = int(part_of_node[-1])
    if problem.node_group[-1] >= 0 and not after[own]:
        return own
    returned = np.flatnonzero(problem.value_returned & (problem.value_producer >= 0))
    sizes = np.bincount(
        part_of_node[problem.value_producer[returned]], problem.value_bytes[returned].astype(np.float64), len(after)
    )
    ends = [part for part, readers in enumerate(after) if not readers]
    return max(ends, key=lambda part: (sizes[part], part == own, part), default=own)


def _stage_order(after: Sequence[set[int]], last: int) -> list[int] | None:
    """[parts] each one's place; None if they form a cycle."""
    order = least_first_order(after, lambda part: part == last)
    return np.argsort(order).tolist() if len(order) == len(after) else None
