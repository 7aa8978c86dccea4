"""Which device takes which of some given stages: one each, within memory, with the least bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible
from planner.partition.assignment import contiguous
from planner.partition.describe import describe_bytes, describe_stage, smaller_batch_hint
from planner.partition.evaluate import StageEvaluation, evaluate
from planner.partition.problem import Booleans, Floats, PartitionProblem
from planner.partition.traffic import traffic

MAX_EXPANSIONS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`lower_bound_seconds` holds for every choice of devices for these stages."""

    devices: tuple[int, ...]
    bottleneck_seconds: float
    lower_bound_seconds: float


def place(problem: PartitionProblem, boundaries: Sequence[int]) -> Placement:
    """Exact where links are equal, or within MAX_EXPANSIONS steps. Raises Infeasible where memory does not suffice."""
    stages, edges = _stages(problem, boundaries)
    fits = _fits(problem, boundaries, stages)
    loads = _least_loads(problem, boundaries, edges)
    bound, devices = _bottleneck_matching(np.where(fits, loads, np.inf))
    assignment = contiguous(problem, boundaries, devices, [""] * len(devices))
    value = evaluate(problem, assignment).bottleneck_seconds
    if value <= bound * (1 + 1e-12):
        return Placement(devices=devices, bottleneck_seconds=value, lower_bound_seconds=value)
    search = _Search(problem, edges, loads, fits, value, devices)
    search.expand((), [0.0] * len(devices))
    proven = search.value if search.expansions_left > 0 else bound
    return Placement(devices=search.devices, bottleneck_seconds=search.value, lower_bound_seconds=proven)


def _stages(
    problem: PartitionProblem, boundaries: Sequence[int]
) -> tuple[tuple[StageEvaluation, ...], Mapping[tuple[int, int], int]]:
    count = len(boundaries) - 1
    assignment = contiguous(problem, boundaries, [0] * count, [""] * count)
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    return evaluate(problem, assignment).stages, traffic(problem, stage_of_node, count).edges


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


def _least_loads(problem: PartitionProblem, boundaries: Sequence[int], edges: Mapping[tuple[int, int], int]) -> Floats:
    """[stages, devices]: compute, and every edge over the best link of the device: exact where links are equal."""
    loads = np.diff(problem.compute_before[:, np.asarray(boundaries)], axis=1).T.copy()
    if problem.num_devices == 1:
        return loads
    apart = np.where(np.eye(problem.num_devices, dtype=np.bool_), np.inf, 0.0)
    for (source, target), size in edges.items():
        seconds = problem.link_latency_seconds + size * problem.link_seconds_per_byte + apart
        loads[source] += seconds.min(axis=1)
        loads[target] += seconds.min(axis=0)
    return loads


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
    """Depth-first over stages in order, with the true load of every edge whose ends are placed."""

    def __init__(
        self,
        problem: PartitionProblem,
        edges: Mapping[tuple[int, int], int],
        loads: Floats,
        fits: Booleans,
        value: float,
        devices: tuple[int, ...],
    ) -> None:
        self._problem, self._edges, self._loads, self._fits = problem, edges, loads, fits
        self.value, self.devices = value, devices
        self.expansions_left = MAX_EXPANSIONS

    def expand(self, placed: tuple[int, ...], extra: list[float]) -> None:
        """`extra`: seconds by stage beyond its least load on its device, from edges that are placed."""
        stage = len(placed)
        if stage == self._loads.shape[0]:
            value = max(self._loads[at, device] + extra[at] for at, device in enumerate(placed))
            if value < self.value:
                self.value, self.devices = float(value), placed
            return
        for device in np.argsort(self._loads[stage], kind="stable").tolist():
            if device in placed or not self._fits[stage, device]:
                continue
            if self.expansions_left <= 0:
                return
            self.expansions_left -= 1
            longer, more = (*placed, device), self._with_edges(placed, device, extra)
            worst = max(self._loads[at, on] + more[at] for at, on in enumerate(longer))
            if worst < self.value * (1 - 1e-12) and self._rest_can_be_placed(longer):
                self.expand(longer, more)

    def _with_edges(self, placed: tuple[int, ...], device: int, extra: list[float]) -> list[float]:
        problem, stage, more = self._problem, len(placed), list(extra)
        apart = np.where(np.eye(problem.num_devices, dtype=np.bool_), np.inf, 0.0)
        for source, other in enumerate(placed):
            size = self._edges.get((source, stage))
            if size is None:
                continue
            seconds = problem.link_latency_seconds + size * problem.link_seconds_per_byte + apart
            more[source] += float(seconds[other, device] - seconds[other].min())
            more[stage] += float(seconds[other, device] - seconds[:, device].min())
        return more

    def _rest_can_be_placed(self, placed: tuple[int, ...]) -> bool:
        possible = self._fits[len(placed) :] & (self._loads[len(placed) :] < self.value)
        possible = possible.copy()
        possible[:, list(placed)] = False
        return possible.shape[0] == 0 or _match(possible) is not None
