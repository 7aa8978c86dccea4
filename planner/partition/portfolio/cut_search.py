"""Local search on the true objective: cuts move, devices change places, stages join and part.

What bounds and additive models leave out (unequal links, latencies, liveness) is seen here. First improvement wins.
From a local optimum it goes on beside it, with some cuts and devices moved at random, until its trials are spent
(iterated local search, Lourenço et al. 2003). Stages are segments of some order of the program, so that a cut can be
moved by so many nodes; what such a layout takes at least leaves it out at a glance, or at a short look.

At last neighbouring stages join while that costs nothing: an idle device is better left out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import distinct_rows, hosts_of
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.request import Request
from planner.partition.score import NEGLIGIBLE, Scored, score
from planner.partition.traffic import exchange_seconds, gradient_exchange_seconds, traffic

# Reads and values by stage that all trials together may look at: about a second.
MAX_LOOKED_AT = 1e7
# What a trial costs however small the program is, in the same unit.
_TRIAL = 4000
# What a layout that is left out by its compute, or by its loads, costs as a share of one that is judged.
_GLANCE, _LOOK = 0.01, 0.2
_KICKS = 60
_STRIDES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def climb(portfolio: Portfolio, start: Scored) -> Scored:
    """No worse than `start`, which fits; ends at the portfolio's bound. Keeps devices apart where they are in `start`.

    Where copies on idle devices are asked for, every layout is judged with its own: a longer one may be better for
    having none.
    """
    search, target = _Climb(portfolio.problem, portfolio.bundles, portfolio.request, start), portfolio.bound
    while search.best.value > target * (1 + 1e-12) and not portfolio.request.out_of_time():
        if not (search.step() or search.kick()):
            break
    return search.best


class _Climb:
    def __init__(self, problem: PartitionProblem, bundles: Bundles, request: Request, start: Scored) -> None:
        self._line = line = Line(bundles, start.assignment)
        self._problem, self._objective = problem, request.objective
        self._num_stages, self._saturate = request.num_stages, request.saturate_host
        self._layout = self._best_layout = line.layout
        self._hosts = hosts_of(problem)
        self._alike = self._hosts.alike
        self._tried = {self._first_of_its_like(line.layout)}
        has_floor = self._objective is Objective.THROUGHPUT and not self._saturate
        self._floor = LoadFloor(problem, line) if has_floor else None
        size = problem.num_values + problem.read_value.size
        self._left = request.effort * MAX_LOOKED_AT
        self._fixed_cost, self._stage_cost = size, _TRIAL + problem.num_values
        self._random, self._kicks_left = random.Random(0), int(_KICKS * request.effort)
        # On a small program most kicks end where another one did.
        self._kicked: dict[LineLayout, Scored | None] = {}
        self.best = self._here = start

    def step(self) -> bool:
        """Moves to the first better neighbour; False if there is none, or trials are spent."""
        for layout in map(self._first_of_its_like, self._neighbours()):
            if layout in self._tried:
                continue
            self._tried.add(layout)
            neighbour = self._judged(layout, self._here.value)
            if self._left < 0:
                return False
            if neighbour is not None and neighbour.is_better_than(self._here):
                self._here, self._layout = neighbour, layout
                if neighbour.is_better_than(self.best):
                    self.best, self._best_layout = neighbour, layout
                return True
        return False

    def kick(self) -> bool:
        """Moves beside the best; False once trials or kicks are spent."""
        while self._left > 0 and self._kicks_left > 0:
            self._kicks_left -= 1
            layout = self._first_of_its_like(self._beside(self._best_layout))
            if layout not in self._kicked:
                self._kicked[layout] = self._judged(layout, float("inf"))
            start = self._kicked[layout]
            if start is not None and start.fits:
                self._here, self._layout = start, layout
                return True
        return False

    def _beside(self, layout: LineLayout) -> LineLayout:
        """Two cuts moved within their stages, and every other time two devices changed."""
        boundaries, devices = list(layout.boundaries), list(layout.devices)
        for _ in range(2 if len(devices) > 1 else 0):
            cut = self._random.randrange(1, len(devices))
            boundaries[cut] = self._random.randint(
                (boundaries[cut - 1] + boundaries[cut] + 1) // 2, (boundaries[cut] + boundaries[cut + 1]) // 2
            )
        if len(devices) > 1 and self._random.random() < 0.5:
            one, other = self._random.sample(range(len(devices)), 2)
            devices[one], devices[other] = devices[other], devices[one]
        return LineLayout(boundaries=tuple(boundaries), devices=tuple(devices))

    def _first_of_its_like(self, layout: LineLayout) -> LineLayout:
        """The same stages on the first devices of each class: no plan can tell those of a class apart."""
        num_taken: Counter[int] = Counter()
        names: dict[int, int] = {}
        for device in layout.devices:
            if device not in names:
                alike = self._alike[device]
                names[device] = alike[num_taken[alike[0]]]
                num_taken[alike[0]] += 1
        return LineLayout(boundaries=layout.boundaries, devices=tuple(names[device] for device in layout.devices))

    def _idle(self) -> list[int]:
        """The first of each class."""
        return sorted(self._hosts.one_of_each(set(range(self._problem.num_devices)) - set(self._layout.devices)))

    def _judged(self, layout: LineLayout, limit: float) -> Scored | None:
        """None for a layout whose loads alone are above the limit."""
        cost = self._fixed_cost + self._stage_cost * len(layout.devices)
        if self._floor is not None:
            self._left -= cost * _GLANCE
            if self._floor.compute_seconds(layout) > limit * (1 + NEGLIGIBLE):
                return None
            self._left -= cost * _LOOK
            if self._floor.load_seconds(layout) > limit * (1 + NEGLIGIBLE):
                return None
        self._left -= cost
        if self._left < 0:
            return None
        return score(self._problem, self._line.assignment(layout), self._objective, saturate=self._saturate)

    def _neighbours(self) -> Iterator[LineLayout]:
        """Those of the worst stage first."""
        order = self._by_load()
        for stage in order:
            yield from self._shifts(stage)
            yield from self._exchanges(stage)
            if not self._num_stages:
                yield from self._joins(stage)
                yield from self._parts(stage)

    def _by_load(self) -> list[int]:
        stages = self._here.evaluation.stages
        if self._objective is Objective.MEMORY:
            room = self._problem.device_memory_bytes
            loads = [s.peak_bytes / max(1, int(room[d])) for s, d in zip(stages, self._layout.devices, strict=True)]
        else:
            loads = [stage.load_seconds for stage in stages]
        return sorted(range(len(loads)), key=lambda stage: (-loads[stage], stage))

    def _shifts(self, stage: int) -> Iterator[LineLayout]:
        """The stage's own cuts inwards, then outwards."""
        boundaries = self._layout.boundaries
        for stride in _STRIDES:
            for cut, way in ((stage, 1), (stage + 1, -1), (stage, -1), (stage + 1, 1)):
                at = boundaries[cut] + way * stride
                if 0 < cut < len(boundaries) - 1 and boundaries[cut - 1] < at < boundaries[cut + 1]:
                    yield self._with(boundaries=(*boundaries[:cut], at, *boundaries[cut + 1 :]))

    def _exchanges(self, stage: int) -> Iterator[LineLayout]:
        devices = self._layout.devices
        for device in sorted({*devices, *self._idle()}):
            if device in self._alike[devices[stage]]:
                continue
            swapped = list(devices)
            for other, current in enumerate(devices):
                if current == device:
                    swapped[other] = devices[stage]
            swapped[stage] = device
            if len(set(swapped)) == len(set(devices)):
                yield self._with(devices=tuple(swapped))

    def _joins(self, stage: int) -> Iterator[LineLayout]:
        boundaries, devices = self._layout.boundaries, self._layout.devices
        for other in (stage - 1, stage + 1):
            if not 0 <= other < len(devices):
                continue
            cut = max(stage, other)
            for stays in (stage, other):
                left = cut - 1 if stays == cut else cut
                yield LineLayout(
                    boundaries=(*boundaries[:cut], *boundaries[cut + 1 :]),
                    devices=(*devices[:left], *devices[left + 1 :]),
                )

    def _parts(self, stage: int) -> Iterator[LineLayout]:
        boundaries, devices = self._layout.boundaries, self._layout.devices
        idle = self._idle()
        start, end = boundaries[stage], boundaries[stage + 1]
        cuts = sorted({start + (end - start) * part // 8 for part in range(1, 8)} - {start, end})
        for cut in cuts:
            for device in idle:
                for at in (stage, stage + 1):
                    yield LineLayout(
                        boundaries=(*boundaries[: stage + 1], cut, *boundaries[stage + 1 :]),
                        devices=(*devices[:at], device, *devices[at:]),
                    )

    def _with(self, *, boundaries: tuple[int, ...] = (), devices: tuple[int, ...] = ()) -> LineLayout:
        return LineLayout(boundaries=boundaries or self._layout.boundaries, devices=devices or self._layout.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLayout:
    """`boundaries` are positions in a `Line`, from 0 to its length; stage s on devices[s]."""

    boundaries: tuple[int, ...]
    devices: tuple[int, ...]


class Line:
    """The bundles stage by stage, in program order within each: a topological order of an assignment's own.

    `rank` [bundles]: those of a stage by these instead, which grow along reads; in program order where they are equal.
    """

    def __init__(self, bundles: Bundles, assignment: Assignment, rank: Integers | None = None) -> None:
        stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
        first = np.array([members[0] for members in bundles.members], dtype=np.int64)
        stage_of_bundle = stage_of_node[first]
        place = _depths(bundles) if _out_of_order(bundles) else np.arange(bundles.count)
        order = np.lexsort((place, stage_of_bundle) if rank is None else (place, rank, stage_of_bundle))
        self._position = np.empty(bundles.count, dtype=np.int64)
        self._position[order] = np.arange(bundles.count)
        self._bundle_of_node = bundles.bundle_of_node
        self.length = bundles.count
        ends = np.cumsum(np.bincount(stage_of_bundle, minlength=assignment.num_stages))
        self.layout = LineLayout(boundaries=(0, *ends.tolist()), devices=assignment.device_of_stage)

    @property
    def place_of_node(self) -> Integers:
        return np.asarray(self._position[self._bundle_of_node], dtype=np.int64)

    def stage_of_node(self, layout: LineLayout) -> Integers:
        inner = np.array(layout.boundaries[1:-1], dtype=np.int64)
        stages: Integers = np.searchsorted(inner, self.place_of_node, side="right")
        return stages

    def assignment(self, layout: LineLayout) -> Assignment:
        return Assignment(stage_of_node=tuple(self.stage_of_node(layout).tolist()), device_of_stage=layout.devices)


def _out_of_order(bundles: Bundles) -> bool:
    """Whether a bundle that spans others starts before what it reads."""
    return any(before and max(before) > bundle for bundle, before in enumerate(bundles.before))


def _depths(bundles: Bundles) -> Integers:
    """[bundles] places in a topological order."""
    places = np.empty(bundles.count, dtype=np.int64)
    places[topological_order(bundles.before, bundles.after)] = np.arange(bundles.count)
    return places


class LoadFloor:
    """For layouts without copies of stages."""

    def __init__(self, problem: PartitionProblem, line: Line) -> None:
        self._problem, self._line = problem, line
        kinds = distinct_rows(problem.work_seconds)
        self._kind = kinds.kind_of_row
        work = [np.bincount(line.place_of_node, row, line.length) for row in kinds.rows]
        # Infinite seconds would leave nothing to subtract; the exact judge sees them.
        self._before = np.zeros((len(work), line.length + 1))
        np.cumsum(np.where(np.isfinite(work), work, 0.0), axis=1, out=self._before[:, 1:])

    def compute_seconds(self, layout: LineLayout) -> float:
        """Of the device with the most work, transfers apart. O(stages)."""
        kind, ends = self._kind[list(layout.devices)], np.array(layout.boundaries)
        work = self._before[kind, ends[1:]] - self._before[kind, ends[:-1]]
        return float(np.bincount(layout.devices, work).max()) * (1 - 1e-12)

    def load_seconds(self, layout: LineLayout) -> float:
        """Of the most loaded device. O(reads log reads)."""
        kind, ends = self._kind[list(layout.devices)], np.array(layout.boundaries)
        work = self._before[kind, ends[1:]] - self._before[kind, ends[:-1]]
        copies = tuple((device,) for device in layout.devices)
        crossings = traffic(self._problem, self._line.stage_of_node(layout), len(copies)).crossings
        forward = exchange_seconds(self._problem, crossings, copies)
        back = gradient_exchange_seconds(self._problem, crossings, copies)
        loads = work + forward.received + forward.sent + back.received + back.sent
        return float(np.bincount(layout.devices, loads).max()) * (1 - 1e-12)


def fewest_stages(problem: PartitionProblem, bundles: Bundles, best: Scored, objective: Objective) -> Scored:
    """Of the same value. Cut after cut is left out, round and round, until none of them can be."""
    line, cut, kept = Line(bundles, best.assignment), 1, 0
    while kept < best.assignment.num_stages - 1:
        cut = cut if cut < best.assignment.num_stages else 1
        shorter = _without_cut(problem, line, best, objective, cut)
        if shorter is None:
            cut, kept = cut + 1, kept + 1
        else:
            best, line, kept = shorter, Line(bundles, shorter.assignment), 0
    return best


def _without_cut(problem: PartitionProblem, line: Line, best: Scored, objective: Objective, cut: int) -> Scored | None:
    """With both stages on the device of the one or the other, if the value stays; tried only if their work lets it."""
    boundaries, devices = line.layout.boundaries, line.layout.devices
    stage_of_node, both = np.asarray(best.assignment.stage_of_node), (cut - 1, cut)
    joined = np.isin(stage_of_node, both)
    for left_out in reversed(both):
        work = problem.work_seconds[devices[2 * cut - 1 - left_out], joined].sum()
        if objective is Objective.THROUGHPUT and work > best.value * (1 + 1e-9):
            continue
        layout = LineLayout(
            boundaries=(*boundaries[:cut], *boundaries[cut + 1 :]),
            devices=(*devices[:left_out], *devices[left_out + 1 :]),
        )
        shorter = score(problem, line.assignment(layout), objective)
        if shorter.fits and shorter.value <= best.value * (1 + NEGLIGIBLE):
            return shorter
    return None
