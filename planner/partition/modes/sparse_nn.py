"""Mode "sparse_nn": embedding tables spread over the devices, all the rest beside each of them.

After torch.fx's mode of that name, for devices of any size: tables fill the devices in list order, as far as there is
room beside the rest, whose stages get a copy on every device that holds a table. A program that fits the largest device
stays whole; one without tables is placed by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible
from planner.partition.arcs import least_first_order
from planner.partition.assignment import Assignment, contiguous
from planner.partition.describe import describe_bytes
from planner.partition.evaluate import Evaluation, evaluate
from planner.partition.modes.size_based import size_based
from planner.partition.objective import Objective
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of
from planner.partition.score import score

# Of the room beside the rest, what tables may fill by their states alone, in turn.
_ROOM_SHARES = (1.0, 0.95, 0.85, 0.7, 0.5)
_REST = -1


def sparse_nn(problem: PartitionProblem) -> Assignment:
    """Raises Infeasible where the tables do not fit beside the rest."""
    largest = int(np.argmax(problem.device_memory_bytes))
    name = problem.labels.devices[largest]
    whole = contiguous(problem, (0, problem.num_nodes), (largest,), (f"the whole program fits {name!r}",))
    if score(problem, whole, Objective.MEMORY).fits:
        return whole
    if not problem.is_embedding.any():
        return size_based(problem)
    layout = _Layout.of(problem)
    rest = evaluate(problem, layout.assignment([0] * len(layout.tables)))
    beside = sum(rest.stages[stage].peak_bytes for stage in layout.rest_stages([0] * len(layout.tables)))
    for share in _ROOM_SHARES:
        for order in layout.orders():
            devices = layout.packed(order, beside, share)
            if devices is None:
                continue
            assignment = layout.assignment(devices)
            if score(problem, assignment, Objective.MEMORY).fits:
                return assignment
    raise _shortage(problem, layout, beside, rest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    """`turn` [bundles] counts the changes between rest and tables on the way to each: even for the rest. Tables that
    read from tables have a turn of their own, since they may be on other devices."""

    problem: PartitionProblem
    bundles: Bundles
    turn: tuple[int, ...]
    tables: tuple[int, ...]
    table_bytes: tuple[int, ...]

    @classmethod
    def of(cls, problem: PartitionProblem) -> _Layout:
        bundles = bundles_of(problem)
        sparse = [bool(problem.is_embedding[list(members)].any()) for members in bundles.members]
        turn = [int(one) for one in sparse]
        for bundle in least_first_order(bundles.after):
            for before in bundles.before[bundle]:
                step = 2 * sparse[bundle] if sparse[before] == sparse[bundle] else 1
                turn[bundle] = max(turn[bundle], turn[before] + step)
        tables = tuple(bundle for bundle, one in enumerate(sparse) if one)
        return cls(
            problem=problem,
            bundles=bundles,
            turn=tuple(turn),
            tables=tables,
            table_bytes=tuple(_bytes_of(problem, bundles.members[table]) for table in tables),
        )

    def orders(self) -> tuple[list[int], list[int]]:
        """Positions among the tables: as the program has them, and from the largest."""
        listed = list(range(len(self.tables)))
        return listed, sorted(listed, key=lambda at: (-self.table_bytes[at], at))

    def packed(self, order: Sequence[int], beside: int, share: float) -> list[int] | None:
        """First fit, by device; None if a table fits none of them."""
        left = [int((room - beside) * share) for room in self.problem.device_memory_bytes.tolist()]
        devices = [0] * len(self.tables)
        for table in order:
            device = next((at for at, room in enumerate(left) if self.table_bytes[table] <= room), None)
            if device is None:
                return None
            devices[table] = device
            left[device] -= self.table_bytes[table]
        return devices

    def assignment(self, devices: Sequence[int]) -> Assignment:
        """Stages by turn; the tables of a turn one for each device, the rest on every device that holds a table."""
        stages = self._stages(devices)
        index = {key: stage for stage, key in enumerate(stages)}
        device_of_table = dict(zip(self.tables, devices, strict=True))
        stage_of_bundle = np.array(
            [index[turn, device_of_table.get(bundle, _REST)] for bundle, turn in enumerate(self.turn)], dtype=np.int64
        )
        stage_of_node: Integers = stage_of_bundle[self.bundles.bundle_of_node]
        used = sorted(set(devices))
        return Assignment(
            stage_of_node=tuple(stage_of_node.tolist()),
            device_of_stage=tuple(used[0] if device == _REST else device for _, device in stages),
            reasons=tuple(self._reason(device) for _, device in stages),
            replicas=tuple(tuple(used[1:]) if device == _REST else () for _, device in stages),
        )

    def _stages(self, devices: Sequence[int]) -> list[tuple[int, int]]:
        device_of_table = dict(zip(self.tables, devices, strict=True))
        return sorted({(turn, device_of_table.get(bundle, _REST)) for bundle, turn in enumerate(self.turn)})

    def rest_stages(self, devices: Sequence[int]) -> list[int]:
        return [stage for stage, (_, device) in enumerate(self._stages(devices)) if device == _REST]

    def _reason(self, device: int) -> str:
        if device == _REST:
            return "no embeddings: beside every device's tables"
        return f"embedding tables that {self.problem.labels.devices[device]!r} has room for beside the rest"


def _bytes_of(problem: PartitionProblem, members: Sequence[int]) -> int:
    """States, and what is made, in as many buffers as there are."""
    inside = np.isin(problem.use_node, members)
    states = int(problem.state_bytes[np.unique(problem.use_state[inside])].sum())
    made = int(problem.value_bytes[np.isin(problem.value_producer, members)].sum())
    return states + made * (1 + problem.microbatches_in_flight)


def _shortage(problem: PartitionProblem, layout: _Layout, beside: int, rest: Evaluation) -> Infeasible:
    room = problem.device_memory_bytes
    free = int(np.maximum(room - beside, 0).sum())
    largest = max(range(len(layout.tables)), key=lambda at: (layout.table_bytes[at], -at))
    needed = beside + layout.table_bytes[largest]
    stages = layout.rest_stages([0] * len(layout.tables))
    worst = max(stages, key=lambda stage: (rest.stages[stage].peak_bytes, -stage), default=0)
    return Infeasible(
        f"mode sparse_nn: everything but the embeddings needs {describe_bytes(beside)} on each device that holds one "
        f"(most of it stage {worst}), the largest table {describe_bytes(layout.table_bytes[largest])} besides, and "
        f"the largest device has {describe_bytes(int(room.max()))}; all {len(layout.tables)} tables need "
        f"{describe_bytes(sum(layout.table_bytes))}, and the devices have {describe_bytes(free)} beside the rest. Add "
        f"a device of {describe_bytes(max(needed, beside + sum(layout.table_bytes) - free))}, or use a mode that does "
        f"not copy the rest",
        stage=worst,
        needed_bytes=needed,
        lacking_bytes=max(0, needed - int(room.max()), sum(layout.table_bytes) - free),
    )
