"""The problem as an additive placement problem that never costs more: what it cannot do, nothing can.

Transfers go over each device's best link and take no latency, what the caller gives and takes moves for nothing, and a
state is held by its first user alone. Its placements, as stages in an order in which they can run, are candidates for
the true problem, its bounds hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible
from planner.partition.arcs import least_first_order, topological_order
from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import hosts_of
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.netlists.netlist import netlist_of
from planner.partition.placement.netlists.packing import first_packing
from planner.partition.placement.problem import PlacementProblem
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.request import Request
from planner.partition.traffic import UNKNOWN

# Nodes of programs that are relaxed; over equal links contiguous placements lose less by it, and from them NASNets
# onto 16 devices come to 3 and 12 % less.
MAX_RELAXED_NODES, MAX_RELAXED_NODES_OVER_EQUAL_LINKS = 600, 1500
MAX_IDEAL_PAIRS = 6_000_000
# Of each device's memory, what the relaxation may fill with states, in turn.
ROOM_SHARES = (1.0, 0.85, 0.6)


def offer_relaxed_placements(portfolio: Portfolio) -> None:
    """The additive problem's placements, at last with room for what flows."""
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    most = MAX_RELAXED_NODES_OVER_EQUAL_LINKS if hosts_of(problem).count == 1 else MAX_RELAXED_NODES
    if request.num_stages or problem.num_nodes > most * request.effort:
        return
    for room_share in ROOM_SHARES:
        device_of_node, bound = _placed(problem, bundles, request, room_share)
        if room_share == 1.0 and request.objective is Objective.THROUGHPUT and not portfolio.has_copies:
            portfolio.prove(bound)
        if device_of_node is None:
            return
        scored = portfolio.offer(one_stage_each(problem, bundles, device_of_node))
        if scored is None or scored.fits:
            return


def offer_packing(portfolio: Portfolio) -> None:
    """Stages anywhere that fit, if any do: where to begin where nothing fits one stage on each device."""
    problem, bundles = portfolio.problem, portfolio.bundles
    if portfolio.request.num_stages:
        return
    for room_share in ROOM_SHARES:
        relaxation = relaxed(problem, bundles, room_share)
        netlist = netlist_of(relaxation.placement)
        devices = first_packing(netlist)
        if devices is None:
            return
        device_of_node = relaxation.devices[devices[netlist.cell_of_node]]
        first_nodes = [members[0] for members in bundles.members]
        scored = portfolio.offer(stages_by_level(problem, bundles, device_of_node[first_nodes].tolist()))
        if scored is None or scored.fits:
            return


def _placed(
    problem: PartitionProblem, bundles: Bundles, request: Request, room_share: float
) -> tuple[Integers | None, float]:
    """Device of each node and a bound; None where the relaxation has no placement, or none was found."""
    relaxation = relaxed(problem, bundles, room_share)
    try:
        pairs = int(MAX_IDEAL_PAIRS * request.effort)
        placement = best_contiguous(
            relaxation.placement, max_pairs=pairs, moves_items=False, out_of_time=request.out_of_time
        )
    except Infeasible:
        return None, 0.0
    bound = placement.lower_bound_seconds * (1 - 1e-9)
    return relaxation.devices[np.array(placement.device_of_node, dtype=np.int64)], bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """`devices`: the problem's device for each of the placement's."""

    placement: PlacementProblem
    devices: Integers


