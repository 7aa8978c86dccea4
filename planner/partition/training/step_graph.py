"""The passes of a training step as numbered jobs of devices, and what each of them has to wait for, as arrays.

Pass (kind, stage, microbatch) has the number (kind x stages + stage) x microbatches + microbatch: forward, backward (or
backward for inputs, where it is split), backward for weights. It keeps its device from its first receive to its last
send. An arc says how long after one pass began another may begin: what a pass makes is there when it has computed and
been handed over, before all of it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.partition.objective import USUAL_WEIGHT_SHARE
from planner.partition.problem import Floats, Integers
from planner.partition.training.pipeline_order import Pass, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Of one microbatch. What is received and sent backward are gradients. Where backward passes are split, weights
    take `weight_share` of `backward`. `handover` is the part of `sent` that a receiver which waits has to wait for."""

    forward: float
    backward: float
    received: float
    sent: float
    gradients_received: float
    gradients_sent: float
    weight_share: float = USUAL_WEIGHT_SHARE
    handover: float = 0.0
    gradients_handover: float = 0.0

    @property
    def weight_gradients(self) -> float:
        return self.backward * self.weight_share

    @property
    def input_gradients(self) -> float:
        return self.backward - self.weight_gradients if math.isfinite(self.backward) else self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Gradients that devices sum once all of them are done with their passes."""

    devices: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """`copies` [stages]: devices, of which copy j of r takes the microbatches k with k mod r = j. `edges` lead from an
    earlier stage to a later one, `gradient_edges` are those whose gradients come back."""

    copies: tuple[tuple[int, ...], ...]
    stages: tuple[StageSeconds, ...]
    edges: tuple[tuple[int, int], ...]
    gradient_edges: tuple[tuple[int, int], ...]
    reductions: tuple[Reduction, ...] = ()
    microbatches: int


class Jobs(NamedTuple):
    """Arrays by pass [p], as compiled code takes them: the rank of its `device` in `device_ids`, the `seconds` that it
    takes there, and those until what it makes is handed over (`lag`).

    `arcs_into` [p + 1] and `arcs_from` [p + 1] are where a pass's arcs begin: those to it have a source each, those
    from it a target; whatever an arc leads to begins its delay after its source at the earliest. `closing` [d]: seconds
    of the sums behind a device's last pass.
    """

    device: Integers
    seconds: Floats
    lag: Floats
    closing: Floats
    arcs_into: Integers
    into_source: Integers
    into_delay: Floats
    arcs_from: Integers
    out_target: Integers
    out_delay: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepGraph:
    """The jobs, and what their numbers mean. `is_split`: backward passes are two each."""

    num_stages: int
    microbatches: int
    is_split: bool
    device_ids: tuple[int, ...]
    jobs: Jobs

    @property
    def num_passes(self) -> int:
        return int(self.jobs.seconds.size)

    def sequence(self, orders: Mapping[int, Sequence[Step]]) -> tuple[Integers, Integers]:
        """The passes of all devices, one device after another, and where each device's begin."""
        lengths = [len(orders[device]) for device in self.device_ids]
        numbers = [self._number(step) for device in self.device_ids for step in orders[device]]
        return np.array(numbers, dtype=np.int64), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def orders(self, sequence: Integers) -> dict[int, tuple[Step, ...]]:
        """The inverse of `sequence`."""
        steps: dict[int, list[Step]] = {device: [] for device in self.device_ids}
        names = _KINDS[self.is_split]
        for number in sequence.tolist():
            row, microbatch = divmod(number, self.microbatches)
            kind, stage = divmod(row, self.num_stages)
            steps[self.device_ids[self.jobs.device[number]]].append(Step(names[kind], stage, microbatch))
        return {device: tuple(order) for device, order in steps.items()}

    def _number(self, step: Step) -> int:
        return (_NUMBERS[step.kind] * self.num_stages + step.stage) * self.microbatches + step.microbatch


_KINDS = {
    False: (Pass.FORWARD, Pass.BACKWARD),
    True: (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT),
}
_NUMBERS = {Pass.FORWARD: 0, Pass.BACKWARD: 1, Pass.BACKWARD_INPUT: 1, Pass.BACKWARD_WEIGHT: 2}
FORWARD, BACKWARD, WEIGHT = range(3)


