"""The stages that a lone batch passes soonest where a device may take any nodes: list scheduling and local search.

Bundles run in the order of the longest path behind them, each where it ends first (HEFT, Topcuoglu et al. 2002). Then
chains and single bundles change devices while that helps, and from the best a few at random (iterated local search,
Lourenço et al. 2003). A schedule's cost counts a value that a device has received as there. Runs of bundles on a device
become stages: cut where something enters or leaves, then joined where that costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.assignment import Assignment
from planner.partition.bounds.work import node_state_bytes
from planner.partition.objective import Objective
from planner.partition.out_of_time import OutOfTime
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.score import NEGLIGIBLE, Scored, score

# Bundles and reads that all schedules together may look at: about a second.
MAX_LOOKED_AT = 3e6
# So many schedules for each bundle are more than a small program needs.
MAX_SCHEDULES = 500
# Values by stage that judging joins of stages may look at: about half a second.
MAX_JUDGED = 2e6
# Moves in vain before some nodes change devices at random.
_PATIENCE = 60


def offer_schedules(portfolio: Portfolio) -> None:
    """Does nothing where one schedule alone would take more than all may."""
    problem, request = portfolio.problem, portfolio.request
    tasks = _Tasks(problem, portfolio.bundles)
    left = MAX_LOOKED_AT * request.effort
    if request.num_stages or tasks.size * problem.num_devices > left:
        return
    starts = list(_starts(portfolio, tasks))
    if not starts:
        return
    num_schedules = int(min(left / tasks.size, MAX_SCHEDULES * portfolio.bundles.count * request.effort))
    for placement in _Search(tasks, portfolio.bound, num_schedules, request.out_of_time).run(starts):
        portfolio.offer(tasks.assignment(placement))
    if portfolio.best is not None and portfolio.best.assignment.num_stages > 1 and not portfolio.has_copies:
        portfolio.keep(join_stages(problem, portfolio.bundles, portfolio.best, request.objective))


def _starts(portfolio: Portfolio, tasks: _Tasks) -> Iterator[list[int]]:
    """Each bundle where it ends first, and what the portfolio has."""
    listed = tasks.earliest_ends()
    if listed is not None:
        yield listed
    if portfolio.best is not None:
        stages, devices = portfolio.best.assignment.stage_of_node, portfolio.best.assignment.device_of_stage
        yield [devices[stages[members[0]]] for members in tasks.bundles.members]


class _Tasks:
    """The bundles in the order in which they are scheduled, with what each reads and makes, as lists."""

    def __init__(self, problem: PartitionProblem, bundles: Bundles) -> None:
        self.problem, self.bundles = problem, bundles
        owner, count = bundles.bundle_of_node, bundles.count
        self.seconds: list[list[float]] = [np.bincount(owner, row, count).tolist() for row in problem.compute_seconds]
        self.state_bytes: list[float] = np.bincount(owner, node_state_bytes(problem), count).tolist()
        self.sizes: list[int] = problem.value_bytes.tolist()
        self.rank = self._ranks()
        self.order = self._order()
        # The first stage hands on what the program takes, without its pass, and the last is given all that it returns.
        from_a_node = problem.value_producer >= 0
        self.is_made: list[bool] = from_a_node.tolist()
        self.maker: list[int] = np.where(from_a_node, owner[problem.value_producer], self.order[0]).tolist()
        returned = np.flatnonzero(problem.value_returned)
        values = np.concatenate([problem.read_value, returned])
        takers = np.concatenate([owner[problem.read_node], np.full(returned.size, self.order[-1])])
        pairs = np.unique(values * count + takers)
        self.reads: list[list[int]] = [[] for _ in range(count)]
        self.makes: list[list[int]] = [[] for _ in range(count)]
        self.readers: list[list[int]] = [[] for _ in self.sizes]
        for value, bundle in zip((pairs // count).tolist(), (pairs % count).tolist(), strict=True):
            if self.maker[value] == bundle:
                continue
            self.reads[bundle].append(value)
            if not self.readers[value]:
                self.makes[self.maker[value]].append(value)
            self.readers[value].append(bundle)
        self.size = count + 2 * pairs.size
        self.latency: list[list[float]] = problem.link_latency_seconds.tolist()
        self.per_byte: list[list[float]] = problem.link_seconds_per_byte.tolist()

    def _ranks(self) -> list[float]:
        """Seconds of the longest path from each bundle's start to the end, over average devices and links."""
        seconds = np.array(self.seconds)
        runs = np.isfinite(seconds)
        mean: list[float] = (np.where(runs, seconds, 0.0).sum(axis=0) / runs.sum(axis=0)).tolist()
        rank = [0.0] * len(mean)
        for bundle in topological_order(self.bundles.after, self.bundles.before):
            rank[bundle] = mean[bundle] + max((rank[reader] for reader in self.bundles.after[bundle]), default=0.0)
        return rank

    def _order(self) -> list[int]:
        """Of highest rank first; bundles that take no time after those that they wait for."""
        depth = [0] * self.bundles.count
        for bundle in topological_order(self.bundles.before, self.bundles.after):
            depth[bundle] = max((depth[producer] + 1 for producer in self.bundles.before[bundle]), default=0)
        return sorted(range(self.bundles.count), key=lambda bundle: (-self.rank[bundle], depth[bundle], bundle))

    def earliest_ends(self) -> list[int] | None:
        """Each bundle, in order, where it ends first within the devices' memory; None if one fits nowhere."""
        room: list[float] = self.problem.device_memory_bytes.astype(np.float64).tolist()
        device = [-1] * self.bundles.count
        free, done = [0.0] * len(room), [0.0] * self.bundles.count
        for bundle in self.order:
            best = (np.inf, 0.0, -1)
            for at, left in enumerate(room):
                if left < self.state_bytes[bundle]:
                    continue
                end = self._end(bundle, at, free[at], device, done)
                best = min(best, (end, -left, at))
            end, _, at = best
            if end == np.inf:
                return None
            device[bundle], done[bundle], free[at] = at, end, end
            room[at] -= self.state_bytes[bundle]
        return device

    def _end(self, bundle: int, at: int, start: float, device: Sequence[int], done: Sequence[float]) -> float:
        latency = seconds = 0.0
        for value in self.reads[bundle]:
            maker = self.maker[value]
            if self.is_made[value]:
                start = max(start, done[maker])
            if device[maker] != at:
                latency = max(latency, self.latency[device[maker]][at])
                seconds += self.sizes[value] * self.per_byte[device[maker]][at]
        return start + latency + seconds + self.seconds[at][bundle]

    def latency_of(self, device: Sequence[int]) -> tuple[float, list[float]]:
        """Of a lone batch if each bundle is a stage, and when each has run; a value is received once on a device."""
        free, there = [0.0] * len(self.latency), [0] * len(self.sizes)
        done = [0.0] * len(device)
        reads, makers, is_made, sizes = self.reads, self.maker, self.is_made, self.sizes
        for bundle in self.order:
            at = device[bundle]
            start, latency, seconds = free[at], 0.0, 0.0
            for value in reads[bundle]:
                maker = makers[value]
                source = device[maker]
                if is_made[value] and done[maker] > start:
                    start = done[maker]
                if source != at and not there[value] >> at & 1:
                    there[value] |= 1 << at
                    seconds += sizes[value] * self.per_byte[source][at]
                    if self.latency[source][at] > latency:
                        latency = self.latency[source][at]
            end = done[bundle] = start + latency + seconds + self.seconds[at][bundle]
            latency = 0.0
            for value in self.makes[bundle]:
                slowest = 0.0
                for target in {device[reader] for reader in self.readers[value]}:
                    if target != at:
                        latency = max(latency, self.latency[at][target])
                        slowest = max(slowest, sizes[value] * self.per_byte[at][target])
                end += slowest
            free[at] = end + latency
        return max(done), done

    def assignment(self, device: Sequence[int]) -> Assignment:
        """A stage for each run of bundles on a device of which only the first receives and only the last sends."""
        stage_of_bundle = [0] * len(device)
        open_stage: dict[int, int] = {}
        device_of_stage: list[int] = []
        for bundle in self.order:
            at = device[bundle]
            receives = any(device[self.maker[value]] != at for value in self.reads[bundle])
            sends = any(device[reader] != at for value in self.makes[bundle] for reader in self.readers[value])
            if receives or at not in open_stage:
                open_stage[at] = len(device_of_stage)
                device_of_stage.append(at)
            stage_of_bundle[bundle] = open_stage[at]
            if sends:
                del open_stage[at]
        return self.bundles.assignment(stage_of_bundle, device_of_stage)


