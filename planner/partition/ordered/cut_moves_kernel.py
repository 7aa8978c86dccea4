"""Simulated annealing over the cuts of one order and the devices of its stages: on the seconds of a training step.

Compiled functions that are called millions of times are given few arrays: each one costs a call some nanoseconds.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.placement.draws_kernel import Random, draw
from planner.partition.problem import Floats, Integers
from planner.partition.turns_kernel import Passes, Turns, last_end

# Moves, each as often as it stands in the table.
_ONE_CUT, _SEVERAL_CUTS, _TWO_DEVICES, _IDLE_DEVICE, _TURN, _JOIN, _PART = range(7)
_MOVES = 6 * (_ONE_CUT,) + 4 * (_SEVERAL_CUTS,) + 2 * (_TWO_DEVICES,) + (_IDLE_DEVICE, _TURN, _JOIN, _PART)
_MAX_STRIDE = 4
_MARGIN = 1 - 1e-9
# A device over its memory by all of it pays as much as so many steps: ways to other plans that fit lead through some
# that do not.
_LACKING = 1.0


class Line(NamedTuple):
    """What does not change: an order that may be cut at some positions, 0 to p, and the devices.

    `forward`, `backward` [kinds, p + 1]: seconds of all before a position; `refused`: how many nodes of it devices of
    the kind cannot run. `resting`, `saved` [p + 1, p + 1]: bytes of stages between two positions, those that they hold
    in any case and those for each microbatch that they keep, `kept` [stages + 1, stages] by the number of stages.

    What lies between a position and the next is a piece. Of values that leave theirs, `maker` [values] is the piece
    that makes each, the first one for what the caller gives; `reader` those that read it, ascending, from one
    `reader_first` to the next; `size` its bytes and `back` those of its gradient. `crossing`: the values that a cut at
    a position parts, from one `crossing_first` to the next. With `relays` they go from stage to stage. `comes_back`:
    whether a gradient crosses every cut.

    `kind`, `memory`, `alike` [devices]: of devices that no plan can tell apart, the same number. Stages take `turns`;
    where passes are split, those for weights are `weights` [kinds, p + 1] seconds of the backward ones.

    `place` [stages]: which of the layout's devices a stage is on. Where several are on one, `per_device` of them, it
    goes through `sequence` [passes, 3] instead: (0 forward, 1 backward or 2 for weights, stage, microbatch), from
    `sequence_first` of its place to the next one's.
    """

    forward: Floats
    backward: Floats
    weights: Floats
    refused: Integers
    resting: Floats
    saved: Floats
    maker: Integers
    reader_first: Integers
    reader: Integers
    crossing_first: Integers
    crossing: Integers
    size: Floats
    back: Floats
    relays: bool
    comes_back: bool
    latency: Floats
    per_byte: Floats
    handover: Floats
    kind: Integers
    alike: Integers
    memory: Floats
    kept: Integers
    turns: Turns
    place: Integers
    per_device: int
    sequence: Integers
    sequence_first: Integers


class Layout(NamedTuple):
    """`num_stages[0]` stages, s from position `cuts[s]` to `cuts[s + 1]`. `devices`: those in use, of one stage each in
    its order, or see `Line.place`; behind these stand the others."""

    cuts: Integers
    devices: Integers
    num_stages: Integers


class Scratch(NamedTuple):
    """`stage` of each piece. `latency` and `moving` [4, stages]: seconds of what a stage receives and sends,
    then of gradients. `handover` [2, stages] of its forward and its backward passes. By place, `held` bytes, and `at`
    which pass a device is. `lacking`: of the fullest, as a share of its memory."""

    stage: Integers
    latency: Floats
    moving: Floats
    handover: Floats
    held: Floats
    at: Integers
    lacking: Floats


@compiled
def step_seconds(line: Line, layout: Layout, scratch: Scratch, passes: Passes, limit: float) -> float:
    """Until the last pass is done, and more where memory does not hold a stage, by the most that is `lacking`; infinite
    where it is above the limit for certain, or a device cannot run its stage."""
    if not _weigh(line, layout, scratch, passes):
        return np.inf
    count, dearer = layout.num_stages[0], 1.0 + _LACKING * scratch.lacking[0]
    seconds: float = dearer * _seconds(line, layout, scratch, passes, count, limit / dearer)
    return seconds


@compiled
def _seconds(line: Line, layout: Layout, scratch: Scratch, passes: Passes, count: int, limit: float) -> float:
    in_sequence = line.per_device > 1
    if (_least_in_sequence(line, passes, count) if in_sequence else _least_step(line, passes, count)) > limit:
        return np.inf
    _exchange(line, layout, scratch, passes)
    for kind in range(2):
        for stage in range(count):
            into = scratch.latency[2 * kind, stage] + scratch.moving[2 * kind, stage]
            out = scratch.latency[2 * kind + 1, stage] + scratch.moving[2 * kind + 1, stage]
            passes.lag[kind, stage] = into + passes.seconds[kind, stage] + scratch.handover[kind, stage]
            passes.seconds[kind, stage] += into + out
    if in_sequence:
        if _least_in_sequence(line, passes, count) > limit:
            return np.inf
        return _last_end_in_sequence(line, scratch, passes, count)
    return np.inf if _least_step(line, passes, count) > limit else last_end(line.turns, passes, count, limit)


@compiled
def _least_in_sequence(line: Line, passes: Passes, count: int) -> float:
    """Of devices with several stages: what the busiest computes."""
    places, most = count // line.per_device, 0.0
    passes.free[:places] = 0.0
    for stage in range(count):
        place = line.place[stage]
        passes.free[place] += passes.seconds[0, stage] + passes.seconds[1, stage] + passes.weights[stage]
        most = max(most, passes.free[place])
    return most * line.turns.microbatches * _MARGIN


@compiled
def _least_step(line: Line, passes: Passes, count: int) -> float:
    """What no step of these stages undercuts, if each waits for the one beside it: by the first microbatch's way to a
    stage and the last one's way back, by the way of either through all stages, and by the first one's way from a stage
    to the end and back."""
    m, lag, seconds = line.turns.microbatches, passes.lag, passes.seconds
    through, least = 0.0, 0.0
    for stage in range(count):
        through += lag[0, stage] + lag[1, stage]
    before = 0.0
    for stage in range(count):
        both = seconds[0, stage] + seconds[1, stage]
        if line.turns.splits or not line.comes_back:
            both += passes.weights[stage]
            least = max(least, before + m * both)
            before += lag[0, stage]
            continue
        own = lag[0, stage] + lag[1, stage]
        ahead = min(m, count - stage + line.turns.ahead)
        least = max(least, before + m * both - seconds[1, stage] + lag[1, stage])
        forward, backward = seconds[0, stage], seconds[1, stage]
        most = max((m - 1) * forward + (m - ahead) * backward, (m - 1) * backward + (m - ahead) * forward)
        least = max(least, through + most)
        if m > ahead:
            behind = through - before - own
            least = max(least, before + 2 * behind + (m - ahead - 1) * both + 2 * own)
        before += own
    return least * _MARGIN


@compiled
def _weigh(line: Line, layout: Layout, scratch: Scratch, passes: Passes) -> bool:
    """Fills in what stages compute in their passes, and what memory lacks; whether their devices can run them."""
    count = layout.num_stages[0]
    scratch.held[:count] = 0.0
    scratch.lacking[0] = 0.0
    for stage in range(count):
        start, end, place = layout.cuts[stage], layout.cuts[stage + 1], line.place[stage]
        device = layout.devices[place]
        kind = line.kind[device]
        if line.refused[kind, end] > line.refused[kind, start]:
            return False
        scratch.held[place] += line.resting[start, end] + line.kept[count, stage] * line.saved[start, end]
        if scratch.held[place] > line.memory[device]:
            room = max(line.memory[device], 1.0)
            scratch.lacking[0] = max(scratch.lacking[0], scratch.held[place] / room - 1.0)
        passes.seconds[0, stage] = line.forward[kind, end] - line.forward[kind, start]
        passes.seconds[1, stage] = line.backward[kind, end] - line.backward[kind, start]
        passes.weights[stage] = 0.0
        if line.turns.splits:
            # The first stage sends no gradients on.
            weights = line.weights[kind, end] - line.weights[kind, start]
            passes.weights[stage] = weights if stage > 0 else passes.seconds[1, stage]
            passes.seconds[1, stage] -= passes.weights[stage]
        passes.lag[0, stage], passes.lag[1, stage] = passes.seconds[0, stage], passes.seconds[1, stage]
        for piece in range(start, end):
            scratch.stage[piece] = stage
    return True


@compiled
def _exchange(line: Line, layout: Layout, scratch: Scratch, passes: Passes) -> None:
    """What stages receive and send: each value once to each stage that reads it, or on and on from stage to stage. Its
    sender pays for the dearest of its links alone, and so does who receives its gradients."""
    count, latency, moving = layout.num_stages[0], scratch.latency, scratch.moving
    latency[:, :count] = 0.0
    moving[:, :count] = 0.0
    scratch.handover[:, :count] = 0.0
    passes.num_sources[1, :count] = 0
    for cut in range(1, count):
        at_cut = layout.cuts[cut]
        for place in range(line.crossing_first[at_cut], line.crossing_first[at_cut + 1]):
            value = line.crossing[place]
            source = scratch.stage[line.maker[value]]
            if source != cut - 1:
                continue
            at, end = line.reader_first[value], line.reader_first[value + 1]
            last = scratch.stage[line.reader[end - 1]]
            target, dearest, dearest_back = source, 0.0, 0.0
            while target < last:
                if line.relays:
                    source, dearest, dearest_back = target, 0.0, 0.0
                    target += 1
                else:
                    while scratch.stage[line.reader[at]] == target:
                        at += 1
                    target = scratch.stage[line.reader[at]]
                sender, receiver = layout.devices[line.place[source]], layout.devices[line.place[target]]
                seconds = line.size[value] * line.per_byte[sender, receiver]
                moving[0, target] += seconds
                moving[1, source] += max(0.0, seconds - dearest)
                latency[0, target] = max(latency[0, target], line.latency[sender, receiver])
                latency[1, source] = max(latency[1, source], line.latency[sender, receiver])
                scratch.handover[0, source] = max(scratch.handover[0, source], line.handover[sender, receiver])
                dearest = max(dearest, seconds)
                if line.back[value] > 0:
                    passes.num_sources[1, source] = 1
                    seconds = line.back[value] * line.per_byte[receiver, sender]
                    moving[2, source] += max(0.0, seconds - dearest_back)
                    moving[3, target] += seconds
                    latency[2, source] = max(latency[2, source], line.latency[receiver, sender])
                    latency[3, target] = max(latency[3, target], line.latency[receiver, sender])
                    scratch.handover[1, target] = max(scratch.handover[1, target], line.handover[receiver, sender])
                    dearest_back = max(dearest_back, seconds)


@compiled
def _last_end_in_sequence(line: Line, scratch: Scratch, passes: Passes, count: int) -> float:
    """Where each device has an order of several stages' passes; each waits for what the stage beside it hands over."""
    places, at = count // line.per_device, scratch.at
    done, ready, free = passes.done, passes.ready, passes.free
    done[:, :count] = 0
    free[:places] = 0.0
    at[:places] = line.sequence_first[:places]
    left, goes_on = line.sequence.shape[0], True
    while goes_on:
        goes_on = False
        for place in range(places):
            first = at[place]
            while at[place] < line.sequence_first[place + 1]:
                kind, stage = line.sequence[at[place], 0], line.sequence[at[place], 1]
                if kind == 2:
                    free[place] += passes.weights[stage]
                else:
                    microbatch, begins = line.sequence[at[place], 2], free[place]
                    other = stage - 1 if kind == 0 else stage + 1
                    if other >= 0 and other < count and passes.num_sources[kind, stage] > 0:
                        if done[kind, other] <= microbatch:
                            break
                        begins = max(begins, ready[kind, other, microbatch])
                    ready[kind, stage, microbatch] = begins + passes.lag[kind, stage]
                    free[place] = begins + passes.seconds[kind, stage]
                    done[kind, stage] += 1
                at[place] += 1
            goes_on |= at[place] > first
            left -= at[place] - first
    return free[:places].max() if left == 0 else np.inf


