"""The loop of `least_step`, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers

# What a stage holds: a bundle of the path that all others with gradients are before or behind, another of the path,
# one with gradients beside it, or nothing that a microbatch has to wait for.
JOIN, ON_PATH, BESIDE, ASIDE = range(4)


class StepStages(NamedTuple):
    """Stages from a position stand from its `first` [positions + 1] to the next; `ends` [stages], and `role` [stages],
    one of JOIN to ASIDE. Of each on each kind of device [kinds, stages], inf where it cannot be:

    `onward`: seconds by which a microbatch comes later to the stages behind, and goes back later from them. The step
    takes `after_first` more than the first microbatch takes to come to the stage; and `around` more than one takes on
    all of its way, with `late` more for each that can only come once others are back. ASIDE, it is on none: -inf.
    """

    first: Integers
    ends: Integers
    role: Integers
    onward: Floats
    after_first: Floats
    around: Floats
    late: Floats


class StepDevices(NamedTuple):
    """`unit` [kinds] that a device of the kind is counted in, -1: as many as one likes. `capacity` [units] devices, and
    the `stride` [units] of each in a state, the number that says how many are used. `waits`: under 1F1B."""

    unit: Integers
    capacity: Integers
    stride: Integers
    most_stages: int
    microbatches: int
    waits: bool


Four = tuple[float, float, float, float]


@compiled
def _least(some: Four, others: Floats) -> Four:
    return min(some[0], others[0]), min(some[1], others[1]), min(some[2], others[2]), min(some[3], others[3])


@compiled
def least_rest(stages: StepStages, step: float, most_stages: int) -> tuple[Floats, Floats]:
    """[stages left, positions] the least seconds of a microbatch behind each, if so many stages or fewer are to come,
    in a step of so many seconds: on stages with joins, and on stages of the path."""
    first, ends, role, onward, after_first = stages.first, stages.ends, stages.role, stages.onward, stages.after_first
    fastest = np.full(ends.size, np.inf)
    for kind in range(onward.shape[0]):
        for stage in range(ends.size):
            if after_first[kind, stage] <= step:
                fastest[stage] = min(fastest[stage], onward[kind, stage])
    through, along = np.full((2, most_stages + 1, first.size - 1), np.inf)
    through[:, -1], along[:, -1] = 0.0, 0.0
    for left in range(1, most_stages + 1):
        for start in range(first.size - 2):
            for stage in range(first[start], first[start + 1]):
                own, end = fastest[stage], ends[stage]
                if own < np.inf:
                    of_join, of_path = own * (role[stage] == JOIN), own * (role[stage] <= ON_PATH)
                    through[left, start] = min(through[left, start], of_join + through[left - 1, end])
                    along[left, start] = min(along[left, start], of_path + along[left - 1, end])
        if (through[left] == through[left - 1]).all() and (along[left] == along[left - 1]).all():
            through[left:], along[left:] = through[left], along[left]
            break
    return through, along


@compiled
def _possible(stages: StepStages, step: float, through: float, along_path: float) -> tuple[Integers, Integers]:
    """Stages that may be in such a step on some way: of each kind, where those from a position begin [kinds, positions
    + 1], and the stages."""
    first, role, after_first, around = stages.first, stages.role, stages.after_first, stages.around
    begin = np.zeros((around.shape[0], first.size), dtype=np.int64)
    possible = np.empty(around.size, dtype=np.int64)
    count = 0
    for kind in range(around.shape[0]):
        for start in range(first.size - 1):
            begin[kind, start] = count
            for stage in range(first[start], first[start + 1]):
                way = through if role[stage] == JOIN else along_path if role[stage] == ON_PATH else 0.0
                if after_first[kind, stage] <= step and way + around[kind, stage] <= step:
                    possible[count] = stage
                    count += 1
        begin[kind, -1] = count
    return begin, possible[:count]


@compiled
def least_through(
    stages: StepStages,
    devices: StepDevices,
    step: float,
    through: float,
    along_path: float,
    rest_through: Floats,
    rest_along: Floats,
    looked_at: Integers,
) -> tuple[float, float]:
    """The least seconds that one microbatch spends on the longest way through all joins in a step of so many seconds,
    and along the path; inf if there is no such step. It spends `through` and `along_path` at least; what is left of
    both is from `least_rest`. Adds the stages that it looks at to `looked_at` [1]."""
    begin, possible = _possible(stages, step, through, along_path)
    ends, role, onward, after_first, around, late = stages[1:]
    unit_of_kind, capacity, stride = devices.unit, devices.capacity, devices.stride
    num_positions, num_states = stages.first.size - 1, 1
    for unit in range(capacity.size):
        num_states *= capacity[unit] + 1
    # By position and state, the least seconds until a microbatch has been on all of the path that is held, on the last
    # join of it, and on all that is beside the path behind that; and along the path alone.
    reached, joined, beside, along = np.full((4, num_positions, num_states), np.inf)
    reached[0, 0], joined[0, 0], beside[0, 0], along[0, 0] = 0.0, 0.0, 0.0, 0.0
    # Of states that use no more of any unit.
    fewest = np.empty((4, num_states))
    for start in range(num_positions - 1):
        for state in range(num_states):
            own = reached[start, state], joined[start, state], beside[start, state], along[start, state]
            used, others = 0, (np.inf, np.inf, np.inf, np.inf)
            for unit in range(capacity.size):
                count = state // stride[unit] % (capacity[unit] + 1)
                used += count
                if count:
                    others = _least(others, fewest[:, state - stride[unit]])
            fewest[0, state], fewest[1, state] = min(own[0], others[0]), min(own[1], others[1])
            fewest[2, state], fewest[3, state] = min(own[2], others[2]), min(own[3], others[3])
            is_worse = others[0] <= own[0] and others[1] <= own[1] and others[2] <= own[2] and others[3] <= own[3]
            if is_worse or used >= devices.most_stages:
                continue
            left = devices.most_stages - used - 1
            # Of 1F1B, microbatches that go forward once the first is back.
            num_late = max(0, devices.microbatches - left - 1)
            for kind in range(unit_of_kind.size):
                unit, following = unit_of_kind[kind], state
                if unit >= 0:
                    following += stride[unit]
                    if state // stride[unit] % (capacity[unit] + 1) == capacity[unit]:
                        continue
                looked_at[0] += begin[kind, start + 1] - begin[kind, start]
                for index in range(begin[kind, start], begin[kind, start + 1]):
                    stage = possible[index]
                    holds, end = role[stage], ends[stage]
                    comes, way, rest = 0.0, 0.0, rest_through[left, end]
                    if holds == JOIN:
                        comes, way, rest = max(own[0], own[2]), through, rest_along[left, end]
                    elif holds == ON_PATH:
                        comes, way, rest = own[0], along_path, rest_along[left, end]
                    elif holds == BESIDE:
                        comes = own[1]
                    done = comes + onward[kind, stage]
                    way = max(way, done + rest) + around[kind, stage] + num_late * late[kind, stage]
                    if comes + after_first[kind, stage] > step or way > step:
                        continue
                    # For the first microbatch to be back, and in the end for the last.
                    waits = num_late > 0 and devices.waits and holds != ASIDE
                    if waits and done + 2 * rest + num_late * onward[kind, stage] > step:
                        continue
                    to = own
                    if holds == JOIN:
                        to = done, done, done, own[3] + onward[kind, stage]
                    elif holds == ON_PATH:
                        to = done, own[1], own[2], own[3] + onward[kind, stage]
                    elif holds == BESIDE:
                        to = own[0], own[1], max(own[2], done), own[3]
                    reached[end, following] = min(reached[end, following], to[0])
                    joined[end, following] = min(joined[end, following], to[1])
                    beside[end, following] = min(beside[end, following], to[2])
                    along[end, following] = min(along[end, following], to[3])
    return reached[num_positions - 1].min(), along[num_positions - 1].min()
