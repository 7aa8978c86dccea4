"""Stages anywhere: bundles with a device each become stages in an order in which they can run.

A device may run several stages, as few as the order of its bundles and those of others between them asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.partition.arcs import least_first_order, topological_order
from planner.partition.assignment import Assignment
from planner.partition.bounds.work import first_users_bytes
from planner.partition.ordered.hosts import distinct_rows
from planner.partition.placement.packing import Items, first_packing
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# Of each device's memory, what a packing may fill with states, in turn: the rest is for what flows.
_ROOM_SHARES = (1.0, 0.85, 0.6)


def offer_packing(portfolio: Portfolio) -> None:
    """Stages that fit, if any do: where to begin where nothing fits one stage on each device."""
    problem, bundles = portfolio.problem, portfolio.bundles
    if portfolio.request.num_stages:
        return
    for room_share in _ROOM_SHARES:
        device_of_bundle = first_packing(_items(problem, bundles, room_share))
        if device_of_bundle is None:
            return
        scored = portfolio.offer(stages_by_level(problem, bundles, device_of_bundle.tolist()))
        if scored is None or scored.fits:
            return


def _items(problem: PartitionProblem, bundles: Bundles, room_share: float) -> Items:
    owner, count, kinds = bundles.bundle_of_node, bundles.count, distinct_rows(problem.work_seconds)
    return Items(
        seconds=np.array([np.bincount(owner, row, count) for row in kinds.rows], dtype=np.float64),
        held_bytes=first_users_bytes(problem, bundles),
        class_of_device=kinds.kind_of_row,
        device_bytes=problem.device_memory_bytes.astype(np.float64) * room_share,
    )


def stages_by_level(problem: PartitionProblem, bundles: Bundles, device: Sequence[int]) -> Assignment:
    """`device` [bundles]. As few on each device as a pass early and a pass late find, so that edges go to higher stages
    only."""
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
    names: dict[tuple[int, int], int] = {}
    part = np.array([names.setdefault(key, len(names)) for key in zip(level, device, strict=True)], dtype=np.int64)
    after: list[set[int]] = [set() for _ in names]
    for bundle, readers in enumerate(bundles.after):
        after[part[bundle]].update(int(part[reader]) for reader in readers)
    for one, readers_of in enumerate(after):
        readers_of.discard(one)
    last = _last(problem, part[bundles.bundle_of_node], after)
    ordered = least_first_order(after, lambda one: one == last)
    devices = [on for _, on in names]
    return bundles.assignment(np.argsort(ordered)[part], [devices[one] for one in ordered])


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