class _Search:
    """`num_schedules` may be looked at. Ends at `target` seconds."""

    def __init__(self, tasks: _Tasks, target: float, num_schedules: int, out_of_time: OutOfTime) -> None:
        self._tasks, self._target, self._left, self._out_of_time = tasks, target, num_schedules, out_of_time
        self._room: list[float] = tasks.problem.device_memory_bytes.astype(np.float64).tolist()
        self._random = random.Random(0)
        self._chain_of = _chains(tasks.bundles)

    def run(self, starts: Sequence[list[int]]) -> list[list[int]]:
        """The starts, and the best that the search comes to from the better one."""
        self._best = min(starts, key=self._value)
        self._best_value = self._value(self._best)
        here, value, in_vain = list(self._best), self._best_value, 0
        while self._left > 0 and self._best_value > self._target * (1 + 1e-9) and len(self._room) > 1:
            if self._out_of_time():
                break
            if in_vain >= _PATIENCE:
                here = list(self._best)
                for _ in range(self._random.randint(2, 4)):
                    self._move(here)
                value, in_vain = self._value(here), 0
            other = list(here)
            self._move(other)
            latency = self._value(other)
            in_vain = in_vain if latency < value * (1 - NEGLIGIBLE) else in_vain + 1
            if latency <= value:
                here, value = other, latency
                if value < self._best_value * (1 - NEGLIGIBLE):
                    self._best, self._best_value = list(here), value
        return [*starts, self._best]

    def _value(self, device: list[int]) -> float:
        """inf where the states do not fit."""
        self._left -= 1
        state_bytes = [0.0] * len(self._room)
        for at, size in zip(device, self._tasks.state_bytes, strict=True):
            state_bytes[at] += size
        if any(size > room for size, room in zip(state_bytes, self._room, strict=True)):
            return float("inf")
        return self._tasks.latency_of(device)[0]

    def _move(self, device: list[int]) -> None:
        """A bundle, a part of its chain or all of it goes elsewhere."""
        bundles = self._some()
        at = device[bundles[0]]
        target = self._random.randrange(len(self._room) - 1)
        target += target >= at
        for bundle in bundles:
            device[bundle] = target

    def _some(self) -> Sequence[int]:
        bundle = self._random.randrange(len(self._chain_of))
        chain = self._chain_of[bundle]
        kind = self._random.randrange(3)
        if kind == 0 or len(chain) == 1:
            return (bundle,)
        place = chain.index(bundle)
        return chain if kind == 1 else chain[place:] if self._random.random() < 0.5 else chain[: place + 1]


