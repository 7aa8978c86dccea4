"""Simulated annealing over item → stage, where stages stand in an order and items follow one another.

A step moves an item that nothing in its stage keeps there, at times with the items that it sets free, to a later or an
earlier stage. The energy is a high power sum of the loads, as of netlists (netlists/annealing_kernel).

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.placement.draws_kernel import Random, draw
from planner.partition.problem import Booleans, Floats, Integers

# Of 16 steps, those that move one item; others move up to 2, 4, 8 or so many.
_SINGLES, _OCTAVES = 12, 3
MAX_MOVED = 1 << _OCTAVES
# A stage over its room by all of it pays as much as so many devices at the best load.
_OVERFLOW = 4.0
_LATER, _EARLIER = 0, 1


class Pipeline(NamedTuple):
    """What does not change. `seconds` [kinds, items] are infinite where a device of the kind cannot run the item.

    `maker` [values] is -1 for what the caller gives to the first stage; `is_returned` values go to the last. Lists
    stand from one first to the next: `reader` by value, without its maker, and `touched` values, `before` and `after`
    by item. A value from one stage to another is paid by both, `sent` and `received` [links, values], each stage that
    sends it once, at the dearest link; and each direction of a stage the largest `latency` [links] of those that it
    uses. `held` [items] and `buffered` [values] are bytes, `room` [stages] what may be used of them.
    """

    seconds: Floats
    kind_of_stage: Integers
    maker: Integers
    is_returned: Booleans
    reader_first: Integers
    reader: Integers
    touched_first: Integers
    touched: Integers
    before_first: Integers
    before: Integers
    after_first: Integers
    after: Integers
    link: Integers
    sent: Floats
    received: Floats
    latency: Floats
    held: Floats
    buffered: Floats
    room: Floats


class State(NamedTuple):
    """What a search changes. `readers` [values, stages] count items, and the caller; `stages_reading` [values] those
    with any. `messages` [stages, stages]: values from one to the other. `waits` [2, stages]: latencies paid.

    `beside` [2, items]: of an item's neighbours behind and before it, how many share its stage. `able` [2, items], the
    first `num_able` of each row: those with none, that can move to a later and to an earlier stage; `place` in it, -1
    for none. `best`: of `best_value[0]`.
    """

    stage: Integers
    readers: Integers
    stages_reading: Integers
    messages: Integers
    waits: Floats
    load: Floats
    used: Floats
    num_items: Integers
    beside: Integers
    able: Integers
    num_able: Integers
    place: Integers
    moved: Integers
    random: Random
    best: Integers
    best_value: Floats


@compiled
def recount(pipeline: Pipeline, state: State) -> None:
    """Everything from `stage` alone."""
    num_stages, num_items = state.load.size, state.stage.size
    state.readers[:, :] = 0
    state.stages_reading[:] = 0
    state.messages[:, :] = 0
    state.waits[:, :] = 0.0
    state.load[:] = 0.0
    state.used[:] = 0.0
    state.num_items[:] = 0
    state.place[:, :] = -1
    state.num_able[:] = 0
    for item in range(num_items):
        stage = state.stage[item]
        state.load[stage] += pipeline.seconds[pipeline.kind_of_stage[stage], item]
        state.used[stage] += pipeline.held[item]
        state.num_items[stage] += 1
        for way in range(2):
            state.beside[way, item] = 0
        for at in range(pipeline.after_first[item], pipeline.after_first[item + 1]):
            state.beside[_LATER, item] += state.stage[pipeline.after[at]] == stage
        for at in range(pipeline.before_first[item], pipeline.before_first[item + 1]):
            state.beside[_EARLIER, item] += state.stage[pipeline.before[at]] == stage
        _list(state, item, num_stages)
    for value in range(pipeline.maker.size):
        for at in range(pipeline.reader_first[value], pipeline.reader_first[value + 1]):
            _count(state, value, state.stage[pipeline.reader[at]], 1)
        if pipeline.is_returned[value]:
            _count(state, value, num_stages - 1, 1)
        _pay(pipeline, state, value, 1)


@compiled
def _count(state: State, value: int, stage: int, change: int) -> None:
    before = state.readers[value, stage]
    state.readers[value, stage] = before + change
    if before == 0:
        state.stages_reading[value] += 1
    elif before + change == 0:
        state.stages_reading[value] -= 1


@compiled
def _pay(pipeline: Pipeline, state: State, value: int, sign: int) -> None:
    """Adds what stages pay for the value as readers stand now, or takes it back."""
    num_stages = state.load.size
    source = 0 if pipeline.maker[value] < 0 else state.stage[pipeline.maker[value]]
    left = state.stages_reading[value]
    if state.readers[value, source] > 0:
        left -= 1
    if left == 0:
        return
    dearest, target = 0.0, source
    while left > 0:
        target = target + 1 if target + 1 < num_stages else 0
        if state.readers[value, target] == 0 or target == source:
            continue
        left -= 1
        link = pipeline.link[source, target]
        dearest = max(dearest, pipeline.sent[link, value])
        state.load[target] += sign * pipeline.received[link, value]
        state.used[target] += sign * pipeline.buffered[value]
        before = state.messages[source, target]
        state.messages[source, target] = before + sign
        if before == 0 or before + sign == 0:
            _wait(pipeline, state, source, target)
    state.load[source] += sign * dearest
    state.used[source] += sign * pipeline.buffered[value]


@compiled
def _wait(pipeline: Pipeline, state: State, source: int, target: int) -> None:
    """The latencies of what the one sends and the other receives, once more."""
    sent, received = 0.0, 0.0
    for other in range(state.load.size):
        if state.messages[source, other] > 0:
            sent = max(sent, pipeline.latency[pipeline.link[source, other]])
        if state.messages[other, target] > 0:
            received = max(received, pipeline.latency[pipeline.link[other, target]])
    state.load[source] += sent - state.waits[0, source]
    state.load[target] += received - state.waits[1, target]
    state.waits[0, source] = sent
    state.waits[1, target] = received


@compiled
def _list(state: State, item: int, num_stages: int) -> None:
    """Whether the item is able to move each way, as `beside` and its stage stand now."""
    for way in range(2):
        last = num_stages - 1 if way == _LATER else 0
        able = state.beside[way, item] == 0 and state.stage[item] != last
        place = state.place[way, item]
        if able and place < 0:
            place = state.num_able[way]
            state.able[way, place] = item
            state.place[way, item] = place
            state.num_able[way] = place + 1
        elif not able and place >= 0:
            other = state.able[way, state.num_able[way] - 1]
            state.able[way, place] = other
            state.place[way, other] = place
            state.place[way, item] = -1
            state.num_able[way] -= 1


@compiled
def _shift(pipeline: Pipeline, state: State, item: int, target: int) -> None:
    origin = state.stage[item]
    _carry(pipeline, state, item, target)
    _list_with_neighbours(pipeline, state, item, origin)


@compiled
def _carry(pipeline: Pipeline, state: State, item: int, target: int) -> None:
    """The item with all that it costs. Which items are able to move is left as it was."""
    origin = state.stage[item]
    for at in range(pipeline.touched_first[item], pipeline.touched_first[item + 1]):
        value = pipeline.touched[at]
        _pay(pipeline, state, value, -1)
        if pipeline.maker[value] != item:
            _count(state, value, origin, -1)
            _count(state, value, target, 1)
    state.stage[item] = target
    for at in range(pipeline.touched_first[item], pipeline.touched_first[item + 1]):
        _pay(pipeline, state, pipeline.touched[at], 1)
    state.load[origin] -= pipeline.seconds[pipeline.kind_of_stage[origin], item]
    state.load[target] += pipeline.seconds[pipeline.kind_of_stage[target], item]
    state.used[origin] -= pipeline.held[item]
    state.used[target] += pipeline.held[item]
    state.num_items[origin] -= 1
    state.num_items[target] += 1


@compiled
def _list_with_neighbours(pipeline: Pipeline, state: State, item: int, origin: int) -> None:
    """After the item came from `origin`."""
    target, num_stages = state.stage[item], state.load.size
    for way in range(2):
        first, others = pipeline.after_first, pipeline.after
        if way == _EARLIER:
            first, others = pipeline.before_first, pipeline.before
        count = 0
        for at in range(first[item], first[item + 1]):
            other = others[at]
            if state.stage[other] == origin:
                state.beside[1 - way, other] -= 1
                _list(state, other, num_stages)
            elif state.stage[other] == target:
                state.beside[1 - way, other] += 1
                _list(state, other, num_stages)
                count += 1
        state.beside[way, item] = count
    _list(state, item, num_stages)


@compiled
def _furthest(pipeline: Pipeline, state: State, item: int, way: int) -> int:
    """The stage that the item's neighbours leave open to it."""
    if way == _LATER:
        stage = state.load.size - 1
        for at in range(pipeline.after_first[item], pipeline.after_first[item + 1]):
            stage = min(stage, state.stage[pipeline.after[at]])
        return stage
    stage = 0
    for at in range(pipeline.before_first[item], pipeline.before_first[item + 1]):
        stage = max(stage, state.stage[pipeline.before[at]])
    return stage


