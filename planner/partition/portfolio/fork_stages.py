"""A stage parted into stages that run side by side, where each device runs one stage and a lone batch is to be quick.

A stage begins when all that it reads is there, so stages along one order run in turn. Time is gained where a stretch of
a stage falls into pieces that read nothing of each other: these become stages on devices of their own, between one with
what runs before the stretch and one with what runs behind it. Local search does not come there, since each step on the
way costs messages and gains nothing. Which stretches are worth so many devices is a knapsack over the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.assignment import Assignment, contiguous
from planner.partition.bounds.work import node_state_bytes
from planner.partition.portfolio.cut_search import Line
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.traffic import UNKNOWN

# Bundles that are looked at for stretches, from all beginnings together: half a second.
_MAX_STEPS = 300_000
# Pieces side by side; between them every count is tried.
_MOST_PIECES = 16
# Reads and values that judging layouts may look at, and layouts that are judged in any case.
_MAX_JUDGED, _MIN_LAYOUTS = 3e6, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Places `start` to `end` of the order, in one stage. `pieces`: their places, the one with the last place at the
    end, for the last stage is given all that the program returns. `gain_seconds`: saved for a batch."""

    start: int
    end: int
    pieces: tuple[tuple[int, ...], ...]
    num_devices: int
    gain_seconds: float


def offer_forks(portfolio: Portfolio) -> None:
    """Of all on the quickest device, and of the best assignment. With ever more of the idle devices each time."""
    problem, best = portfolio.problem, portfolio.best
    assert best is not None
    num_joins, seconds = _num_joins(portfolio.bundles), problem.compute_seconds.sum(axis=1)
    quickest = int(np.argmin(seconds))
    whole = contiguous(problem, (0, problem.num_nodes), (quickest,))
    if np.isfinite(seconds[quickest]) and best.assignment != whole:
        _offer_forks_of(portfolio, whole, num_joins)
    _offer_forks_of(portfolio, best.assignment, num_joins)


def _offer_forks_of(portfolio: Portfolio, assignment: Assignment, num_joins: Integers) -> None:
    problem = portfolio.problem
    num_idle = problem.num_devices - len(set(assignment.device_of_stage))
    if not num_idle:
        return
    line = _Order(problem, portfolio.bundles, assignment, num_joins)
    stretches = line.stretches(num_idle, int(_MAX_STEPS * portfolio.request.effort))
    choices = [*_choices(stretches, line.size, num_idle), *_alone(stretches)]
    most = max(_MIN_LAYOUTS, int(_MAX_JUDGED / (problem.num_values + problem.read_value.size)))
    for chosen in choices[-most:]:
        if portfolio.request.out_of_time():
            return
        portfolio.offer(line.forked(chosen))


def _num_joins(bundles: Bundles) -> Integers:
    """[bundles] on the way to each, at most: how many bundles read more than one other.

    A sum of many branches often follows each of them at once in the program, term by term. In the order of these
    numbers all branches come first, side by side, and then the sum.
    """
    num_joins = np.zeros(bundles.count, dtype=np.int64)
    for bundle in topological_order(bundles.before, bundles.after):
        before = bundles.before[bundle]
        num_joins[bundle] = max((num_joins[other] for other in before), default=0) + (len(before) > 1)
    return num_joins


