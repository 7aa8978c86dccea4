"""Joins neighbouring stages while that costs nothing: an idle device is better left out."""

from __future__ import annotations

from planner.partition.line_layout import Line, LineLayout
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
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
    for cut in range(1, len(devices)):
        for left_out in (cut, cut - 1):
            kept = devices[2 * cut - 1 - left_out]
            if objective is Objective.THROUGHPUT and _work(problem, found, cut, kept) > found.value * (1 + 1e-9):
                continue
            layout = LineLayout(
                boundaries=(*boundaries[:cut], *boundaries[cut + 1 :]),
                devices=(*devices[:left_out], *devices[left_out + 1 :]),
            )
            shorter = score(problem, line.assignment(layout), objective)
            if shorter.fits and shorter.value <= found.value * (1 + NEGLIGIBLE):
                return shorter
    return None


def _work(problem: PartitionProblem, found: Scored, cut: int, device: int) -> float:
    """Seconds of work of the two stages at a cut if `device` did it all."""
    stages = found.assignment.stage_of_node
    both = [node for node, stage in enumerate(stages) if stage in (cut - 1, cut)]
    return float(problem.work_seconds[device, both].sum())
