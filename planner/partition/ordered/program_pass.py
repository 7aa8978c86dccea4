"""One pass over the program order, set up: the states, the loads and the segments that it shares with other passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import contiguous
from planner.partition.evaluate import Evaluation, evaluate
from planner.partition.objective import Objective
from planner.partition.ordered.device_walks import DeviceWalks, by_device, by_kind, host_by_host, in_orders
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.search import Combine, Load, Solution, search
from planner.partition.ordered.segment_loads import SegmentLoads
from planner.partition.ordered.segments import Segments
from planner.partition.ordered.state_space import StateSpace, state_space
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.training.memory import kept_microbatches

MAX_STATES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Segments of the program order and a device for each, with their true bottleneck. `lower_bound_seconds` holds for
    every layout of contiguous segments on devices of their own."""

    boundaries: tuple[int, ...]
    devices: tuple[int, ...]
    bottleneck_seconds: float
    lower_bound_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedPass:
    """`complete`: the walks take every choice of devices. `exact_loads`: rather than bounds on them."""

    problem: PartitionProblem
    walks: DeviceWalks
    segments: Segments
    space: StateSpace
    loads: SegmentLoads
    step_device: Integers
    complete: bool
    exact_loads: bool

    def search(
        self, positions: Integers, limit: float = np.inf, objective: Objective = Objective.THROUGHPUT
    ) -> Solution:
        """The segments and devices of the least bottleneck below the limit; for latency those that one batch passes
        soonest if they run in turn, for memory those whose fullest device has the smallest share of it in use."""
        if objective is Objective.LATENCY:
            return self._least(self.loads.path_seconds, positions, combine=np.add)
        load = self.loads.memory_share if objective is Objective.MEMORY else self.loads.seconds
        return self._least(load, positions, limit)

    def least_shortage(self, positions: Integers) -> Solution:
        """The segments and devices whose largest shortage of bytes is least; its value is negative if all fit."""
        return self._least(self.loads.lacking_bytes, positions)

    def _least(self, load: Load, positions: Integers, limit: float = np.inf, combine: Combine = np.maximum) -> Solution:
        return search(self.problem, self.segments, self.space, load, self.step_device, positions, limit, combine)

    def devices_of(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Of those that are alike, in inventory order."""
        devices = self.walks.devices_of([(int(self.space.unit[step]), int(self.space.node[step])) for step in steps])
        assert devices is not None, "walks whose devices are told apart can be taken"
        return devices

    def layout(self, boundaries: tuple[int, ...], steps: tuple[int, ...]) -> Layout | None:
        """None for no boundaries, which is how a search says that it found nothing."""
        if not boundaries:
            return None
        devices = self.devices_of(steps)
        evaluation = evaluate_layout(self.problem, boundaries, devices)
        return Layout(boundaries=boundaries, devices=devices, bottleneck_seconds=evaluation.bottleneck_seconds)


def evaluate_layout(problem: PartitionProblem, boundaries: tuple[int, ...], devices: tuple[int, ...]) -> Evaluation:
    return evaluate(problem, contiguous(problem, boundaries, devices))


def ordered_pass(problem: PartitionProblem, num_stages: int = 0, order: Sequence[int] = ()) -> OrderedPass:
    """Through the devices of the order, if one is given; else through all, or some orders of them if they are many."""
    hosts = hosts_of(problem)
    complete = hosts.num_states <= MAX_STATES and not order
    if complete:
        walks = by_kind(problem, hosts) if hosts.count == 1 else by_device(hosts)
    else:
        walks = in_orders(hosts, [order] if order else _orders(problem))
    return _pass_of(problem, num_stages, walks, complete=complete)


def host_by_host_pass(problem: PartitionProblem, num_stages: int, max_states: int) -> OrderedPass | None:
    """Hosts one after the other, each left for good, in any order and with their devices in any; None where these are
    too many, or on a single host."""
    hosts = hosts_of(problem)
    groups = hosts.groups
    # Each node is a way to use some devices of a host, or more than one: not listed, where those alone are too many.
    least_states = math.prod(len(group) + 1 for group in groups) * (hosts.num_states_by_host - len(groups))
    walks = host_by_host(hosts) if hosts.count > 1 and least_states <= max_states else None
    if walks is None or walks.num_states > max_states:
        return None
    return _pass_of(problem, num_stages, walks, complete=False)


def _pass_of(problem: PartitionProblem, num_stages: int, walks: DeviceWalks, *, complete: bool) -> OrderedPass:
    space = state_space(
        walks,
        num_stages=num_stages,
        max_stages=problem.num_devices,
        kept_microbatches=kept_by_stage(problem, num_stages),
    )
    own = np.array([label.own for label in space.labels], dtype=np.int64)
    return OrderedPass(
        problem=problem,
        walks=walks,
        segments=Segments(problem),
        space=space,
        loads=SegmentLoads(problem, space.labels),
        step_device=own[space.label],
        complete=complete,
        exact_loads=problem.relay or hosts_of(problem).count == 1,
    )


def kept_by_stage(problem: PartitionProblem, num_stages: int) -> Callable[[int], int]:
    """Exact for a given number of stages; else as for as many as there are devices, which is enough for fewer."""
    training = problem.training
    if training is None:
        return lambda stage: 0
    return lambda stage: kept_microbatches(training, num_stages or problem.num_devices, stage)


def _orders(problem: PartitionProblem) -> list[list[int]]:
    """Orders to try where there are too many: as listed, fastest, largest or nearest first, and their reverses."""
    speed: Floats = problem.work_seconds.sum(axis=1)
    listed = list(range(problem.num_devices))
    fastest = sorted(listed, key=lambda device: (speed[device], device))
    largest = sorted(listed, key=lambda device: (-problem.device_memory_bytes[device], device))
    nearest = nearest_neighbours(problem)
    return [order[::way] for order in (listed, fastest, largest, nearest) for way in (1, -1)]


def nearest_neighbours(problem: PartitionProblem) -> list[int]:
    """A chain that goes on from each device over its fastest unused link."""
    order, left = [0], np.arange(1, problem.num_devices)
    while left.size:
        slowness = problem.link_seconds_per_byte[order[-1], left]
        fastest = np.flatnonzero(slowness == slowness.min())
        nearest = fastest[problem.link_latency_seconds[order[-1], left[fastest]].argmin()]
        order.append(int(left[nearest]))
        left = np.delete(left, nearest)
    return order
