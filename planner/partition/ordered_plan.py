"""The least bottleneck over contiguous segments of the program order: which cuts, and which device takes which segment.

Coarse first, for a value to beat; then over every allowed position, leaving out what cannot beat it; then, where
tensors go straight to several readers, branch and bound on the true loads. Exact where device choices are few enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import contiguous
from planner.partition.device_classes import DeviceClasses, device_classes
from planner.partition.evaluate import evaluate
from planner.partition.exact_search import NEGLIGIBLE, branch_and_bound
from planner.partition.ordered_search import Solution, reach, search
from planner.partition.positions import allowed_positions, few_positions
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.segment_loads import SegmentLoads
from planner.partition.segments import Segments
from planner.partition.state_space import (
    NOBODY,
    StateSpace,
    build_space,
    counted_choices,
    num_counted_states,
    ordered_choices,
)

MAX_STATES = 4096
# Pairs of a step and an end that one pass may look at: about two seconds.
MAX_PAIRS = 4e8
COARSE_POSITIONS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Segments of the program order and a device for each. `lower_bound_seconds` holds for every such layout."""

    boundaries: tuple[int, ...]
    devices: tuple[int, ...]
    bottleneck_seconds: float
    lower_bound_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search:
    """What every pass shares. `complete`: the space holds every choice of devices."""

    problem: PartitionProblem
    classes: DeviceClasses
    segments: Segments
    space: StateSpace
    loads: SegmentLoads
    step_device: Integers
    complete: bool


def prepare(problem: PartitionProblem, num_stages: int = 0) -> Search:
    classes = device_classes(problem)
    linked = not classes.uniform_links
    complete = num_counted_states(classes) <= MAX_STATES
    if complete:
        start, choices = (0,) * len(classes.members), counted_choices(classes)
    else:
        start, choices = (NOBODY, 0), ordered_choices(_orders(problem, classes))
    space = build_space(start, choices, num_stages=num_stages, max_stages=problem.num_devices, linked=linked)
    own = np.array([classes.representatives[label[1]] for label in space.labels], dtype=np.int64)
    return Search(
        problem=problem,
        classes=classes,
        segments=Segments(problem),
        space=space,
        loads=SegmentLoads(problem, classes, space),
        step_device=own[space.label],
        complete=complete,
    )


def least_bottleneck(problem: PartitionProblem, num_stages: int = 0) -> Layout | None:
    """None if nothing fits: no segments, in any order of the devices that was tried, stay within memory."""
    shared = prepare(problem, num_stages)
    in_hand = _coarse(shared)
    limit = in_hand.bottleneck_seconds if in_hand else np.inf
    positions = _affordable_positions(shared, limit)
    fine = search(
        problem, shared.segments, shared.space, shared.loads.seconds, shared.step_device, positions, _just_above(limit)
    )
    in_hand = _better(in_hand, _layout(shared, fine.boundaries, fine.classes))
    if in_hand is None:
        return None
    every_position = positions.size == allowed_positions(problem).size
    proven = min(fine.value, in_hand.bottleneck_seconds) if every_position and shared.complete else 0.0
    if in_hand.bottleneck_seconds > fine.value * (1 + NEGLIGIBLE):
        in_hand, proven = _refined(shared, fine, in_hand, proven)
    return Layout(
        boundaries=in_hand.boundaries,
        devices=in_hand.devices,
        bottleneck_seconds=in_hand.bottleneck_seconds,
        lower_bound_seconds=max(proven, _cheap_bound(shared, in_hand.bottleneck_seconds)),
    )


def _coarse(shared: Search) -> Layout | None:
    problem = shared.problem
    few = few_positions(problem, COARSE_POSITIONS)
    if few.size == allowed_positions(problem).size:
        return None
    found = search(problem, shared.segments, shared.space, shared.loads.seconds, shared.step_device, few)
    return _layout(shared, found.boundaries, found.classes)


