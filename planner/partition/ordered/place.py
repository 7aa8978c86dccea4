"""Which device takes which of some given stages: one each, within memory, with the least bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible
from planner.partition.assignment import contiguous
from planner.partition.communication import UNKNOWN, communication_seconds
from planner.partition.describe import describe_bytes, describe_stage, smaller_batch_hint
from planner.partition.evaluate import StageEvaluation, evaluate
from planner.partition.ordered.segment_loads import StageLinks, Transfers
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.traffic import Crossings, traffic

MAX_EXPANSIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`lower_bound_seconds` holds for every choice of devices for these stages."""

    devices: tuple[int, ...]
    bottleneck_seconds: float
    lower_bound_seconds: float


def place(problem: PartitionProblem, boundaries: Sequence[int]) -> Placement:
    """Exact where links are equal, or within MAX_EXPANSIONS steps. Raises Infeasible where memory does not suffice."""
    stages, crossings = _stages(problem, boundaries)
    fits = _fits(problem, boundaries, stages)
    compute = _compute_seconds(problem, boundaries)
    fits &= np.isfinite(compute)
    _check_runnable(problem, boundaries, stages, fits)
    loads = compute + _least_communication(problem, crossings, len(stages))
    bound, devices = _bottleneck_matching(np.where(fits, loads, np.inf))
    assignment = contiguous(problem, boundaries, devices)
    value = evaluate(problem, assignment).bottleneck_seconds
    if value <= bound * (1 + 1e-12):
        return Placement(devices=devices, bottleneck_seconds=value, lower_bound_seconds=value)
    search = _Search(problem, crossings, compute, loads, fits, value, devices)
    search.expand(())
    proven = search.value if search.expansions_left > 0 else bound
    return Placement(devices=search.devices, bottleneck_seconds=search.value, lower_bound_seconds=proven)


def _stages(problem: PartitionProblem, boundaries: Sequence[int]) -> tuple[tuple[StageEvaluation, ...], Crossings]:
    count = len(boundaries) - 1
    # Devices of their own, as far as there are any: what a stage holds in training depends on that.
    assignment = contiguous(problem, boundaries, [stage % problem.num_devices for stage in range(count)])
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    return evaluate(problem, assignment).stages, traffic(problem, stage_of_node, count).crossings


def _fits(problem: PartitionProblem, boundaries: Sequence[int], stages: Sequence[StageEvaluation]) -> Booleans:
    """[stages, devices]. Some choice fits exactly if the k-th largest stage fits the k-th largest device, for all k."""
    memory = problem.device_memory_bytes
    if len(stages) > problem.num_devices:
        raise Infeasible(
            f"{len(stages)} stages for {problem.num_devices} devices, one device each: "
            f"name {len(stages) - problem.num_devices} cuts fewer or add as many devices",
            stages=len(stages),
            devices=problem.num_devices,
        )
    by_need = sorted(range(len(stages)), key=lambda stage: (-stages[stage].peak_bytes, stage))
    by_room = sorted(range(problem.num_devices), key=lambda device: (-int(memory[device]), device))
    for stage, device in zip(by_need, by_room, strict=False):
        lacking = stages[stage].peak_bytes - int(memory[device])
        if lacking > 0:
            raise Infeasible(
                f"{describe_stage(problem, boundaries, stage, stages[stage])}, and the largest device left for it, "
                f"{problem.labels.devices[device]!r}, has {describe_bytes(int(memory[device]))}: "
                f"{describe_bytes(lacking)} are lacking. A device of {describe_bytes(stages[stage].peak_bytes)} would "
                f"hold it, as would further cuts inside it{smaller_batch_hint(stages[stage], lacking)}",
                stage=stage,
                device=problem.labels.devices[device],
                needed_bytes=stages[stage].peak_bytes,
                lacking_bytes=lacking,
            )
    needed = np.array([stage.peak_bytes for stage in stages])
    return needed[:, None] <= memory[None, :]


def _compute_seconds(problem: PartitionProblem, boundaries: Sequence[int]) -> Floats:
    """[stages, devices]"""
    starts, ends = np.array(boundaries[:-1])[:, None], np.array(boundaries[1:])[:, None]
    return problem.segment_seconds(np.arange(problem.num_devices), starts, ends)


def _check_runnable(
    problem: PartitionProblem, boundaries: Sequence[int], stages: Sequence[StageEvaluation], possible: Booleans
) -> None:
    """Memory suffices in some way, so what is lacking is devices that can run the nodes of the stages."""
    if not problem.some_are_barred or _match(possible) is not None:
        return
    stage = int(np.argmin(possible.sum(axis=1)))
    able = [problem.labels.devices[device] for device in np.flatnonzero(possible[stage]).tolist()]
    raise Infeasible(
        f"no choice of devices, one for each stage, can run these {len(stages)} stages with their nodes that are fixed "
        f"to a device or that only some devices can run. {describe_stage(problem, boundaries, stage, stages[stage])}, "
        f"and can go to {', '.join(map(repr, able)) or 'no device'}: cut elsewhere, or fix fewer modules",
        stage=stage,
    )


