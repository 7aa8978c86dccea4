"""Cuts of one order and devices for its stages, moved as long as a training step is over sooner.

The least bottleneck is not the shortest step: while a pipeline fills and drains every stage counts, what it sends too,
and where there are fewer microbatches than stages the last ones should do least, for those before them run all
microbatches forward before the first comes back. What is moved is judged by the passes of a step themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner.partition.arcs import grouped
from planner.partition.objective import PipelineSchedule, Training
from planner.partition.ordered.hosts import distinct_rows, hosts_of
from planner.partition.ordered.positions import few_positions
from planner.partition.ordered.segments import Segments
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.training.memory import counted_microbatches, kept_microbatches
from planner.partition.training.named_orders import device_orders
from planner.partition.training.pipeline_order import Pass, Step

if TYPE_CHECKING:
    from planner.partition.ordered.cut_moves_kernel import Layout, Line, Scratch

# Positions worth cutting at, beside those of the start.
_POSITIONS = 400
# Rounds, each from the best: their first temperature, in shares of the best step. Without the first three a fifth of
# programs of six nodes ended above the least.
_HEATS = (0.3, 0.1, 0.03) + 3 * (0.01, 0.003, 0.001)
# Of one round, and of what its steps may look at, in passes and stages: a second for all rounds.
_MAX_STEPS, _MAX_LOOKED_AT = 40_000, 6e7
_PER_STAGE = 20
_CHUNK_STEPS = 1 << 12
_KINDS = {Pass.FORWARD: 0, Pass.BACKWARD: 1, Pass.BACKWARD_INPUT: 1, Pass.BACKWARD_WEIGHT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Several stages on each device: `place` [stages] says on which of those in use, as many on each, and `orders` what
    each of them goes through."""

    place: tuple[int, ...]
    orders: Mapping[int, Sequence[Step]]

    @property
    def num_places(self) -> int:
        return len(self.orders)


def standing(schedule: PipelineSchedule, microbatches: int, place: Sequence[int]) -> Standing:
    """As the schedule has them run."""
    return Standing(place=tuple(place), orders=device_orders(schedule, microbatches, [(one,) for one in place]))


