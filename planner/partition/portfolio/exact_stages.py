"""The least latency, bottleneck or memory over every choice of stages and devices, by branch and bound.

Stages are appended in the order in which they run. What is known of a prefix of stages only grows with those behind it:
they add to what its stages send, never take away. So its times, loads or bytes, and the least that the bundles left
over add to them, bound every assignment that begins so. List scheduling fixes the order of the bundles, and with it
which of them run in the last stage, where all that the program returns is received; here the order is part of the
choice. A device runs any number of stages where that is asked for (`free`), else one: then it is never free again.

Exponential in the bundles: for small programs, and counted in steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.bounds.longest_path import neighbours
from planner.partition.evaluate import evaluate, times_of_lone_batch
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.memory_tiers import everything_bytes
from planner.partition.portfolio.portfolio import PROVEN, Portfolio
from planner.partition.traffic import AHEAD

# More bundles have more sets that may be the next stage than are worth listing.
MAX_BUNDLES = 10
# Prefixes that may be looked at: about three seconds, which all of 109 random programs of up to eight nodes but one
# stay within for their latency.
MAX_PREFIXES = 150_000
# Of the best value: what is less than this below it is not searched for, and counts as proven.
_WITHIN = PROVEN / 2


def least_of_all(portfolio: Portfolio) -> None:
    """Offers each better assignment that it comes to; the best one is proven if the prefixes suffice."""
    search = _SEARCHES[portfolio.request.objective](portfolio)
    if search.run() and portfolio.best is not None:
        portfolio.prove(search.limit)


def is_small(portfolio: Portfolio) -> bool:
    request = portfolio.request
    plain = not (request.num_stages or portfolio.has_copies) and portfolio.problem.training is None
    return plain and request.objective in _SEARCHES and portfolio.bundles.count <= MAX_BUNDLES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefix:
    """Stages that run first, and their times where no other stage followed. `done` [stages] when each has run.

    `members`: the bundles of all of them, `bundles` of each. `used_bytes` of each device, `free`: when it may run more,
    `loads`: its seconds of each microbatch. `sends` [stages]: the largest latency that it pays, and the seconds of each
    value.
    """

    members: int
    bundles: tuple[int, ...]
    devices: tuple[int, ...]
    received: tuple[float, ...]
    sources: tuple[tuple[int, ...], ...]
    sends: tuple[tuple[float, dict[int, float]], ...]
    used_bytes: tuple[int, ...]
    done: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()


class _Search(ABC):
    """Sets of bundles are bits of a number. `limit`: what an assignment has to be below."""

    # Whether it takes what devices hold, also where all of it fits any.
    counts_bytes = False

    def __init__(self, portfolio: Portfolio) -> None:
        self._portfolio, self._problem, bundles = portfolio, portfolio.problem, portfolio.bundles
        problem, owner, count = portfolio.problem, portfolio.bundles.bundle_of_node, portfolio.bundles.count
        self._left, self._is_free = int(MAX_PREFIXES * portfolio.request.effort), portfolio.request.free
        self._all = (1 << count) - 1
        self._before = [sum(1 << other for other in bundles.before[bundle]) for bundle in range(count)]
        self._seconds = [np.bincount(owner, row, count).tolist() for row in problem.compute_seconds]
        self._least: list[float] = np.array(self._seconds).min(axis=0).tolist()
        self._maker = [int(owner[node]) if node >= 0 else -1 for node in problem.value_producer]
        self._readers = [0] * problem.num_values
        self._reads: list[list[int]] = [[] for _ in range(count)]
        for value, node in zip(problem.read_value.tolist(), problem.read_node.tolist(), strict=True):
            bundle = int(owner[node])
            if not self._readers[value] >> bundle & 1:
                self._readers[value] |= 1 << bundle
                self._reads[bundle].append(value)
        self._sizes = problem.value_bytes.tolist()
        self._returned = np.flatnonzero(problem.value_returned).tolist()
        self._latency, self._per_byte = problem.link_latency_seconds.tolist(), problem.link_seconds_per_byte.tolist()
        self._rooms: list[int] = problem.device_memory_bytes.tolist()
        self._class_of = hosts_of(problem).alike
        self._is_tight = self.counts_bytes or min(self._rooms) < everything_bytes(problem)
        self._stage_bytes: dict[tuple[int, int], int] = {}
        self._set_limit()

    def _set_limit(self) -> None:
        self.limit = self._portfolio.best.value * (1 - _WITHIN) if self._portfolio.best else math.inf

    def run(self) -> bool:
        """Whether nothing was left out."""
        nothing = (0,) * len(self._rooms)
        empty = _Prefix(members=0, bundles=(), devices=(), received=(), sources=(), sends=(), used_bytes=nothing)
        stack = [iter([(0.0, empty)])]
        while stack:
            bound, prefix = next(stack[-1], (math.inf, None))
            if prefix is None:
                stack.pop()
            elif bound < self.limit:
                if prefix.members == self._all:
                    self._offer(prefix)
                else:
                    stack.append(self._longer(prefix))
            if self._left < 0 or self._portfolio.is_over:
                return self._portfolio.is_proven
        return True

    def _offer(self, prefix: _Prefix) -> None:
        stage_of_bundle = [
            next(stage for stage, own in enumerate(prefix.bundles) if own >> bundle & 1)
            for bundle in range(len(self._before))
        ]
        self._portfolio.offer(self._portfolio.bundles.assignment(stage_of_bundle, prefix.devices))
        self._set_limit()

    def _longer(self, prefix: _Prefix) -> Iterator[tuple[float, _Prefix]]:
        """By one stage, those of least bound first."""
        used = set(prefix.devices)
        devices = [
            device
            for device, alike in self._class_of.items()
            if (self._is_free if device in used else device == next(other for other in alike if other not in used))
        ]
        longer = []
        for own in self._ready_sets(prefix.members):
            for device in devices:
                self._left -= 1
                if self._left < 0:
                    return iter(())
                one = self._appended(prefix, own, device)
                bound = math.inf if one is None else self._bound(one)
                if one is not None and bound < self.limit:
                    longer.append((bound, one))
        longer.sort(key=lambda pair: (pair[0], -pair[1].members.bit_count()))
        return iter(longer)

    def _ready_sets(self, members: int) -> list[int]:
        """Whatever may be the next stage: each bundle with all that it waits for, there or before."""
        ready = []
        left = self._all & ~members
        own = left
        while own:
            there = members | own
            if all(not own >> bundle & 1 or not before & ~there for bundle, before in enumerate(self._before)):
                ready.append(own)
            own = (own - 1) & left
        return ready

    def _appended(self, prefix: _Prefix, own: int, device: int) -> _Prefix | None:
        """None where it does not fit, or another order of the same stages stands for it."""
        stage, members = len(prefix.devices), prefix.members | own
        entering = self._entering(prefix, own, members) if stage else []
        given_more = any(source == 0 and self._maker[value] >= 0 for value, source in entering)
        sources = tuple(sorted({source if source or given_more else AHEAD for _, source in entering}))
        # Memory may tell them apart.
        if stage and not self._is_tight and prefix.devices[-1] == device and self._join(prefix, sources, members):
            return None
        if stage > 1 and members != self._all and self._change_places(prefix, own):
            return None
        used_bytes = prefix.used_bytes
        if self._is_tight:
            filled = used_bytes[device] + self._bytes(prefix.members, own)
            if filled > self._rooms[device]:
                return None
            used_bytes = (*used_bytes[:device], filled, *used_bytes[device + 1 :])
        sends, latency, transfer_seconds = list(prefix.sends), 0.0, 0.0
        for value, source in entering:
            at = prefix.devices[source]
            if at == device:
                continue
            one, seconds = self._latency[at][device], self._sizes[value] * self._per_byte[at][device]
            latency, transfer_seconds = max(latency, one), transfer_seconds + seconds
            largest, values = sends[source]
            sends[source] = max(largest, one), values | {value: max(values.get(value, 0.0), seconds)}
        return self._measured(
            _Prefix(
                members=members,
                bundles=(*prefix.bundles, own),
                devices=(*prefix.devices, device),
                received=(*prefix.received, latency + transfer_seconds),
                sources=(*prefix.sources, sources),
                sends=(*sends, (0.0, {})),
                used_bytes=used_bytes,
            )
        )

    @abstractmethod
    def _join(self, prefix: _Prefix, sources: tuple[int, ...], members: int) -> bool:
        """Whether the last stage and one after it on its device would do as well as one stage."""

    @abstractmethod
    def _change_places(self, prefix: _Prefix, own: int) -> bool:
        """Whether the last stage could as well come after this one, which is looked at in its place."""

    @abstractmethod
    def _measured(self, prefix: _Prefix) -> _Prefix:
        """With the times or loads of its stages."""

    @abstractmethod
    def _bound(self, prefix: _Prefix) -> float:
        """What no assignment that begins so undercuts; of a whole one its value."""

    def _seconds_of_stages(self, prefix: _Prefix) -> list[float]:
        return [
            sum(self._seconds[device][bundle] for bundle in range(len(self._before)) if own >> bundle & 1)
            for device, own in zip(prefix.devices, prefix.bundles, strict=True)
        ]

    def _left_work(self, prefix: _Prefix) -> float:
        """Seconds of what is left, each bundle where it runs the quickest."""
        left = self._all & ~prefix.members
        return sum(seconds for bundle, seconds in enumerate(self._least) if left >> bundle & 1)

    def _entering(self, prefix: _Prefix, own: int, members: int) -> list[tuple[int, int]]:
        """(value, the stage that sends it) of all that the next stage is given; see traffic."""
        stage, last = len(prefix.devices), members == self._all
        if self._problem.relay:
            needed = self._all & ~prefix.members
            returned = set(self._returned)
            return [
                (value, stage - 1)
                for value, maker in enumerate(self._maker)
                if (maker < 0 or prefix.members >> maker & 1) and (self._readers[value] & needed or value in returned)
            ]
        values = [value for value in range(len(self._maker)) if self._readers[value] & own]
        if last:
            values = sorted({*values, *self._returned})
        return [
            (value, self._stage_of(prefix, self._maker[value]))
            for value in values
            if self._maker[value] < 0 or not own >> self._maker[value] & 1
        ]

    def _stage_of(self, prefix: _Prefix, bundle: int) -> int:
        """What the program takes is handed on by the first."""
        return 0 if bundle < 0 else next(at for at, own in enumerate(prefix.bundles) if own >> bundle & 1)

    def _bytes(self, members: int, own: int) -> int:
        """Of the stage between what has run and what is left, by the one meaning."""
        if (members, own) not in self._stage_bytes:
            parts = [part for part in (members, own, self._all & ~(members | own)) if part]
            stage_of_bundle = [
                next(at for at, part in enumerate(parts) if part >> bundle & 1) for bundle in range(len(self._before))
            ]
            alone = self._portfolio.bundles.assignment(stage_of_bundle, (0,) * len(parts))
            self._stage_bytes[members, own] = evaluate(self._problem, alone).stages[parts.index(own)].peak_bytes
        return self._stage_bytes[members, own]


class _Latency(_Search):
    """When all stages have run, of a lone batch."""

    def __init__(self, portfolio: Portfolio) -> None:
        super().__init__(portfolio)
        # Which have to have run: others only have an order.
        self._makers, readers = neighbours(self._problem, portfolio.bundles)
        self._order = topological_order(portfolio.bundles.before, portfolio.bundles.after)
        owner, count = portfolio.bundles.bundle_of_node, portfolio.bundles.count
        self._deliveries = [np.bincount(owner, row, count).tolist() for row in self._problem.delivery_seconds]
        # Each stage for another, by what it is given.
        self._all_wait = all(
            any(self._maker[value] != bundle for value in reads) for bundle, reads in enumerate(self._reads)
        )
        # A relay in which some value always goes on: each stage waits for the one before it.
        returning = {self._maker[value] for value in self._returned}
        self._is_chain = self._problem.relay and all(readers[at] or at in returning for at in range(len(readers)))

    def _join(self, prefix: _Prefix, sources: tuple[int, ...], members: int) -> bool:
        """They wait for the same, and nobody but the second reads what the first has."""
        if not self._all_wait:
            return False
        if self._problem.relay:
            return True
        last = len(prefix.devices) - 1
        if not set(sources) <= {*prefix.sources[-1], last, *([AHEAD] if last == 0 else [])}:
            return False
        left = self._all & ~members
        return not any(
            (self._readers[value] & left or (left and value in self._returned))
            and (prefix.bundles[-1] >> maker & 1 if maker >= 0 else last == 0)
            for value, maker in enumerate(self._maker)
        )

    def _change_places(self, prefix: _Prefix, own: int) -> bool:
        return False

    def _measured(self, prefix: _Prefix) -> _Prefix:
        done, free = times_of_lone_batch(
            prefix.devices,
            prefix.sources,
            taken=self._taken(prefix),
            received=prefix.received,
            forward=self._seconds_of_stages(prefix),
            sent=[largest + sum(values.values()) for largest, values in prefix.sends],
        )
        if not self._is_free:
            free = dict.fromkeys(free, math.inf)
        return replace(
            prefix, done=tuple(done), free=tuple(free.get(device, 0.0) for device in range(len(self._rooms)))
        )

    def _taken(self, prefix: _Prefix) -> float:
        """When the first stage has the inputs."""
        row, own = self._deliveries[prefix.devices[0]], prefix.bundles[0]
        return float(sum(seconds for bundle, seconds in enumerate(row) if own >> bundle & 1))

    def _bound(self, prefix: _Prefix) -> float:
        bound = max(prefix.done)
        left = self._all & ~prefix.members
        if not left or bound >= self.limit:
            return bound
        work = self._left_work(prefix)
        bound = max(bound, prefix.done[-1] + work if self._is_chain else _shared(prefix.free, work))
        ends = [0.0] * len(self._before)
        for bundle in self._order:
            if left >> bundle & 1 and bound < self.limit:
                # A stage with both receives for both at once, so only the first of a path is charged for it.
                behind = max((ends[other] for other in self._makers[bundle]), default=0.0)
                alone = self._earliest(prefix, self._reads[bundle], bundle)
                ends[bundle] = max(alone, behind + self._least[bundle])
                bound = max(bound, ends[bundle])
        if not self._problem.relay:
            bound = max(bound, self._earliest(prefix, self._returned, -1))
        return bound

    def _earliest(self, prefix: _Prefix, values: list[int], bundle: int) -> float:
        """When the bundle (-1: any) has run where it ends first and is alone, receiving what of the values is there."""
        inputs = [
            (value, self._stage_of(prefix, maker))
            for value in values
            if (maker := self._maker[value]) < 0 or prefix.members >> maker & 1
        ]
        # What the program takes may go ahead.
        start = max((prefix.done[source] for value, source in inputs if self._maker[value] >= 0), default=0.0)
        best = math.inf
        for device, free in enumerate(prefix.free):
            latency = transfer_seconds = 0.0
            if not self._problem.relay:
                for value, source in inputs:
                    at = prefix.devices[source]
                    if at != device:
                        latency = max(latency, self._latency[at][device])
                        transfer_seconds += self._sizes[value] * self._per_byte[at][device]
            seconds = self._seconds[device][bundle] if bundle >= 0 else 0.0
            best = min(best, max(start, free) + latency + transfer_seconds + seconds)
        return best


class _OfAnyOrder(_Search):
    """What stages add up to, whichever runs first: but for the first and the last, which the caller is beside."""

    def _join(self, prefix: _Prefix, sources: tuple[int, ...], members: int) -> bool:
        return True

    def _change_places(self, prefix: _Prefix, own: int) -> bool:
        last = prefix.bundles[-1]
        if self._problem.relay or own & -own > last & -last:
            return False
        return not any(before & last for bundle, before in enumerate(self._before) if own >> bundle & 1)


class _Throughput(_OfAnyOrder):
    """Seconds of the most loaded device."""

    def _measured(self, prefix: _Prefix) -> _Prefix:
        loads = [0.0] * len(self._rooms)
        for device, received, seconds, (latency, values) in zip(
            prefix.devices, prefix.received, self._seconds_of_stages(prefix), prefix.sends, strict=True
        ):
            loads[device] += received + seconds + latency + sum(values.values())
        return replace(prefix, loads=tuple(loads))

    def _bound(self, prefix: _Prefix) -> float:
        bound, left = max(prefix.loads), self._all & ~prefix.members
        if not left or bound >= self.limit:
            return bound
        runs_more = enumerate(prefix.loads)
        loads = tuple(load for device, load in runs_more if self._is_free or device not in prefix.devices)
        return max(bound, _shared(loads, self._left_work(prefix)))


class _Memory(_OfAnyOrder):
    """The fullest device's share of its bytes."""

    counts_bytes = True

    def __init__(self, portfolio: Portfolio) -> None:
        super().__init__(portfolio)
        users: dict[int, int] = {}
        for state, node in zip(self._problem.use_state.tolist(), self._problem.use_node.tolist(), strict=True):
            if node < self._problem.num_nodes:
                users[state] = users.get(state, 0) | 1 << int(portfolio.bundles.bundle_of_node[node])
        self._users = [(int(self._problem.state_bytes[state]), bundles) for state, bundles in users.items()]

    def _measured(self, prefix: _Prefix) -> _Prefix:
        return prefix

    def _bound(self, prefix: _Prefix) -> float:
        left = self._all & ~prefix.members
        used = zip(prefix.used_bytes, self._rooms, strict=True)
        bound = max((filled / room for filled, room in used if filled), default=0.0)
        # Whoever uses a state holds it, and stages that follow are others.
        missing = sum(size for size, bundles in self._users if bundles & left)
        return max(bound, (sum(prefix.used_bytes) + missing) / max(1, sum(self._rooms)))


_SEARCHES: dict[Objective, type[_Search]] = {
    Objective.LATENCY: _Latency,
    Objective.THROUGHPUT: _Throughput,
    Objective.MEMORY: _Memory,
}


def _shared(free: tuple[float, ...], seconds: float) -> float:
    """When all devices have done the work if it were divided at will, each once it is free."""
    ends = math.inf
    total = seconds
    for count, start in enumerate(sorted(free), start=1):
        if start >= ends:
            break
        total += start
        ends = total / count
    return ends