@compiled
def _can_move(pipeline: Pipeline, state: State, item: int, target: int) -> bool:
    """Not from a stage that has no other, nor to a device that cannot run it."""
    runs = pipeline.seconds[pipeline.kind_of_stage[target], item] < np.inf
    return bool(runs and state.num_items[state.stage[item]] > 1)


@compiled
def _move(pipeline: Pipeline, state: State, first: int, target: int, way: int, limit: int) -> int:
    """Moves the item and, up to the limit, those that nothing else keeps in its stage then. How many."""
    origin, moved = state.stage[first], state.moved
    if not _can_move(pipeline, state, first, target):
        return 0
    _shift(pipeline, state, first, target)
    moved[0] = first
    size, at = 1, 0
    while at < size and size < limit:
        starts, others = pipeline.before_first, pipeline.before
        if way == _EARLIER:
            starts, others = pipeline.after_first, pipeline.after
        for index in range(starts[moved[at]], starts[moved[at] + 1]):
            other = others[index]
            if size < limit and state.stage[other] == origin and state.beside[way, other] == 0:
                if not _can_move(pipeline, state, other, target):
                    continue
                _shift(pipeline, state, other, target)
                moved[size] = other
                size += 1
        at += 1
    return size


@compiled
def _energy(pipeline: Pipeline, state: State, scale: float, doublings: int) -> float:
    energy = 0.0
    for stage in range(state.load.size):
        power = state.load[stage] * scale
        for _ in range(doublings):
            power *= power
        over = state.used[stage] - pipeline.room[stage]
        energy += power + (_OVERFLOW * over / max(1.0, pipeline.room[stage]) if over > 0.0 else 0.0)
    return energy