def with_cuts_moved(
    problem: PartitionProblem,
    boundaries: Integers,
    devices: Integers,
    *,
    keeps_count: bool,
    effort: float,
    out_of_time: OutOfTime,
    stands: Standing | None = None,
) -> tuple[Integers, Integers]:
    """(boundaries, devices in use) of the shortest step that was met, no longer than that of those given, by the model:
    stages wait for those beside them, and what one holds follows from its own ends. What does not fit in it stays as it
    is.

    Without `stands` each device in use has a stage. `keeps_count`: no stages joined or parted.
    """
    from planner.partition.ordered import cut_moves_kernel as kernel
    from planner.partition.placement.draws_kernel import EXPONENTIAL, SEED
    from planner.partition.turns_kernel import passes_of

    positions = np.union1d(few_positions(problem, _POSITIONS), boundaries)
    line = line_of(problem, positions, stands)
    best, here, trial = (layout_of(problem, np.searchsorted(positions, boundaries), devices) for _ in range(3))
    num_stages = boundaries.size - 1
    most, microbatches = max(problem.num_devices, num_stages), line.turns.microbatches
    scratch, passes = scratch_of(most, positions.size), passes_of(most, microbatches)
    values = np.full(2, kernel.step_seconds(line, best, scratch, passes, np.inf))
    random = np.array([SEED], dtype=np.uint64)
    if not np.isfinite(values[0]):
        return boundaries, devices
    looked_at = num_stages * (2 * microbatches + _PER_STAGE)
    steps = int(min(_MAX_STEPS, _MAX_LOOKED_AT / looked_at) * effort)
    for heat in _HEATS:
        kernel.copy(best, here)
        values[0] = values[1]
        for done in range(0, steps, _CHUNK_STEPS):
            if out_of_time():
                break
            more = min(_CHUNK_STEPS, steps - done)
            ends = np.array([1 - done / steps, 1 - (done + more) / steps])
            kernel.anneal(
                line, here, best, trial, scratch, passes, random, values, EXPONENTIAL, heat, ends, more, keeps_count
            )
    num_stages = int(best.num_stages[0])
    return positions[best.cuts[: num_stages + 1]], best.devices[: num_stages // line.per_device].copy()


def layout_of(problem: PartitionProblem, cuts: Integers, devices: Integers) -> Layout:
    from planner.partition.ordered.cut_moves_kernel import Layout

    unused = np.setdiff1d(np.arange(problem.num_devices), devices)
    room = np.zeros(max(problem.num_devices + 1, cuts.size), dtype=np.int64)
    room[: cuts.size] = cuts
    return Layout(
        cuts=room,
        devices=np.concatenate([devices, unused]).astype(np.int64),
        num_stages=np.array([cuts.size - 1], dtype=np.int64),
    )


def scratch_of(most: int, num_positions: int) -> Scratch:
    from planner.partition.ordered.cut_moves_kernel import Scratch

    return Scratch(
        stage=np.zeros(num_positions, dtype=np.int64),
        latency=np.zeros((4, most)),
        moving=np.zeros((4, most)),
        handover=np.zeros((2, most)),
        held=np.zeros(most),
        at=np.zeros(most, dtype=np.int64),
        lacking=np.zeros(1),
    )


def line_of(problem: PartitionProblem, positions: Integers, stands: Standing | None = None) -> Line:
    from planner.partition.ordered.cut_moves_kernel import Line
    from planner.partition.turns_kernel import turns_of

    training = problem.training
    assert training is not None
    size, segments = positions.size, Segments(problem)
    resting, saved = np.zeros((size, size)), np.zeros((size, size))
    for index, start in enumerate(positions[:-1].tolist()):
        row = segments.row(start, problem.num_nodes)
        at = positions[index + 1 :] - start - 1
        resting[index, index + 1 :], saved[index, index + 1 :] = row.resting_bytes[at], row.saved_bytes[at]
    backward_seconds = problem.backward_seconds(recomputed=problem.recomputes_activations, is_split=True)
    kinds = distinct_rows(np.hstack([problem.compute_seconds, backward_seconds, problem.weight_seconds]))
    forward, backward, weights = np.split(kinds.rows, 3, axis=1)
    crossing, alike = _crossing(problem, positions), hosts_of(problem).alike
    return Line(
        forward=_before(forward, positions),
        backward=_before(backward, positions),
        weights=_before(weights, positions),
        refused=_before(~np.isfinite(forward + backward), positions).astype(np.int64),
        resting=resting,
        saved=saved,
        **crossing._asdict(),
        relays=problem.relay,
        comes_back=_comes_back(crossing, positions.size),
        latency=problem.link_latency_seconds,
        per_byte=problem.link_seconds_per_byte,
        handover=problem.link_handover_seconds,
        kind=kinds.kind_of_row,
        alike=np.array([alike[device][0] for device in range(problem.num_devices)], dtype=np.int64),
        memory=problem.device_memory_bytes.astype(np.float64),
        kept=_kept(training, min(problem.num_devices, size - 1), stands),
        turns=turns_of(training),
        place=np.arange(problem.num_devices) if stands is None else np.array(stands.place, dtype=np.int64),
        per_device=1 if stands is None else len(stands.place) // stands.num_places,
        sequence=np.array(
            [(_KINDS[step.kind], step.stage, step.microbatch) for order in _orders(stands) for step in order],
            dtype=np.int64,
        ).reshape(-1, 3),
        sequence_first=np.cumsum([0, *map(len, _orders(stands))]).astype(np.int64),
    )


def _orders(stands: Standing | None) -> list[Sequence[Step]]:
    return [] if stands is None else [stands.orders[place] for place in range(stands.num_places)]


def _kept(training: Training, most: int, stands: Standing | None) -> Integers:
    """[stages + 1, stages] microbatches that each keeps, by the number of stages."""
    if stands is not None:
        num_stages = len(stands.place)
        kept = np.zeros((num_stages + 1, num_stages), dtype=np.int64)
        kept[num_stages] = counted_microbatches(stands.orders, num_stages)
        return kept
    kept = np.zeros((most + 1, most), dtype=np.int64)
    for stages in range(1, most + 1):
        kept[stages, :stages] = [kept_microbatches(training, stages, stage) for stage in range(stages)]
    return kept


def _comes_back(crossing: _Crossing, num_positions: int) -> bool:
    """Whether gradients come back over every cut."""
    change = np.zeros(num_positions)
    last = crossing.reader[crossing.reader_first[1:] - 1]
    np.add.at(change, crossing.maker, crossing.back > 0)
    np.add.at(change, last, -1.0 * (crossing.back > 0))
    return bool((np.cumsum(change)[:-2] > 0).all())


class _Crossing(NamedTuple):
    """As in the kernel's Line."""

    maker: Integers
    reader_first: Integers
    reader: Integers
    crossing_first: Integers
    crossing: Integers
    size: Floats
    back: Floats


def _crossing(problem: PartitionProblem, positions: Integers) -> _Crossing:
    """Values that some cut at one of the positions crosses; those with the same ends are one."""
    piece = np.searchsorted(positions, np.arange(problem.num_nodes), side="right") - 1
    maker = np.where(problem.value_producer >= 0, piece[problem.value_producer], 0)
    readers: list[set[int]] = [set() for _ in range(problem.num_values)]
    for value, node in zip(problem.read_value.tolist(), problem.read_node.tolist(), strict=True):
        readers[value].add(int(piece[node]))
    for value in np.flatnonzero(problem.value_returned).tolist():
        readers[value].add(int(piece[-1]))
    ends: dict[tuple[int, bool, tuple[int, ...]], list[int]] = {}
    for value, reading in enumerate(readers):
        own = int(maker[value])
        apart = tuple(sorted(reading - {own}))
        if apart:
            ends.setdefault((own, bool(problem.value_gradient_bytes[value] > 0), apart), []).append(value)
    maker, last = np.array([(own, apart[-1]) for own, _, apart in ends], dtype=np.int64).reshape(-1, 2).T.copy()
    # A cut at position p parts the pieces before p from those from p on.
    values = np.repeat(np.arange(maker.size), last - maker)
    at = maker[values] + 1 + np.arange(values.size) - np.repeat(np.cumsum(last - maker) - (last - maker), last - maker)
    crossing_first, crossing = grouped(at, values, positions.size)
    return _Crossing(
        maker=maker,
        reader_first=np.cumsum([0, *(len(apart) for _, _, apart in ends)]).astype(np.int64),
        reader=np.array([one for _, _, apart in ends for one in apart], dtype=np.int64),
        crossing_first=crossing_first,
        crossing=crossing,
        size=np.array([problem.value_bytes[values].sum() for values in ends.values()], dtype=np.float64),
        back=np.array([problem.value_gradient_bytes[values].sum() for values in ends.values()], dtype=np.float64),
    )


def _before(rows: Floats, positions: Integers) -> Floats:
    before = np.zeros((rows.shape[0], rows.shape[1] + 1))
    np.cumsum(np.where(np.isfinite(rows), rows, 0.0), axis=1, out=before[:, 1:])
    return np.ascontiguousarray(before[:, positions])
