"""An assignment in the place of another one on the devices that are left, of which few weights move.

Three are compared: the best that is found; the same with its devices exchanged, so that they keep what they can; and
the best that leaves all nodes of the devices left where they are, and shares out those of the devices that are gone.
Where stages may have copies, idle devices join each of them as copies, and one more is compared: what there was without
the copies that are gone, if each stage has one left.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import rustworkx

from planner.errors import Infeasible
from planner.partition.assignment import Assignment
from planner.partition.before import Before
from planner.partition.portfolio.replicated import with_idle_copies
from planner.partition.problem import FREE, Booleans, Integers, PartitionProblem
from planner.partition.registry import partition
from planner.partition.request import Request
from planner.partition.score import Scored, score

# Assignments whose objectives are this close, as a share, are nearly the same: what a search saves beyond that is less
# than what predicted seconds are off by.
NEARLY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`moved_bytes` are those of the states that devices have to load which did not hold them before.

    `excess` is how far the objective is above the best that was found, as a share of it.
    """

    assignment: Assignment
    moved_bytes: int
    excess: float


def replacement(problem: PartitionProblem, request: Request, before: Before) -> Replacement:
    """Of the assignments within NEARLY of the best, the one whose states move least.

    Where no stages of one device each fit, a device may hold several. Raises Infeasible where nothing fits then either.
    """
    try:
        return _replacement(problem, request, before)
    except Infeasible as error:
        if request.free:
            raise
        with suppress(Infeasible):
            return _replacement(problem, replace(request, free=True), before)
        raise error from None


def moved_bytes(problem: PartitionProblem, before: Before, assignment: Assignment) -> int:
    """Each state once for each device that has to load it."""
    needed = _held(problem, *_devices_of_node(assignment))
    held = _held(problem, before.device_of_node, *before.other_copies)
    return int(((needed & ~held) * problem.state_bytes).sum())


def _replacement(problem: PartitionProblem, request: Request, before: Before) -> Replacement:
    best = score(problem, partition(problem, request), request.objective)
    device_before = before.device_of_node
    candidates = [best, *_exchanged(problem, request, best, device_before), *_kept(problem, request, device_before)]
    if before.remainder is not None:
        remainder = score(problem, before.remainder, request.objective)
        candidates += [remainder] if remainder.fits else []
    # A copy would run what is kept on a device elsewhere.
    if before.may_copy and not (problem.fixed_device != FREE).any():
        candidates = [with_idle_copies(problem, one, request.objective) for one in candidates]
    least = min(one.value for one in candidates)
    bytes_to_load = [moved_bytes(problem, before, one.assignment) for one in candidates]
    near = [index for index, one in enumerate(candidates) if one.value <= least * (1 + NEARLY)]
    choice = min(near, key=lambda index: (bytes_to_load[index], candidates[index].value))
    # What was proven of any assignment to these devices without copies holds of one without.
    bound = None if candidates[choice].assignment.replicas else best.assignment.lower_bound_seconds
    return Replacement(
        assignment=replace(candidates[choice].assignment, lower_bound_seconds=bound),
        moved_bytes=bytes_to_load[choice],
        excess=candidates[choice].value / least - 1 if least else 0.0,
    )


def _kept(problem: PartitionProblem, request: Request, device_before: Integers) -> list[Scored]:
    """What the user fixed stays fixed."""
    fixed = np.where(problem.fixed_device == FREE, device_before, problem.fixed_device)
    with suppress(Infeasible):
        in_place = partition(replace(problem, fixed_device=fixed), request)
        return [one for one in (score(problem, in_place, request.objective),) if one.fits]
    return []


def _exchanged(problem: PartitionProblem, request: Request, best: Scored, device_before: Integers) -> list[Scored]:
    """Devices change places so that the most bytes stay: a matching of greatest weight."""
    held = _held(problem, device_before)
    needed = _held(problem, *_devices_of_node(best.assignment))
    graph: rustworkx.PyGraph[None, int] = rustworkx.PyGraph()
    count = problem.num_devices
    graph.add_nodes_from([None] * (2 * count))
    for one in range(count):
        stay_bytes = ((needed[one] & held) * problem.state_bytes).sum(axis=1)
        graph.add_edges_from([(one, count + other, int(size)) for other, size in enumerate(stay_bytes.tolist())])
    pairs = rustworkx.max_weight_matching(graph, max_cardinality=True, weight_fn=int)
    place = {min(pair): max(pair) - count for pair in pairs}
    devices = tuple(place[device] for device in best.assignment.device_of_stage)
    if devices == best.assignment.device_of_stage:
        return []
    exchanged = replace(best.assignment, device_of_stage=devices, orders=())
    return [one for one in (score(problem, exchanged, request.objective),) if one.fits]


def _held(problem: PartitionProblem, *device_of_node: Integers) -> Booleans:
    """[devices, states] whether a node that runs there, or a copy of it, uses the state."""
    held = np.zeros((problem.num_devices, problem.state_bytes.size), dtype=np.bool_)
    for copy in device_of_node:
        devices = copy[problem.use_node]
        there = devices != FREE
        held[devices[there], problem.use_state[there]] = True
    return held


def _devices_of_node(assignment: Assignment) -> list[Integers]:
    """Of each copy, FREE where a node's stage has fewer."""
    copies = assignment.devices_of_stage
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    return [
        np.array([own[at] if at < len(own) else FREE for own in copies], dtype=np.int64)[stage_of_node]
        for at in range(max(map(len, copies)))
    ]