@compiled
def _move_cuts(layout: Layout, random: Random, several: bool) -> bool:
    """One, or some one after the other, by as many positions."""
    cuts, count = layout.cuts, layout.num_stages[0]
    if count < 2:
        return False
    first = 1 + draw(random, count - 1)
    last = first + draw(random, count - first) if several else first
    stride = 1 + draw(random, _MAX_STRIDE) if draw(random, 4) == 0 else 1
    if draw(random, 2) == 0:
        stride = -stride
    for cut in range(first, last + 1):
        cuts[cut] += stride
    return bool(cuts[first - 1] < cuts[first] and cuts[last] < cuts[last + 1])


@compiled
def _exchange_devices(layout: Layout, random: Random, alike: Integers, count: int, with_idle: bool) -> bool:
    """Two of the `count` in use, or one of them and one that is not."""
    devices = layout.devices
    first = count if with_idle else 0
    end = devices.size if with_idle else count
    if first == end:
        return False
    one, other = draw(random, count), first + draw(random, end - first)
    devices[one], devices[other] = devices[other], devices[one]
    return bool(alike[devices[one]] != alike[devices[other]])


@compiled
def _turn(layout: Layout, random: Random, count: int) -> bool:
    """Some of the `count` devices one after the other, in reverse: those of a host stay together."""
    devices = layout.devices
    one, other = draw(random, count), draw(random, count)
    if one == other:
        return False
    low, high = min(one, other), max(one, other)
    while low < high:
        devices[low], devices[high] = devices[high], devices[low]
        low, high = low + 1, high - 1
    return True


