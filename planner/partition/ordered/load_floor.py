"""A layout's bottleneck without its bytes: what a search can leave out at a glance, or at a short look."""

from __future__ import annotations

import numpy as np

from planner.partition.communication import exchange_seconds, gradient_exchange_seconds
from planner.partition.ordered.distinct_rows import distinct_rows
from planner.partition.ordered.line_layout import Line, LineLayout
from planner.partition.problem import PartitionProblem
from planner.partition.traffic import traffic


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
