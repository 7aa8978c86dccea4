"""Stages as segments of some order of the program, so that a cut can be moved by so many nodes; and what such a layout
takes at least, for searches that leave one out at a glance, or at a short look.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.communication import exchange_seconds, gradient_exchange_seconds
from planner.partition.ordered.device_classes import distinct_rows
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.topological_order import topological_order
from planner.partition.traffic import traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLayout:
    """`boundaries` are positions in a `Line`, from 0 to its length; stage s on devices[s]."""

    boundaries: tuple[int, ...]
    devices: tuple[int, ...]


class Line:
    """The bundles stage by stage, in program order within each: a topological order of an assignment's own."""

    def __init__(self, bundles: Bundles, assignment: Assignment) -> None:
        stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
        first = np.array([members[0] for members in bundles.members], dtype=np.int64)
        stage_of_bundle = stage_of_node[first]
        order = (
            np.lexsort((_depths(bundles), stage_of_bundle))
            if _out_of_order(bundles)
            else np.lexsort((np.arange(bundles.count), stage_of_bundle))
        )
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
    depths = np.empty(bundles.count, dtype=np.int64)
    depths[topological_order(bundles.before, bundles.after)] = np.arange(bundles.count)
    return depths


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