def _chains(bundles: Bundles) -> list[tuple[int, ...]]:
    """By bundle: those before and after it that have one neighbour on either side."""
    chain_of: list[tuple[int, ...]] = [()] * bundles.count
    for bundle in range(bundles.count):
        before = bundles.before[bundle]
        if len(before) == 1 and len(bundles.after[before[0]]) == 1:
            continue
        chain = [bundle]
        while len(bundles.after[chain[-1]]) == 1 and len(bundles.before[bundles.after[chain[-1]][0]]) == 1:
            chain.append(bundles.after[chain[-1]][0])
        for member in chain:
            chain_of[member] = tuple(chain)
    return chain_of


def join_stages(problem: PartitionProblem, bundles: Bundles, best: Scored, objective: Objective) -> Scored:
    """Stages of one device that follow each other on it become one, where nothing gets worse by it."""
    left = MAX_JUDGED
    stage = best.assignment.num_stages - 1
    while stage > 0 and left > 0:
        devices = best.assignment.device_of_stage
        before = next((other for other in range(stage - 1, -1, -1) if devices[other] == devices[stage]), None)
        joined = None if before is None else _joined(bundles, best.assignment, before, stage)
        if joined is not None:
            left -= problem.num_values * joined.num_stages
            other = score(problem, joined, objective)
            if other.fits and other.value <= best.value * (1 + NEGLIGIBLE):
                best = other
        stage -= 1
    return best


def _joined(bundles: Bundles, assignment: Assignment, one: int, other: int) -> Assignment | None:
    """With the later stage in the earlier one, or the other way round; None where stages between wait for both ways."""
    stages = np.array(assignment.stage_of_node, dtype=np.int64)
    stage_of_bundle = [int(stages[members[0]]) for members in bundles.members]
    arcs = {
        (stage_of_bundle[bundle], stage_of_bundle[reader])
        for bundle, readers in enumerate(bundles.after)
        for reader in readers
    }
    if not any(one < target for source, target in arcs if source == one and target < other):
        remaining, gone = other, one
    elif not any(one < source for source, target in arcs if target == other and source != one):
        remaining, gone = one, other
    else:
        return None
    stages[stages == gone] = remaining
    stages -= stages > gone
    devices = assignment.device_of_stage
    return Assignment(
        stage_of_node=tuple(stages.tolist()),
        device_of_stage=(*devices[:gone], *devices[gone + 1 :]),
    )
