"""Why each stage ends where it does, in the terms of the objective: its load, its share, and what it sends on."""

from __future__ import annotations

import numpy as np

from planner.partition.describe import describe_bytes, describe_node, describe_seconds
from planner.partition.problem import PartitionProblem
from planner.partition.recomputation.expansion import expanded
from planner.partition.score import Scored
from planner.partition.traffic import traffic


def reasons(problem: PartitionProblem, scored: Scored) -> tuple[str, ...]:
    """One for each stage."""
    assignment, stages = scored.assignment, scored.evaluation.stages
    stage_of_node = np.asarray(assignment.stage_of_node, dtype=np.int64)
    last_node = np.zeros(assignment.num_stages, dtype=np.int64)
    np.maximum.at(last_node, stage_of_node, np.arange(problem.num_nodes))
    sent_bytes = [0] * assignment.num_stages
    run_problem, run = expanded(problem, assignment)
    flow = traffic(run_problem, np.asarray(run.stage_of_node, dtype=np.int64), run.num_stages)
    for (source, _), size in flow.edges.items():
        sent_bytes[source] += size
    bottleneck = scored.evaluation.bottleneck_seconds
    words = []
    for index, stage in enumerate(stages):
        share = stage.load_seconds / len(assignment.devices_of_stage[index]) / bottleneck if bottleneck else 1.0
        load = f"{describe_seconds(stage.load_seconds)} of work, {share:.0%} of the bottleneck"
        if index == assignment.num_stages - 1:
            words.append(f"the program ends; {load}")
        else:
            last = describe_node(problem, int(last_node[index]))
            words.append(f"after {last}: {load}, with {describe_bytes(sent_bytes[index])} sent to later stages")
    return tuple(words)