def step_graph(step: TrainingStep, *, split: bool, most_kept: Sequence[int] = ()) -> StepGraph:
    """With `most_kept` [stages], each copy takes its microbatches in order and keeps at most so many of them."""
    device_ids = tuple(dict.fromkeys(device for devices in step.copies for device in devices))
    rank = {device: index for index, device in enumerate(device_ids)}
    kinds = len(_KINDS[split])
    seconds, lag = np.array([_durations(stage, split=split) for stage in step.stages]).transpose(1, 2, 0)
    turns = range(step.microbatches)
    device = np.array([[rank[own[k % len(own)]] for k in turns] for own in step.copies], dtype=np.int64)
    arcs = _ArcList(len(step.stages), step.microbatches)
    messages = [(FORWARD, source, target) for source, target in step.edges]
    messages += [(BACKWARD, target, source) for source, target in step.gradient_edges]
    for kind, source, target in messages:
        arcs.add((kind, source), (kind, target), lag[kind, source])
    for stage, own in enumerate(step.copies):
        for kind in range(1, kinds):
            arcs.add((kind - 1, stage), (kind, stage), seconds[kind - 1, stage])
        if most_kept:
            for kind in range(kinds):
                arcs.add((kind, stage), (kind, stage), seconds[kind, stage], later=len(own))
            room = most_kept[stage] * len(own)
            arcs.add((kinds - 1, stage), (FORWARD, stage), seconds[kinds - 1, stage], later=room)
    num_passes = kinds * len(step.stages) * step.microbatches
    into_target, into_source, into_delay = arcs.by_target()
    out_source, out_target, out_delay = arcs.by_source()
    return StepGraph(
        num_stages=len(step.stages),
        microbatches=step.microbatches,
        is_split=split,
        device_ids=device_ids,
        jobs=Jobs(
            device=np.tile(device.ravel(), kinds),
            seconds=np.repeat(seconds.ravel(), step.microbatches),
            lag=np.repeat(lag.ravel(), step.microbatches),
            closing=_closing(step.reductions, rank),
            arcs_into=_begins(into_target, num_passes),
            into_source=into_source,
            into_delay=into_delay,
            arcs_from=_begins(out_source, num_passes),
            out_target=out_target,
            out_delay=out_delay,
        ),
    )


def _durations(stage: StageSeconds, *, split: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """By kind of pass: seconds on the device, and seconds until what it makes is handed over."""
    forward = stage.received + stage.forward
    backward = stage.gradients_received + (stage.input_gradients if split else stage.backward)
    weights = (stage.weight_gradients,) if split else ()
    handed_over = forward + stage.handover, backward + stage.gradients_handover
    return (forward + stage.sent, backward + stage.gradients_sent, *weights), (*handed_over, *weights)


class _ArcList:
    """Rows of arcs: from a kind of pass of a stage to another, each microbatch to the one `later` after it."""

    def __init__(self, num_stages: int, microbatches: int) -> None:
        self._num_stages, self._microbatches = num_stages, microbatches
        self._ends: list[tuple[int, int, int]] = []
        self._delays: list[float] = []

    def add(self, source: tuple[int, int], target: tuple[int, int], delay: float, later: int = 0) -> None:
        self._ends.append((self._number(*source), self._number(*target), later))
        self._delays.append(delay)

    def _number(self, kind: int, stage: int) -> int:
        return (kind * self._num_stages + stage) * self._microbatches

    def by_target(self) -> tuple[Integers, Integers, Floats]:
        """(targets, sources, delays)."""
        source, target, delay = self._arcs()
        way = np.lexsort((source, target))
        return target[way], source[way], delay[way]

    def by_source(self) -> tuple[Integers, Integers, Floats]:
        """(sources, targets, delays)."""
        source, target, delay = self._arcs()
        way = np.lexsort((target, source))
        return source[way], target[way], delay[way]

    def _arcs(self) -> tuple[Integers, Integers, Floats]:
        first, last, later = np.array(self._ends, dtype=np.int64).reshape(-1, 3).T[:, :, None]
        turns = np.arange(self._microbatches)
        there = turns < self._microbatches - later
        delay = np.broadcast_to(np.array(self._delays, dtype=np.float64)[:, None], there.shape)[there]
        return (first + turns)[there], (last + later + turns)[there], delay


def _begins(sorted_ends: Integers, num_passes: int) -> Integers:
    return np.searchsorted(sorted_ends, np.arange(num_passes + 1)).astype(np.int64)


def _closing(reductions: Sequence[Reduction], rank: Mapping[int, int]) -> Floats:
    """Sums are in turn: each waits for the longest of its devices."""
    closing = np.zeros(len(rank))
    for reduction in reversed(reductions):
        own = [rank[device] for device in reduction.devices]
        closing[own] = closing[own].max() + reduction.seconds
    return closing
