"""How much work the stages of a pipeline may hold within a step, compiled: see `step_time`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.ordered.windows_kernel import strides
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers


class Pipeline(NamedTuple):
    """What the bound knows of a pipeline of `num_stages` stages that hold a path, and `others` beside it.

    `forward_share`: at least, of any work; `longer_share`: of the longer of a stage's two passes, at least. `splits`,
    `is_gpipe`: of the schedule, 1F1B if neither. `messages` [devices]: seconds that a microbatch spends between so many
    stages and the next ones, there and back. `speeds` [kinds] as shares of the fastest device's, `counts` [kinds]
    devices.
    """

    microbatches: int
    num_stages: int
    others: int
    on_path: float
    forward_share: float
    longer_share: float
    splits: bool
    is_gpipe: bool
    messages: Floats
    speeds: Floats
    counts: Integers


@compiled
def most_work(pipeline: Pipeline, step: float) -> float:
    """In the fastest device's seconds, in a step of so many seconds. A state is how many of each kind are used."""
    kinds, stride = pipeline.counts.size, strides(pipeline.counts)
    num_states = stride[-1] * (pipeline.counts[-1] + 1)
    reached = np.full(num_states, -1.0)
    reached[0] = 0.0
    for place in range(pipeline.num_stages):
        further = np.full(num_states, -1.0)
        for state in range(num_states):
            if reached[state] < 0:
                continue
            for kind in range(kinds):
                if state // stride[kind] % (pipeline.counts[kind] + 1) < pipeline.counts[kind]:
                    held = _most_of_stage(pipeline, step, place, reached[state], pipeline.speeds[kind])
                    following = state + stride[kind]
                    further[following] = max(further[following], reached[state] + held)
        reached = further
    return float(reached.max())


@compiled
def _most_of_stage(pipeline: Pipeline, step: float, place: int, before: float, speed: float) -> float:
    """Behind `before`, which is held by the stages before it."""
    m, on_path = pipeline.microbatches, pipeline.on_path
    all_messages = pipeline.messages[pipeline.num_stages - 1]
    if pipeline.splits:
        return max(0.0, speed * (step - before * pipeline.forward_share) / m)
    most: float = speed * (step - before - pipeline.messages[place]) / m
    if pipeline.is_gpipe:
        if m > 1:
            most = min(most, speed * (step - on_path - all_messages) / (m - 1))
        return max(0.0, most)
    ahead = pipeline.num_stages + pipeline.others - place
    turns = (m - ahead + 1) / speed - 2
    if m > ahead and turns > 0:
        most = min(most, (step - 2 * on_path + before - all_messages) / turns)
    longer = pipeline.longer_share
    turns = (1 + (m - 1) * longer + max(0, m - ahead) * (1 - longer)) / speed - 1
    if turns > 0:
        most = min(most, (step - on_path - all_messages) / turns)
    return max(0.0, most)