@compiled
def _join(layout: Layout, random: Random) -> bool:
    """Two stages on the device of the one or the other."""
    cuts, devices, count = layout.cuts, layout.devices, layout.num_stages[0]
    if count < 2:
        return False
    cut = 1 + draw(random, count - 1)
    place = cut - draw(random, 2)
    left_out = devices[place]
    for at in range(place, count - 1):
        devices[at] = devices[at + 1]
    devices[count - 1] = left_out
    for at in range(cut, count):
        cuts[at] = cuts[at + 1]
    layout.num_stages[0] = count - 1
    return True


@compiled
def _part(layout: Layout, random: Random) -> bool:
    """A stage in two, of which one is on a device that was not in use."""
    cuts, devices, count = layout.cuts, layout.devices, layout.num_stages[0]
    stage = draw(random, count)
    width = cuts[stage + 1] - cuts[stage]
    if count == devices.size or width < 2:
        return False
    cut, place = cuts[stage] + 1 + draw(random, width - 1), stage + draw(random, 2)
    chosen = count + draw(random, devices.size - count)
    device = devices[chosen]
    devices[chosen] = devices[count]
    for at in range(count, place, -1):
        devices[at] = devices[at - 1]
    devices[place] = device
    for at in range(count + 1, stage + 1, -1):
        cuts[at] = cuts[at - 1]
    cuts[stage + 1] = cut
    layout.num_stages[0] = count + 1
    return True


