"""Joins neighbouring stages while that costs nothing: an idle device is better left out."""

from __future__ import annotations

import numpy as np

from planner.partition.objective import Objective
from planner.partition.ordered.line_layout import Line, LineLayout
from planner.partition.problem import Floats, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.score import NEGLIGIBLE, Scored, score


def fewest_stages(problem: PartitionProblem, bundles: Bundles, found: Scored, objective: Objective) -> Scored:
    """Of the same value. Tries only joins whose work alone leaves the value as it is."""
    joined: Scored | None = found
    while joined is not None:
        found, joined = joined, _joined(problem, bundles, joined, objective)
    return found


def _joined(problem: PartitionProblem, bundles: Bundles, found: Scored, objective: Objective) -> Scored | None:
    line = Line(bundles, found.assignment)
    boundaries, devices = line.layout.boundaries, line.layout.devices
    work = _work(problem, found)
    for cut in range(1, len(devices)):
        for left_out in (cut, cut - 1):
            kept = devices[2 * cut - 1 - left_out]
            if objective is Objective.THROUGHPUT and work[kept, cut - 1] + work[kept, cut] > found.value * (1 + 1e-9):
                continue
            layout = LineLayout(
                boundaries=(*boundaries[:cut], *boundaries[cut + 1 :]),
                devices=(*devices[:left_out], *devices[left_out + 1 :]),
            )
            shorter = score(problem, line.assignment(layout), objective)
            if shorter.fits and shorter.value <= found.value * (1 + NEGLIGIBLE):
                return shorter
    return None


def _work(problem: PartitionProblem, found: Scored) -> Floats:
    """[devices, stages] seconds of work."""
    stage_of_node, num_stages = np.asarray(found.assignment.stage_of_node), found.assignment.num_stages
    return np.array([np.bincount(stage_of_node, row, num_stages) for row in problem.work_seconds])