def _least_communication(problem: PartitionProblem, crossings: Crossings, num_stages: int) -> Floats:
    """[stages, devices]: every tensor over the best link of the device: exact where links are equal."""
    anywhere = [StageLinks(device, None, None, 0) for device in range(problem.num_devices)]
    seconds = _exchanged(Transfers(problem, anywhere, back=False), crossings, problem.value_bytes, num_stages)
    if problem.training is not None:
        carry = problem.value_gradient_bytes[crossings.values] > 0
        gradients = Crossings(
            values=crossings.values[carry], sources=crossings.sources[carry], targets=crossings.targets[carry]
        )
        back = Transfers(problem, anywhere, back=True)
        seconds += _exchanged(back, gradients, problem.value_gradient_bytes, num_stages)
    return seconds.T


def _exchanged(transfers: Transfers, crossings: Crossings, sizes: Integers, num_stages: int) -> Floats:
    """[devices, stages]"""
    entering = np.bincount(crossings.targets, sizes[crossings.values], num_stages).astype(np.float64)
    sends = np.unique(crossings.values * num_stages + crossings.sources)
    leaving = np.bincount(sends % num_stages, sizes[sends // num_stages], num_stages).astype(np.float64)
    receives = np.bincount(crossings.targets, minlength=num_stages) > 0
    sends_any = np.bincount(crossings.sources, minlength=num_stages) > 0
    unlinked = np.zeros(num_stages)
    received = transfers.received_seconds(entering, unlinked, receives)
    return received + transfers.sent_seconds(leaving, unlinked, sends_any)


def _bottleneck_matching(loads: Floats) -> tuple[float, tuple[int, ...]]:
    """The least largest load over all ways to give each row a column of its own. A way must exist."""
    candidates = np.unique(loads[np.isfinite(loads)])
    low, high = 0, candidates.size - 1
    while low < high:
        middle = (low + high) // 2
        if _match(loads <= candidates[middle]) is None:
            low = middle + 1
        else:
            high = middle
    columns = _match(loads <= candidates[low])
    assert columns is not None
    return float(candidates[low]), columns


def _match(possible: Booleans) -> tuple[int, ...] | None:
    """A column for each row, by augmenting paths; None if there is no way. O(rows^2 x columns)."""
    row_of_column = [-1] * possible.shape[1]

    def augment(row: int, seen: set[int]) -> bool:
        for column in np.flatnonzero(possible[row]).tolist():
            if column in seen:
                continue
            seen.add(column)
            if row_of_column[column] < 0 or augment(row_of_column[column], seen):
                row_of_column[column] = row
                return True
        return False

    if not all(augment(row, set()) for row in range(possible.shape[0])):
        return None
    column_of_row = {row: column for column, row in enumerate(row_of_column) if row >= 0}
    return tuple(column_of_row[row] for row in range(possible.shape[0]))


class _Search:
    """Depth-first over stages in order, with the best link for every tensor of which one end is not placed yet."""

    def __init__(
        self,
        problem: PartitionProblem,
        crossings: Crossings,
        compute: Floats,
        loads: Floats,
        fits: Booleans,
        value: float,
        devices: tuple[int, ...],
    ) -> None:
        self._problem, self._crossings = problem, crossings
        self._compute, self._loads, self._fits = compute, loads, fits
        self.value, self.devices = value, devices
        self.expansions_left = MAX_EXPANSIONS

    def expand(self, placed: tuple[int, ...]) -> None:
        stage = len(placed)
        for device in np.argsort(self._loads[stage], kind="stable").tolist():
            if device in placed or not self._fits[stage, device]:
                continue
            if self.expansions_left <= 0:
                return
            self.expansions_left -= 1
            longer = (*placed, device)
            worst = self._least_load(longer)
            if worst >= self.value * (1 - 1e-12):
                continue
            if len(longer) == self._loads.shape[0]:
                self.value, self.devices = worst, longer
            elif self._rest_can_be_placed(longer):
                self.expand(longer)

    def _least_load(self, placed: tuple[int, ...]) -> float:
        """Of the most loaded stage that is placed; exact once all are."""
        devices = np.full(self._loads.shape[0], UNKNOWN, dtype=np.int64)
        devices[: len(placed)] = placed
        communication = communication_seconds(self._problem, self._crossings, devices)[: len(placed)]
        return float((self._compute[np.arange(len(placed)), list(placed)] + communication).max())

    def _rest_can_be_placed(self, placed: tuple[int, ...]) -> bool:
        possible = self._fits[len(placed) :] & (self._loads[len(placed) :] < self.value)
        possible = possible.copy()
        possible[:, list(placed)] = False
        return possible.shape[0] == 0 or _match(possible) is not None