def relaxed(problem: PartitionProblem, bundles: Bundles, room_share: float = 1.0) -> Relaxation:
    """`room_share` of each device's memory is for states; 1 for a bound, less to leave room for what flows."""
    best = np.minimum(problem.best_seconds_per_byte[UNKNOWN, :-1], problem.best_seconds_per_byte[:-1, UNKNOWN])
    classes = _classes(problem, best)
    own = np.array([members[0] for members in classes], dtype=np.int64)
    values, tensor_of_read, reads = _tensors(problem)
    earlier, later = _arcs_without_reads(problem, bundles, reads)
    made, sizes = problem.value_producer[values], problem.value_bytes[values].astype(np.float64)
    return Relaxation(
        placement=PlacementProblem(
            seconds=problem.work_seconds[own],
            node_bytes=_first_users_bytes(problem),
            tensor_producer=np.concatenate([made, earlier]),
            read_tensor=np.concatenate([tensor_of_read, values.size + np.arange(earlier.size)]),
            read_node=np.concatenate([problem.read_node[reads], later]),
            transfer_seconds=np.outer(best[own], np.concatenate([sizes, np.zeros(earlier.size)])),
            is_backward=np.zeros(problem.num_nodes, dtype=np.bool_),
            colocation=bundles.bundle_of_node,
            class_devices=np.array([len(members) for members in classes], dtype=np.int64),
            class_bytes=problem.device_memory_bytes[own].astype(np.float64) * room_share,
            class_is_parallel=np.zeros(own.size, dtype=np.bool_),
            node_names=problem.labels.nodes,
            class_names=tuple(problem.labels.devices[device] for device in own.tolist()),
        ),
        devices=np.array([device for members in classes for device in members], dtype=np.int64),
    )


def _classes(problem: PartitionProblem, best_seconds_per_byte: Floats) -> list[list[int]]:
    """Devices that the relaxation cannot tell apart: of one kind, with best links alike, whatever their hosts."""
    classes: dict[tuple[int, float], list[int]] = {}
    kinds = hosts_of(problem).kind_of_device.tolist()
    for device, alike in enumerate(zip(kinds, best_seconds_per_byte.tolist(), strict=True)):
        classes.setdefault(alike, []).append(device)
    return list(classes.values())


def _tensors(problem: PartitionProblem) -> tuple[Integers, Integers, Integers]:
    """Values that a node makes and some node reads; the tensor of each read of one; which reads those are."""
    reads = np.flatnonzero(problem.value_producer[problem.read_value] >= 0)
    values, tensor_of_read = np.unique(problem.read_value[reads], return_inverse=True)
    return values, tensor_of_read, reads


def _arcs_without_reads(problem: PartitionProblem, bundles: Bundles, reads: Integers) -> tuple[Integers, Integers]:
    """Nodes (before, after) of each two bundles that have an order although none of those reads goes between them: who
    runs last, say. To the relaxation they are tensors of no bytes."""
    bundle = bundles.bundle_of_node
    makers = problem.value_producer[problem.read_value[reads]]
    read = set(zip(bundle[makers].tolist(), bundle[problem.read_node[reads]].tolist(), strict=True))
    arcs = [
        (bundles.members[first][-1], bundles.members[second][0])
        for first, after in enumerate(bundles.after)
        for second in after
        if (first, second) not in read
    ]
    earlier, later = np.array(arcs, dtype=np.int64).reshape(-1, 2).T
    return earlier, later


def _first_users_bytes(problem: PartitionProblem) -> Floats:
    """[nodes] of the states that each is the first to use."""
    states, first = np.unique(problem.use_state, return_index=True)
    sizes = problem.whole_state_bytes[states].astype(np.float64)
    return np.bincount(problem.use_node[first], sizes, problem.num_nodes).astype(np.float64)


def one_stage_each(problem: PartitionProblem, bundles: Bundles, device_of_node: Integers) -> Assignment | None:
    """A stage for each device's nodes; None if such stages would wait for each other."""
    device_of_bundle = [int(device_of_node[members[0]]) for members in bundles.members]
    return _assignment(problem, bundles, device_of_bundle, device_of_bundle)


def stages_by_level(problem: PartitionProblem, bundles: Bundles, device: Sequence[int]) -> Assignment:
    """`device` [bundles]. As few stages on each device as a pass early and a pass late find, so that edges go to higher stages only."""
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