@compiled
def _move(layout: Layout, random: Random, alike: Integers, per_device: int, keeps_count: bool) -> bool:
    """Changes the layout at random; whether it still is one, and another than it was."""
    kind, in_use = _MOVES[draw(random, len(_MOVES))], layout.num_stages[0] // per_device
    if kind in (_ONE_CUT, _SEVERAL_CUTS):
        return _move_cuts(layout, random, kind == _SEVERAL_CUTS)
    if kind in (_TWO_DEVICES, _IDLE_DEVICE):
        return _exchange_devices(layout, random, alike, in_use, kind == _IDLE_DEVICE)
    if kind == _TURN:
        return _turn(layout, random, in_use)
    if keeps_count or per_device > 1:
        return False
    return _join(layout, random) if kind == _JOIN else _part(layout, random)


@compiled
def copy(source: Layout, target: Layout) -> None:
    count = source.num_stages[0]
    target.num_stages[0] = count
    for cut in range(count + 1):
        target.cuts[cut] = source.cuts[cut]
    for place in range(source.devices.size):
        target.devices[place] = source.devices[place]


@compiled
def anneal(
    line: Line, here: Layout, best: Layout, trial: Layout, scratch: Scratch, passes: Passes, random: Random,
    values: Floats, exponential: Floats, heat: float, ends: Floats, num_steps: int, keeps_count: bool,
) -> None:  # fmt: skip
    """`num_steps` steps from `here`, the temperature falling with the square of what is left of the round: `ends` of
    [1, 0]. It begins with `heat`, in shares of the best step. `values`: seconds of `here` and of `best`."""
    for step in range(num_steps):
        left = ends[0] + (ends[1] - ends[0]) * (step / num_steps)
        limit = values[0] + heat * left * left * exponential[draw(random, exponential.size)] * values[1]
        copy(here, trial)
        if not _move(trial, random, line.alike, line.per_device, keeps_count):
            continue
        value = step_seconds(line, trial, scratch, passes, limit)
        if value > limit:
            continue
        values[0] = value
        copy(trial, here)
        if scratch.lacking[0] == 0.0 and value < values[1] * _MARGIN:
            values[1] = value
            copy(here, best)