def _refined(shared: Search, fine: Solution, in_hand: Layout, proven: float) -> tuple[Layout, float]:
    expansions = max(150, min(20_000, 4_000_000 // (shared.problem.num_nodes * len(shared.space.labels))))
    found = branch_and_bound(
        shared.problem,
        shared.classes,
        shared.segments,
        shared.space,
        shared.loads,
        fine,
        in_hand.bottleneck_seconds,
        expansions,
    )
    best = _better(in_hand, _layout(shared, found.boundaries, found.classes))
    assert best is not None
    return best, best.bottleneck_seconds if found.complete and proven else proven


def _just_above(limit: float) -> float:
    return limit * (1 + 1e-9)


def _affordable_positions(shared: Search, limit: float) -> Integers:
    """Every allowed position where a pass over them all is affordable; otherwise as many as are."""
    count = allowed_positions(shared.problem).size
    first, last = reach(shared.problem, shared.space, shared.step_device, limit)
    source, target = shared.space.source, shared.space.target
    n = shared.problem.num_nodes
    starts = np.clip(last[source] - first[source] + 1, 0, n).astype(np.float64)
    ends = np.clip(np.minimum(last[target], n) - first[target] + 1, 0, n).astype(np.float64)
    pairs = float((starts * ends).sum()) / 2
    if pairs <= MAX_PAIRS:
        return allowed_positions(shared.problem)
    return few_positions(shared.problem, max(COARSE_POSITIONS, int(count * (MAX_PAIRS / pairs) ** 0.5)))


def _layout(shared: Search, boundaries: Sequence[int], classes: Sequence[int]) -> Layout | None:
    if not classes:
        return None
    left = [list(members) for members in shared.classes.members]
    devices = tuple(left[index].pop(0) for index in classes)
    assignment = contiguous(shared.problem, boundaries, devices, [""] * len(devices))
    found = evaluate(shared.problem, assignment)
    return Layout(
        boundaries=tuple(boundaries),
        devices=devices,
        bottleneck_seconds=found.bottleneck_seconds,
        lower_bound_seconds=0.0,
    )


def _better(one: Layout | None, other: Layout | None) -> Layout | None:
    if one is None or other is None:
        return one or other
    return other if other.bottleneck_seconds < one.bottleneck_seconds else one


def _cheap_bound(shared: Search, upper: float) -> float:
    """The least value at which the devices' compute alone covers the program, by 40 bisections below `upper`."""
    problem = shared.problem
    if not shared.complete:
        # However it is cut: each device does at most its share of the fastest device's work for each node.
        fastest = problem.compute_seconds.min(axis=0)
        return min(upper, max(float(fastest.max()), float(fastest.sum()) / problem.num_devices) * (1 - 1e-9))
    low, high = 0.0, upper
    for _ in range(40):
        middle = (low + high) / 2
        first, _ = reach(problem, shared.space, shared.step_device, middle)
        low, high = (low, middle) if (first[shared.space.starts] == 0).any() else (middle, high)
    return low


def _orders(problem: PartitionProblem, classes: DeviceClasses) -> list[list[int]]:
    """Orders to try where there are too many: as listed, fastest, largest or nearest first, and their reverses."""
    index_of = {device: index for index, members in enumerate(classes.members) for device in members}
    speed: Floats = problem.compute_seconds.sum(axis=1)
    listed = list(range(problem.num_devices))
    fastest = sorted(listed, key=lambda device: (speed[device], device))
    largest = sorted(listed, key=lambda device: (-problem.device_memory_bytes[device], device))
    nearest = _nearest_neighbours(problem)
    orders = [order[::way] for order in (listed, fastest, largest, nearest) for way in (1, -1)]
    return [[index_of[device] for device in order] for order in orders]


def _nearest_neighbours(problem: PartitionProblem) -> list[int]:
    """A chain that goes on from each device over its fastest unused link."""
    order, left = [0], set(range(1, problem.num_devices))
    while left:
        here = order[-1]
        speeds = problem.link_seconds_per_byte[here]
        nearest = min(left, key=lambda device: (speeds[device], problem.link_latency_seconds[here, device], device))
        order.append(nearest)
        left.remove(nearest)
    return order
