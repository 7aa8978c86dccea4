"""Copies of stages on further devices, each taking its share of the microbatches: the least bottleneck with them.

Over segments of the program order a dynamic programme decides how many devices of one class each stage gets, as
PipeDream does (Narayanan et al. 2019); then idle devices of whatever class join the most loaded stage while that helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from planner.partition.assignment import Assignment, contiguous
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import Classes, hosts_of
from planner.partition.ordered.positions import few_positions
from planner.partition.ordered.search import search
from planner.partition.ordered.segment_loads import SegmentLoads, StageLinks
from planner.partition.ordered.segments import SegmentRow, Segments
from planner.partition.ordered.state_space import StateSpace
from planner.partition.placement.device_states import num_counted_states
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.score import Scored, score
from planner.partition.training.memory import most_kept_with_copies

MAX_STATES = 600
MAX_STEPS = 20_000
_POSITIONS = 120


def least_bottleneck_with_copies(problem: PartitionProblem, num_stages: int = 0) -> Assignment | None:
    """Each stage on devices of one class. None where nothing fits, or devices are of too many kinds to tell apart."""
    classes = hosts_of(problem).classes
    if num_counted_states(tuple(map(len, classes))) > MAX_STATES:
        return None
    space, copies = _space(classes, num_stages, most_kept_with_copies(problem.training) if problem.training else 0)
    if space.source.size > MAX_STEPS:
        return None
    loads = SegmentLoads(problem, space.labels)
    own = np.array([members[0] for members in classes], dtype=np.int64)

    def shared(row: SegmentRow, ends: Integers) -> Floats:
        return loads.seconds(row, ends) / copies[:, None]

    positions = few_positions(problem, _POSITIONS)
    solution = search(problem, Segments(problem), space, shared, own[space.unit], positions)
    if not solution.boundaries:
        return None
    left = [list(members) for members in classes]
    devices = [
        [left[space.unit[step]].pop(0) for _ in range(int(copies[space.label[step]]))] for step in solution.steps
    ]
    firsts = [own_devices[0] for own_devices in devices]
    assignment = contiguous(problem, solution.boundaries, firsts)
    return replace(assignment, replicas=tuple(tuple(own_devices[1:]) for own_devices in devices))


def _space(classes: Classes, num_stages: int, kept_microbatches: int) -> tuple[StateSpace, Floats]:
    """A step takes 1, 2, ... devices of a class; a state is how many of each class are used, and stages if asked.

    Also how many copies each label is. `kept_microbatches`: microbatches that a stage is taken to keep.
    """
    counts = tuple(map(len, classes))
    layers = range(num_stages + 1) if num_stages else (0,)
    index = {key: at for at, key in enumerate(product(layers, *(range(count + 1) for count in counts)))}
    labels: dict[tuple[int, int], int] = {}
    steps = [
        (at, index[target], labels.setdefault((own, num_copies), len(labels)))
        for key, at in index.items()
        for own, num_copies, target in _choices(key, counts, num_stages)
    ]
    source, target, label = np.array(steps, dtype=np.int64).reshape(-1, 3).T
    keys = np.array(list(index), dtype=np.int64)
    final = np.flatnonzero(keys[:, 0] == num_stages if num_stages else keys[:, 1:].sum(axis=1) > 0)
    space = StateSpace(
        num_states=len(index),
        starts=np.zeros(1, dtype=np.int64),
        final=final,
        depth=keys[:, 1:].sum(axis=1),
        source=source,
        target=target,
        label=label,
        unit=np.array([own for own, _ in labels], dtype=np.int64)[label],
        node=np.zeros_like(label),
        labels=tuple(StageLinks(classes[own][0], None, None, kept_microbatches) for own, _ in labels),
    )
    return space, np.array([num_copies for _, num_copies in labels], dtype=np.float64)


def _choices(
    key: tuple[int, ...], counts: tuple[int, ...], num_stages: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    stage, *used = key
    if num_stages and stage == num_stages:
        return
    for own, count in enumerate(counts):
        for num_copies in range(1, count - used[own] + 1):
            after = [*used[:own], used[own] + num_copies, *used[own + 1 :]]
            yield own, num_copies, (stage + bool(num_stages), *after)


def with_idle_copies(problem: PartitionProblem, current: Scored, objective: Objective) -> Scored:
    """Idle devices join the most loaded stage one by one, the one that helps most first, while the value falls."""
    hosts = hosts_of(problem)
    while True:
        used = {device for devices in current.assignment.devices_of_stage for device in devices}
        best = current
        for device in hosts.one_of_each(set(range(problem.num_devices)) - used):
            candidate = score(problem, _joined(current, device), objective)
            if candidate.is_better_than(best):
                best = candidate
        if best is current:
            return current
        current = best


def _joined(current: Scored, device: int) -> Assignment:
    copies = current.assignment.devices_of_stage
    loads = [
        stage.load_seconds / len(devices) for stage, devices in zip(current.evaluation.stages, copies, strict=True)
    ]
    worst = int(np.argmax(loads))
    replicas = tuple((*devices[1:], device) if stage == worst else devices[1:] for stage, devices in enumerate(copies))
    return replace(current.assignment, replicas=replicas)