@compiled
def _keep_if_best(pipeline: Pipeline, state: State) -> None:
    value = state.load.max()
    if value < state.best_value[0] * (1.0 - 1e-12) and (state.used <= pipeline.room).all():
        state.best_value[0] = value
        state.best[:] = state.stage


@compiled
def anneal(
    pipeline: Pipeline,
    state: State,
    exponential: Floats,
    start: float,
    ends: Floats,
    doublings: int,
    num_steps: int,
) -> None:
    """`num_steps` steps, the temperature falling with the square of what is left of the round: `ends` of [1, 0].

    `start` is the round's first temperature in units of one device at the best value's energy; loads enter the energy
    as their power 2 ** doublings.
    """
    scale, random = 1.0 / state.best_value[0], state.random
    energy = _energy(pipeline, state, scale, doublings)
    for step in range(num_steps):
        left = ends[0] + (ends[1] - ends[0]) * (step / num_steps)
        able = state.num_able[_LATER] + state.num_able[_EARLIER]
        if able == 0:
            return
        chosen = draw(random, able)
        way = _LATER if chosen < state.num_able[_LATER] else _EARLIER
        item = state.able[way, chosen if way == _LATER else chosen - state.num_able[_LATER]]
        origin, sign = state.stage[item], 1 if way == _LATER else -1
        target, kind = origin + sign, draw(random, 16)
        if kind == 0:
            target += sign * draw(random, max(1, sign * (_furthest(pipeline, state, item, way) - origin)))
        allowance = start * left * left * exponential[draw(random, exponential.size)]
        if kind < _SINGLES:
            if not _can_move(pipeline, state, item, target):
                continue
            _carry(pipeline, state, item, target)
            after = _energy(pipeline, state, scale, doublings)
            if after - energy > allowance:
                _carry(pipeline, state, item, origin)
                continue
            _list_with_neighbours(pipeline, state, item, origin)
        else:
            size = _move(pipeline, state, item, target, way, 2 << draw(random, _OCTAVES))
            after = _energy(pipeline, state, scale, doublings)
            if after - energy > allowance:
                for index in range(size - 1, -1, -1):
                    _shift(pipeline, state, state.moved[index], origin)
                continue
        energy = after
        _keep_if_best(pipeline, state)