class _Order:
    """The bundles stage by stage, as numbers of places. `rank`: see Line."""

    def __init__(self, problem: PartitionProblem, bundles: Bundles, assignment: Assignment, rank: Integers) -> None:
        line = Line(bundles, assignment, rank)
        self._problem, self._bundles, self._layout, self.size = problem, bundles, line.layout, line.length
        first = np.array([members[0] for members in bundles.members])
        place = line.place_of_node[first]
        self._bundle_at = np.argsort(place)
        self._before = [[int(place[other]) for other in bundles.before[bundle]] for bundle in self._bundle_at]
        num_after = [len(bundles.after[bundle]) for bundle in self._bundle_at]
        bounds = self._layout.boundaries
        self._forks = {0, *bounds[:-1], *(at + 1 for at, readers in enumerate(num_after) if readers > 1)}
        self._joins = {*bounds[1:], *(at for at, makers in enumerate(self._before) if len(makers) > 1)}
        stage_of_place = np.repeat(np.arange(len(self._layout.devices)), np.diff(bounds))
        self._seconds_of_device = np.array(
            [
                np.bincount(bundles.bundle_of_node, row, bundles.count)[self._bundle_at]
                for row in problem.compute_seconds
            ]
        )
        own = np.array(self._layout.devices)[stage_of_place]
        self._seconds = self._seconds_of_device[own, np.arange(self.size)].tolist()
        state_bytes = np.bincount(bundles.bundle_of_node, node_state_bytes(problem), bundles.count)
        self._state_bytes, self._room = state_bytes[self._bundle_at], problem.device_memory_bytes
        self._arcs = self._values_passed(place)
        # By place: (value, the place that makes it) of all that is made elsewhere.
        self._reads: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for value, maker, reader in zip(*(column.tolist() for column in self._arcs), strict=True):
            self._reads[reader].append((value, maker))

    def _values_passed(self, place: Integers) -> tuple[Integers, Integers, Integers]:
        """Values, the places that make them and others that read them."""
        problem, owner = self._problem, self._bundles.bundle_of_node
        made_by = problem.value_producer[problem.read_value]
        inner = made_by >= 0
        makers, readers = place[owner[made_by[inner]]], place[owner[problem.read_node[inner]]]
        values, makers, readers = np.unique(np.stack([problem.read_value[inner], makers, readers]), axis=1)
        passed = makers != readers
        return values[passed], makers[passed], readers[passed]

    def stretches(self, num_idle: int, max_steps: int) -> list[_Stretch]:
        """For each beginning and number of pieces the one that gains most, if any gains."""
        bounds = self._layout.boundaries
        starts = sorted(start for start in self._forks if start < self.size)
        longest = max(2, max_steps // max(1, len(starts)))
        ends = np.array(bounds[1:])
        best: dict[tuple[int, int], _Stretch] = {}
        for start in starts:
            stage = int(np.searchsorted(ends, start, side="right"))
            low, high = bounds[stage], bounds[stage + 1]
            for end, pieces, messages in self._pieces_behind(start, min(high, start + longest)):
                has_more = (start > low) + (end < high)
                for one in self._gains(start, end, pieces, messages, has_more, num_idle):
                    key = start, len(one.pieces)
                    if one.gain_seconds > (best[key].gain_seconds if key in best else 0.0):
                        best[key] = one
        return list(best.values())

    def _pieces_behind(self, start: int, high: int) -> Iterator[tuple[int, list[tuple[float, list[int]]], float]]:
        """Ends before a join, the pieces up to there with their seconds, and those of messages into the stretch and out
        of it; where the longest piece leaves more than these to the others."""
        sizes, rate = self._problem.value_bytes, float(self._problem.best_seconds_per_byte[UNKNOWN].min())
        latency = float(self._problem.best_latency_seconds[UNKNOWN].min())
        piece_of: dict[int, list[int]] = {}
        pieces: dict[int, tuple[float, list[int]]] = {}
        # Of pieces; the longest only grows.
        total = longest = 0.0
        entering: set[int] = set()
        entering_bytes = 0
        for at in range(start, high):
            own, work = [at], self._seconds[at]
            total += work
            for maker in self._before[at]:
                other = piece_of.get(maker)
                if other is not None and other is not own:
                    work += pieces.pop(id(other))[0]
                    own, other = (own, other) if len(own) >= len(other) else (other, own)
                    own += other
                    piece_of.update(dict.fromkeys(other, own))
            piece_of[at] = own
            pieces[id(own)] = work, own
            longest = max(longest, work)
            for value, maker in self._reads[at]:
                if maker < start and value not in entering:
                    entering.add(value)
                    entering_bytes += int(sizes[value])
            end = at + 1
            if len(pieces) > 1 and end in self._joins:
                joined = self._reads[end] if end < self.size else ()
                leaving_bytes = sum(int(sizes[value]) for value, maker in joined if maker >= start)
                messages = 2 * latency + rate * (entering_bytes + leaving_bytes)
                if total - longest > messages:
                    yield end, list(pieces.values()), messages

    def _gains(
        self,
        start: int,
        end: int,
        pieces: list[tuple[float, list[int]]],
        messages: float,
        has_more: int,
        num_idle: int,
    ) -> Iterator[_Stretch]:
        work = sorted(((seconds, min(piece), piece) for seconds, piece in pieces), reverse=True)
        total = sum(seconds for seconds, _, _ in work)
        for count in range(2, min(len(work), _MOST_PIECES, num_idle + 1 - has_more) + 1):
            loads, members = [0.0] * count, [list[int]() for _ in range(count)]
            for seconds, _, piece in work:
                least = min(range(count), key=lambda own: (loads[own], len(members[own])))
                loads[least] += seconds
                members[least] += piece
            yield _Stretch(
                start=start,
                end=end,
                pieces=tuple(sorted((tuple(sorted(own)) for own in members), key=lambda own: own[-1])),
                num_devices=count + has_more - 1,
                gain_seconds=total - max(loads) - messages,
            )
            if max(loads) <= work[0][0]:
                return

    def forked(self, chosen: Sequence[_Stretch]) -> Assignment:
        """Whole stages keep their devices. The longest of the new ones goes to the quickest device, each other to that
        which is done soonest with it, what it exchanges with the longest one's device included; all with room."""
        bounds, devices = self._layout.boundaries, self._layout.devices
        stages: list[Sequence[int]] = []
        device_of_stage: list[int] = []
        forked, free = list[int](), [device for device in range(self._problem.num_devices) if device not in devices]
        for stage, device in enumerate(devices):
            inside = [one for one in chosen if bounds[stage] <= one.start < bounds[stage + 1]]
            parts: list[Sequence[int]] = []
            at = bounds[stage]
            for one in inside:
                parts += [range(at, one.start), *one.pieces]
                at = one.end
            parts = [part for part in [*parts, range(at, bounds[stage + 1])] if part]
            if inside:
                forked += range(len(stages), len(stages) + len(parts))
                free.append(device)
            stages += parts
            device_of_stage += [device] * len(parts)
        stage_of_place = np.empty(self.size, dtype=np.int64)
        for stage, places in enumerate(stages):
            stage_of_place[list(places)] = stage
        exchanged = self._exchanged_bytes(stage_of_place, len(stages))
        forked.sort(key=lambda stage: -sum(self._seconds[at] for at in stages[stage]))
        per_byte, latency = self._problem.link_seconds_per_byte, self._problem.link_latency_seconds
        to_longest, byte_to_longest = np.zeros(self._problem.num_devices), np.zeros(self._problem.num_devices)
        for stage in forked:
            places = list(stages[stage])
            messages = to_longest + exchanged[stage] * byte_to_longest
            seconds = self._seconds_of_device[:, places].sum(axis=1) + messages
            has_room = self._state_bytes[places].sum() <= self._room
            device = min(free, key=lambda device: (not has_room[device], seconds[device], device))
            device_of_stage[stage] = device
            free.remove(device)
            if stage == forked[0]:
                to_longest = latency[device] + latency[:, device]
                byte_to_longest = np.maximum(per_byte[device], per_byte[:, device])
        stage_of_bundle = np.empty(self.size, dtype=np.int64)
        stage_of_bundle[self._bundle_at] = stage_of_place
        return self._bundles.assignment(stage_of_bundle, device_of_stage)

    def _exchanged_bytes(self, stage_of_place: Integers, num_stages: int) -> Integers:
        """By stage: of the values that it reads or makes and another one makes or reads, each once."""
        values, makers, readers = self._arcs
        crossing = stage_of_place[makers] != stage_of_place[readers]
        pairs = np.concatenate(
            [values[crossing] * num_stages + stage_of_place[ends[crossing]] for ends in (makers, readers)]
        )
        values, stages = np.divmod(np.unique(pairs), num_stages)
        return np.bincount(stages, self._problem.value_bytes[values], num_stages).astype(np.int64)


def _alone(stretches: list[_Stretch]) -> Iterator[list[_Stretch]]:
    """For each number of pieces the one that gains most. Where devices are unlike, a few quick ones may be worth more
    than the many that most gain is reckoned for."""
    best: dict[int, _Stretch] = {}
    for one in stretches:
        if len(one.pieces) not in best or one.gain_seconds > best[len(one.pieces)].gain_seconds:
            best[len(one.pieces)] = one
    for count in sorted(best):
        yield [best[count]]


def _choices(stretches: list[_Stretch], size: int, num_idle: int) -> Iterator[list[_Stretch]]:
    """For ever more devices, the stretches apart from each other that gain most together, where more gain more."""
    gain = np.zeros((size + 1, num_idle + 1))
    last = np.full((size + 1, num_idle + 1), -1, dtype=np.int64)
    ending: dict[int, list[int]] = {}
    for index, one in enumerate(stretches):
        ending.setdefault(one.end, []).append(index)
    for end in range(1, size + 1):
        gain[end] = gain[end - 1]
        for index in ending.get(end, ()):
            one = stretches[index]
            with_it = gain[one.start, : num_idle + 1 - one.num_devices] + one.gain_seconds
            better = with_it > gain[end, one.num_devices :]
            gain[end, one.num_devices :][better] = with_it[better]
            last[end, one.num_devices :][better] = index
    told = 0.0
    for count in range(1, num_idle + 1):
        if gain[size, count] <= told:
            continue
        told = gain[size, count]
        chosen, end, left = list[_Stretch](), size, count
        while end > 0:
            if last[end, left] >= 0:
                one = stretches[last[end, left]]
                chosen.append(one)
                end, left = one.start, left - one.num_devices
            else:
                end -= 1
        yield chosen[::-1]
