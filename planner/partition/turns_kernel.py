"""When the last pass of a training step is over, on stages that have a device each: compiled, for searches that ask it
millions of times. What a pass waits for is said in training/step_time.py, which judges what they end with.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.objective import UNSPLIT_SCHEDULES, PipelineSchedule, Training
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers


class Turns(NamedTuple):
    """How stages take turns under a schedule. Before it first runs back, a stage runs `ahead` passes forward, and
    `ahead_each` for each stage behind it. Where it `splits`, passes for weights are put off by `put_off_each`
    microbatches for each stage before it, or until all have run forward."""

    microbatches: int
    ahead: int
    ahead_each: int
    splits: bool
    put_off_each: int


# Of a lone batch, which does not come back.
ONCE = Turns(microbatches=1, ahead=1, ahead_each=0, splits=False, put_off_each=0)


class Passes(NamedTuple):
    """Of forward and of backward passes, [2, stages]: `seconds` on the device, and `lag` until what one makes is handed
    over; and the `num_sources` stages that each waits for, the first ones of `sources` [2, stages, stages]. `weights`
    [stages]: seconds of passes for weights, where these are split. Scratch: when what each hands over is `ready` [2,
    stages, microbatches], how many of all three are `done` [3, stages], and when a device is `free` [stages]."""

    seconds: Floats
    lag: Floats
    weights: Floats
    num_sources: Integers
    sources: Integers
    ready: Floats
    done: Integers
    free: Floats


def turns_of(training: Training) -> Turns:
    """With one stage on each device the interleaved schedule is 1F1B; and the best order is taken to be as good as
    ZB-H1."""
    is_wider = training.schedule is PipelineSchedule.ZERO_BUBBLE_H2
    return Turns(
        microbatches=training.microbatches,
        ahead=training.microbatches if training.schedule is PipelineSchedule.GPIPE else 0,
        ahead_each=2 if is_wider else 1,
        splits=training.schedule not in UNSPLIT_SCHEDULES,
        put_off_each=2 if is_wider else 1,
    )


def passes_of(most_stages: int, microbatches: int) -> Passes:
    """Where each stage waits forward for the one before it, and as yet for none backward."""
    num_sources = np.zeros((2, most_stages), dtype=np.int64)
    num_sources[0, 1:] = 1
    sources = np.zeros((2, most_stages, most_stages), dtype=np.int64)
    sources[0, :, 0], sources[1, :, 0] = np.arange(most_stages) - 1, np.arange(most_stages) + 1
    return Passes(
        seconds=np.zeros((2, most_stages)),
        lag=np.zeros((2, most_stages)),
        weights=np.zeros(most_stages),
        num_sources=num_sources,
        sources=sources,
        ready=np.zeros((2, most_stages, microbatches)),
        done=np.zeros((3, most_stages), dtype=np.int64),
        free=np.zeros(most_stages),
    )


@compiled
def last_end(turns: Turns, passes: Passes, count: int, limit: float) -> float:
    """Of the first `count` stages; infinite where it is above the limit for certain. Each device goes through its
    order, and each pass waits for what its sources hand over: forward those are earlier stages, backward later ones."""
    m, splits = turns.microbatches, turns.splits
    seconds, weights, done, ready, free = passes.seconds, passes.weights, passes.done, passes.ready, passes.free
    left = (3 if splits else 2) * count * m
    free[:count] = 0.0
    done[:, :count] = 0
    while left > 0:
        for turn in range(max(1, 2 * count - 2)):
            stage = turn if turn < count else 2 * count - 2 - turn
            ahead = min(m, (count - stage - 1) * turns.ahead_each + turns.ahead)
            put_off = min(stage * turns.put_off_each, m - ahead)
            while done[1, stage] < m or (splits and done[2, stage] < m):
                if splits and (done[1, stage] == m or done[2, stage] < done[1, stage] - put_off):
                    free[stage] += weights[stage]
                    done[2, stage] += 1
                    left -= 1
                    continue
                kind = 0 if done[0, stage] < min(m, done[1, stage] + ahead + 1) else 1
                microbatch = done[kind, stage]
                begins, waits = free[stage], False
                for index in range(passes.num_sources[kind, stage]):
                    other = passes.sources[kind, stage, index]
                    if done[kind, other] <= microbatch:
                        waits = True
                        break
                    begins = max(begins, ready[kind, other, microbatch])
                if waits:
                    break
                ready[kind, stage, microbatch] = begins + passes.lag[kind, stage]
                free[stage] = begins + seconds[kind, stage]
                done[kind, stage] += 1
                left -= 1
                to_come = (m - done[0, stage]) * seconds[0, stage] + (m - done[1, stage]) * seconds[1, stage]
                if splits:
                    to_come += (m - done[2, stage]) * weights[stage]
                if free[stage] + to_come > limit:
                    return np.inf
    return float(free[:count].max())
