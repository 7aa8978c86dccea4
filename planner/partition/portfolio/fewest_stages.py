"""Joins neighbouring stages while that costs nothing: an idle device is better left out."""

from __future__ import annotations

import numpy as np

from planner.partition.objective import Objective
from planner.partition.portfolio.cut_search import Line, LineLayout
from planner.partition.problem import Floats, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.score import NEGLIGIBLE, Scored, score


def fewest_stages(problem: PartitionProblem, bundles: Bundles, best: Scored, objective: Objective) -> Scored:
    """Of the same value. Tries only joins whose work alone leaves the value as it is."""
    shorter: Scored | None = best
    while shorter is not None:
        best, shorter = shorter, _joined(problem, bundles, shorter, objective)
    return best


def _joined(problem: PartitionProblem, bundles: Bundles, best: Scored, objective: Objective) -> Scored | None:
    line = Line(bundles, best.assignment)
    boundaries, devices = line.layout.boundaries, line.layout.devices
    work = _work(problem, best)
    for cut in range(1, len(devices)):
        for left_out in (cut, cut - 1):
            device = devices[2 * cut - 1 - left_out]
            if objective is Objective.THROUGHPUT and work[device, cut - 1] + work[device, cut] > best.value * (
                1 + 1e-9
            ):
                continue
            layout = LineLayout(
                boundaries=(*boundaries[:cut], *boundaries[cut + 1 :]),
                devices=(*devices[:left_out], *devices[left_out + 1 :]),
            )
            shorter = score(problem, line.assignment(layout), objective)
            if shorter.fits and shorter.value <= best.value * (1 + NEGLIGIBLE):
                return shorter
    return None


def _work(problem: PartitionProblem, best: Scored) -> Floats:
    """[devices, stages] seconds of work."""
    stage_of_node, num_stages = np.asarray(best.assignment.stage_of_node), best.assignment.num_stages
    return np.array([np.bincount(stage_of_node, row, num_stages) for row in problem.work_seconds])
