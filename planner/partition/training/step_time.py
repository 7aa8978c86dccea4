"""Seconds of one training step: the longest path through its passes and messages, exact for stages that are uneven.

A stage takes what enters, runs, and sends what leaves; backward it does the same with gradients. All of that occupies
its device. A message streams: its receiver may begin as soon as its sender has, if it is free, and is done no sooner
than `received` seconds later. Copies of a stage count as the slowest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.partition.training.longest_path import places, starts
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import TrainingStep, step_graph


def step_seconds(step: TrainingStep, orders: Mapping[int, Sequence[Step]]) -> float:
    """O(passes + microbatches x edges)."""
    split = any(one.kind is Pass.BACKWARD_INPUT for order in orders.values() for one in order)
    graph = step_graph(step, split=split)
    sequence, begin = graph.sequence(orders)
    before, after, turn = (np.empty(graph.num_passes, dtype=np.int64) for _ in range(3))
    start = np.empty(graph.num_passes)
    places(sequence, begin, before, after)
    count = starts(
        before, after, graph.seconds, graph.arcs_into, graph.into.source, graph.into.delay, graph.arcs_from,
        graph.out.target, start, turn,
    )  # fmt: skip
    assert count == graph.num_passes, "a deadlock"
    ends = graph.closing.copy()
    np.maximum.at(ends, graph.device, start + graph.seconds + graph.closing[graph.device])
    return float(ends.max())
