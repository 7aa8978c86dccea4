"""Stages as segments of some order of the program, so that a cut can be moved by so many nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.problem import Integers
from planner.partition.program_orders import Bundles
from planner.partition.topological_order import topological_order


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
        stages = self.stage_of_node(layout)
        return Assignment(
            stage_of_node=tuple(stages.tolist()),
            device_of_stage=layout.devices,
            reasons=("",) * len(layout.devices),
        )


def _out_of_order(bundles: Bundles) -> bool:
    """Whether a bundle that spans others starts before what it reads."""
    return any(before and max(before) > bundle for bundle, before in enumerate(bundles.before))


def _depths(bundles: Bundles) -> Integers:
    """[bundles] places in a topological order."""
    depths = np.empty(bundles.count, dtype=np.int64)
    depths[topological_order(bundles.before, bundles.after)] = np.arange(bundles.count)
    return depths
