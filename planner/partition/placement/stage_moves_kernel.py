"""Simulated annealing over item → stage, where stages stand in an order and items follow one another; or anywhere.

A step moves an item that nothing in its stage keeps there, at times with the items that it sets free, to a later or an
earlier stage; or two stages change devices. What is to be least is the largest load, and the energy a high power sum of
the loads, as of netlists (netlists/annealing_kernel); or it is when the last pass of a training step, or of a lone
batch, ends. Anywhere, a stage is all that one device runs, and a step moves any item, alone, with some around it or in
exchange for another one.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.placement.compiled import compiled
from planner.partition.placement.draws_kernel import Random, draw
from planner.partition.problem import Booleans, Floats, Integers
from planner.partition.turns_kernel import Passes, Turns, last_end

# Of 16 steps, those that move one item; others move up to 2, 4, 8 or so many.
_SINGLES, _OCTAVES = 12, 3
MAX_MOVED = 1 << _OCTAVES
_TAKEN, _SENT, _HANDED = range(3)
# Of so many where the next device is idle, one begins a stage there; others go on to the next stage.
_STEPS_PER_BEGIN = 4
# Of 16 steps anywhere, those that exchange two items; of 4, those to a device that has no neighbour.
_EXCHANGES, _STEPS_PER_FAR = 2, 4
# A stage over its memory by all of it pays as much as so many devices at the best load, or so many of the best ends.
_OVERFLOW = 4.0
# What loads weigh beside the last end: among those as soon, even loads have more ways on.
_EVENNESS = 0.01
_LATER, _EARLIER = 0, 1
FORWARD, BACKWARD = range(2)
# Rows of sums: of what passes compute, forward, backward, and of that for weights; of the messages that they take
# before and send behind that, forward and backward; and bytes.
WORK, TAKEN, SENT, USED = 0, 3, 5, 7
NUM_SUMS = 8
_WEIGHTS = 2


class ItemCosts(NamedTuple):
    """`seconds` [1 to 3, kinds, items] of passes, as WORK has them, infinite where a device of the kind cannot run the
    item. `held`, and `saved` for each microbatch that a stage keeps, [items] bytes; `kept` [stages] of these."""

    seconds: Floats
    held: Floats
    saved: Floats
    kept: Floats


class ValueCosts(NamedTuple):
    """`seconds` [passes, 2, links, values]: a value from one stage to another is paid by both, by its maker once, at
    the dearest link, and by who reads it. `buffered` [values] bytes at either end, `given` where it is read, for each
    microbatch that is `kept` [stages]. `link` [devices, devices] of those that are unlike. Gradients of those that
    `comes_back` [values] says come back; `is_input` [values] says what the caller gives."""

    seconds: Floats
    link: Integers
    buffered: Floats
    given: Floats
    kept: Floats
    comes_back: Booleans
    is_input: Booleans


class Pipeline(NamedTuple):
    """What does not change. `maker` [values] is -1 for what the caller gives to the first stage; `is_returned` values
    go to the stage that is `returning` them, the last but for devices anywhere. Lists stand from one first to the next:
    `reader` by value, without its maker, and `touched` values, `before` and `after` by item.

    Each direction of a stage pays the largest `latency` [passes, links] of the links that it uses; `handover` [passes,
    links]: how long the sender is at it before a receiver that waits can begin. `kind`, `alike` and `memory` [devices].
    `fixed` [stages] bytes that are used besides, wherever items are.

    `may_be_idle`: stages but for the first and the last may hold nothing. One of `steps_per_exchange` steps, 0: none,
    has two stages change devices, after which all is counted again. `by_last_end`: when the last pass ends, with stages
    in `turns`, is to be least. `is_anywhere`: stages are devices, between which values go either way.

    Functions that are called several times a step are given few arrays: each one costs a call some nanoseconds.
    """

    of_items: ItemCosts
    of_values: ValueCosts
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
    latency: Floats
    handover: Floats
    kind: Integers
    alike: Integers
    memory: Floats
    fixed: Floats
    may_be_idle: bool
    steps_per_exchange: int
    by_last_end: bool
    is_anywhere: bool
    returning: int
    turns: Turns


class State(NamedTuple):
    """What a search changes. `stage` [items], `device` [stages]. `readers` [values, stages] count items, and the
    caller; `stages_reading` [values] those with any. `messages` [passes, stages, stages]: values from one to the other,
    or whose gradients come back from the other; `given` [stages]: of them, inputs that the first stage hands on. `sums`
    [NUM_SUMS, stages], without latencies; `waits` [3, 2, stages] of those that were last filled in, of what is taken,
    what is sent, and until what is sent is handed over. `num_items` [stages].

    `beside` [2, items]: of an item's neighbours behind and before it, how many share its stage. `able` [2, items], the
    first `num_able` of each row: those with none, that can move to a later and to an earlier stage; `place` in it, -1
    for none. `best` and `best_device`: of `best_value[0]`. `value`: of the energy that was last asked for. Scratch: the
    items `moved` in a step, and the `rank` [stages] of stages among those that hold something.
    """

    stage: Integers
    device: Integers
    readers: Integers
    stages_reading: Integers
    messages: Integers
    given: Integers
    sums: Floats
    waits: Floats
    num_items: Integers
    beside: Integers
    able: Integers
    num_able: Integers
    place: Integers
    moved: Integers
    rank: Integers
    random: Random
    best: Integers
    best_device: Integers
    best_value: Floats
    value: Floats


@compiled
def recount(pipeline: Pipeline, state: State) -> None:
    """Everything from `stage` and `device` alone."""
    maker, stage, device, readers = pipeline.maker, state.stage, state.device, state.readers
    stages_reading, messages, sums, num_items = state.stages_reading, state.messages, state.sums, state.num_items
    num_stages = device.size
    readers[:, :] = 0
    stages_reading[:] = 0
    messages[:, :, :] = 0
    state.given[:] = 0
    sums[:, :] = 0.0
    sums[USED] = pipeline.fixed
    num_items[:] = 0
    state.place[:, :] = -1
    state.num_able[:] = 0
    _count_beside(stage, pipeline.after_first, pipeline.after, state.beside[_LATER])
    _count_beside(stage, pipeline.before_first, pipeline.before, state.beside[_EARLIER])
    for item in range(stage.size):
        kind = pipeline.kind[device[stage[item]]]
        _hold(pipeline.of_items, sums, num_items, item, stage[item], kind, 1)
        _list(state.able, state.num_able, state.place, state.beside, item, stage[item], num_stages)
    for value in range(maker.size):
        for at in range(pipeline.reader_first[value], pipeline.reader_first[value + 1]):
            _count(readers, stages_reading, value, stage[pipeline.reader[at]], 1)
        if pipeline.is_returned[value]:
            _count(readers, stages_reading, value, pipeline.returning, 1)
        source, others = _sender(maker, stage, readers, stages_reading, value)
        if others > 0:
            _pay(pipeline.of_values, device, readers, messages, state.given, sums, value, source, others, 1)


@compiled
def _count_beside(stage: Integers, first: Integers, others: Integers, beside: Integers) -> None:
    for item in range(stage.size):
        beside[item] = 0
        for at in range(first[item], first[item + 1]):
            beside[item] += stage[others[at]] == stage[item]


@compiled
def _hold(items: ItemCosts, sums: Floats, num_items: Integers, item: int, stage: int, kind: int, sign: int) -> None:
    """Adds the item to what the stage, on a device of the kind, computes and holds, or takes it back."""
    for row in range(items.seconds.shape[0]):
        sums[WORK + row, stage] += sign * items.seconds[row, kind, item]
    sums[USED, stage] += sign * (items.held[item] + items.kept[stage] * items.saved[item])
    num_items[stage] += sign


@compiled
def _count(readers: Integers, stages_reading: Integers, value: int, stage: int, change: int) -> None:
    before = readers[value, stage]
    readers[value, stage] = before + change
    if before == 0:
        stages_reading[value] += 1
    elif before + change == 0:
        stages_reading[value] -= 1


@compiled
def _sender(
    maker: Integers, stage: Integers, readers: Integers, stages_reading: Integers, value: int
) -> tuple[int, int]:
    """The stage that makes the value, or hands in what the caller gives, and how many others read it."""
    source = 0 if maker[value] < 0 else stage[maker[value]]
    others = stages_reading[value]
    if readers[value, source] > 0:
        others -= 1
    return source, others


@compiled
def _pay(
    values: ValueCosts, device: Integers, readers: Integers, messages: Integers, given: Integers, sums: Floats,
    value: int, source: int, others: int, sign: int,
) -> None:  # fmt: skip
    """Adds what stages pay for the value between its sender and the others that read it, or takes it back."""
    num_stages, own, goes_back = device.size, device[source], values.comes_back[value]
    dearest, dearest_back, target, left = 0.0, 0.0, source, others
    while left > 0:
        target = target + 1 if target + 1 < num_stages else 0
        if readers[value, target] == 0 or target == source:
            continue
        left -= 1
        link = values.link[own, device[target]]
        dearest = max(dearest, values.seconds[FORWARD, 0, link, value])
        sums[TAKEN + FORWARD, target] += sign * values.seconds[FORWARD, 1, link, value]
        sums[USED, target] += sign * (values.buffered[value] + values.kept[target] * values.given[value])
        messages[FORWARD, source, target] += sign
        if values.is_input[value]:
            given[target] += sign
        if goes_back:
            dearest_back = max(dearest_back, values.seconds[BACKWARD, 0, link, value])
            sums[SENT + BACKWARD, target] += sign * values.seconds[BACKWARD, 1, link, value]
            messages[BACKWARD, source, target] += sign
    sums[SENT + FORWARD, source] += sign * dearest
    sums[TAKEN + BACKWARD, source] += sign * dearest_back
    sums[USED, source] += sign * values.buffered[value]


@compiled
def _list(
    able: Integers, num_able: Integers, places: Integers, beside: Integers, item: int, stage: int, num_stages: int
) -> None:
    """Whether the item is able to move each way, as `beside` and its stage stand now."""
    for way in range(2):
        last = num_stages - 1 if way == _LATER else 0
        is_able = beside[way, item] == 0 and stage != last
        place = places[way, item]
        if is_able and place < 0:
            place = num_able[way]
            able[way, place] = item
            places[way, item] = place
            num_able[way] = place + 1
        elif not is_able and place >= 0:
            other = able[way, num_able[way] - 1]
            able[way, place] = other
            places[way, other] = place
            places[way, item] = -1
            num_able[way] -= 1


@compiled
def _shift(pipeline: Pipeline, state: State, item: int, target: int) -> None:
    origin = state.stage[item]
    _carry(pipeline, state, item, target)
    _list_with_neighbours(pipeline, state, item, origin)


@compiled
def _carry(pipeline: Pipeline, state: State, item: int, target: int) -> None:
    """The item with all that it costs. Which items are able to move is left as it was."""
    maker, values, stage, device, readers = pipeline.maker, pipeline.of_values, state.stage, state.device, state.readers
    stages_reading, messages, given, sums = state.stages_reading, state.messages, state.given, state.sums
    origin = state.stage[item]
    first, last = pipeline.touched_first[item], pipeline.touched_first[item + 1]
    for at in range(first, last):
        value = pipeline.touched[at]
        is_read = maker[value] != item
        # It makes no difference where others of both stages read it.
        if not is_read or readers[value, origin] == 1 or readers[value, target] == 0:
            source, others = _sender(maker, stage, readers, stages_reading, value)
            if others > 0:
                _pay(values, device, readers, messages, given, sums, value, source, others, -1)
        if is_read:
            _count(readers, stages_reading, value, origin, -1)
            _count(readers, stages_reading, value, target, 1)
    stage[item] = target
    for at in range(first, last):
        value = pipeline.touched[at]
        if maker[value] == item or readers[value, target] == 1 or readers[value, origin] == 0:
            source, others = _sender(maker, stage, readers, stages_reading, value)
            if others > 0:
                _pay(values, device, readers, messages, given, sums, value, source, others, 1)
    kinds, items = pipeline.kind, pipeline.of_items
    _hold(items, sums, state.num_items, item, origin, kinds[device[origin]], -1)
    _hold(items, sums, state.num_items, item, target, kinds[device[target]], 1)


@compiled
def _list_with_neighbours(pipeline: Pipeline, state: State, item: int, origin: int) -> None:
    """After the item came from `origin`."""
    stage, able, num_able, places, beside = state.stage, state.able, state.num_able, state.place, state.beside
    target, num_stages = stage[item], state.device.size
    for way in range(2):
        first, others = pipeline.after_first, pipeline.after
        if way == _EARLIER:
            first, others = pipeline.before_first, pipeline.before
        count = 0
        for at in range(first[item], first[item + 1]):
            other = others[at]
            if stage[other] == origin:
                beside[1 - way, other] -= 1
                _list(able, num_able, places, beside, other, origin, num_stages)
            elif stage[other] == target:
                beside[1 - way, other] += 1
                _list(able, num_able, places, beside, other, target, num_stages)
                count += 1
        beside[way, item] = count
    _list(able, num_able, places, beside, item, target, num_stages)


@compiled
def _furthest(pipeline: Pipeline, state: State, item: int, way: int) -> int:
    """The stage that the item's neighbours leave open to it."""
    if way == _LATER:
        stage = state.device.size - 1
        for at in range(pipeline.after_first[item], pipeline.after_first[item + 1]):
            stage = min(stage, state.stage[pipeline.after[at]])
        return stage
    stage = 0
    for at in range(pipeline.before_first[item], pipeline.before_first[item + 1]):
        stage = max(stage, state.stage[pipeline.before[at]])
    return stage


@compiled
def _runs(pipeline: Pipeline, state: State, item: int, stage: int) -> bool:
    return bool(pipeline.of_items.seconds[FORWARD, pipeline.kind[state.device[stage]], item] < np.inf)


@compiled
def _can_move(pipeline: Pipeline, state: State, item: int, target: int) -> bool:
    """Not to a device that cannot run it, nor from a stage that may not be without it."""
    origin = state.stage[item]
    may_leave = state.num_items[origin] > 1 or (pipeline.may_be_idle and 0 < origin < state.device.size - 1)
    return bool(may_leave and _runs(pipeline, state, item, target))


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
def energy(pipeline: Pipeline, state: State, passes: Passes, doublings: int, limit: float) -> float:
    """Fills in the `value`; infinite where the energy is above the limit for certain."""
    num_stages, sums, scale, over = state.device.size, state.sums, 1.0 / state.best_value[0], 0.0
    for stage in range(num_stages):
        room = pipeline.memory[state.device[stage]]
        if sums[USED, stage] > room:
            over += _OVERFLOW * (sums[USED, stage] - room) / max(1.0, room)
    links, device = pipeline.of_values.link, state.device
    _wait(state.messages, links, pipeline.latency, pipeline.handover, device, pipeline.is_anywhere, state.waits)
    total, most = 0.0, 0.0
    for stage in range(num_stages):
        own = load(sums, state.waits, stage)
        most, power = max(most, own), own * scale
        if pipeline.by_last_end:
            total += (power * pipeline.turns.microbatches) ** 2
            continue
        for _ in range(doublings):
            power *= power
        total += power
    if not pipeline.by_last_end:
        state.value[0] = most
        return total + over
    rest = over + _EVENNESS * np.sqrt(total / num_stages)
    if rest > limit:
        return np.inf
    splits = pipeline.turns.splits
    count = _fill(sums, state.waits, state.messages, state.given, state.num_items, state.rank, splits, passes)
    state.value[0] = last_end(pipeline.turns, passes, count, (limit - rest) / scale)
    whole: float = rest + state.value[0] * scale
    return whole


@compiled
def load(sums: Floats, waits: Floats, stage: int) -> float:
    """Seconds of one microbatch, with latencies as they were last filled in."""
    total = 0.0
    for way in range(2):
        total += sums[WORK + way, stage] + sums[TAKEN + way, stage] + sums[SENT + way, stage]
        total += waits[_TAKEN, way, stage] + waits[_SENT, way, stage]
    return total


@compiled
def _wait(
    messages: Integers, links: Integers, latency: Floats, handover: Floats, device: Integers, either_way: bool,
    waits: Floats,
) -> None:  # fmt: skip
    """Fills in the latencies that each stage pays, and how long what it makes is handed over."""
    num_stages = device.size
    waits[:, :, :] = 0.0
    for way in range(messages.shape[0]):
        for source in range(num_stages):
            for target in range(0 if either_way else source + 1, num_stages):
                if messages[way, source, target] == 0:
                    continue
                link = links[device[source], device[target]]
                first, last = (source, target) if way == FORWARD else (target, source)
                waits[_SENT, way, first] = max(waits[_SENT, way, first], latency[way, link])
                waits[_TAKEN, way, last] = max(waits[_TAKEN, way, last], latency[way, link])
                waits[_HANDED, way, first] = max(waits[_HANDED, way, first], handover[way, link])


@compiled
def _fill(
    sums: Floats, waits: Floats, messages: Integers, given: Integers, num_items: Integers, rank: Integers, splits: bool,
    passes: Passes,
) -> int:  # fmt: skip
    """The passes of stages that hold something, one stage after the other. How many these are.

    In a lone batch what the first stage is given leaves ahead of its pass, where nothing else goes with it.
    """
    count, sources, num_sources, returns = 0, passes.sources, passes.num_sources, messages.shape[0] > BACKWARD
    was_ahead = True
    for stage in range(num_items.size):
        if num_items[stage] == 0:
            continue
        rank[stage] = count
        for way in range(2):
            own = sums[TAKEN + way, stage] + waits[_TAKEN, way, stage] + sums[WORK + way, stage]
            passes.lag[way, count] = own + waits[_HANDED, way, stage]
            passes.seconds[way, count] = own
            if returns:
                # A lone batch is over when all have computed, whatever some are still sending.
                passes.seconds[way, count] += sums[SENT + way, stage] + waits[_SENT, way, stage]
            num_sources[way, count] = 0
        gives_back, size = False, 0
        for other in range(stage):
            giver = rank[other]
            if messages[FORWARD, other, stage] > 0:
                sources[FORWARD, count, size] = giver
                size += 1
            if returns and messages[BACKWARD, other, stage] > 0:
                sources[BACKWARD, giver, num_sources[BACKWARD, giver]] = count
                num_sources[BACKWARD, giver] += 1
                gives_back = True
        is_ahead = False
        if returns and size == 0 and count > 0:
            # It hears of a microbatch from the stage before it.
            sources[FORWARD, count, 0], size = count - 1, 1
        elif not returns and 0 < messages[FORWARD, 0, stage] == given[stage]:
            size -= 1
            sources[FORWARD, count, 0], is_ahead = sources[FORWARD, count, size], True
        elif not returns and size == 0 and count > 0:
            # It hears of a lone batch when the stage before it does.
            is_ahead = was_ahead
            if not is_ahead:
                sources[FORWARD, count, 0], size = sources[FORWARD, count - 1, 0], 1
        num_sources[FORWARD, count], was_ahead = size, is_ahead or count == 0
        if splits:
            passes.weights[count] = sums[WORK + (_WEIGHTS if gives_back else BACKWARD), stage]
            passes.lag[BACKWARD, count] -= passes.weights[count]
            passes.seconds[BACKWARD, count] -= passes.weights[count]
        count += 1
    return count


@compiled
def _keep_if_best(pipeline: Pipeline, state: State) -> None:
    if state.value[0] >= state.best_value[0] * (1.0 - 1e-12):
        return
    for stage in range(state.device.size):
        if state.sums[USED, stage] > pipeline.memory[state.device[stage]]:
            return
    state.best_value[0] = state.value[0]
    state.best[:] = state.stage
    state.best_device[:] = state.device


@compiled
def _exchange_devices(pipeline: Pipeline, state: State, one: int, other: int) -> None:
    state.device[one], state.device[other] = state.device[other], state.device[one]
    recount(pipeline, state)


@compiled
def anneal(
    pipeline: Pipeline,
    state: State,
    passes: Passes,
    exponential: Floats,
    start: float,
    ends: Floats,
    doublings: int,
    num_steps: int,
) -> None:
    """`num_steps` steps, the temperature falling with the square of what is left of the round: `ends` of [1, 0].

    `start` is the round's first temperature, in units of one device at the best value's energy, where loads enter it as
    their power 2 ** doublings; or in shares of the best step.
    """
    random, num_stages = state.random, state.device.size
    here = energy(pipeline, state, passes, doublings, np.inf)
    for step in range(num_steps):
        left = ends[0] + (ends[1] - ends[0]) * (step / num_steps)
        if pipeline.steps_per_exchange > 0 and draw(random, pipeline.steps_per_exchange) == 0:
            one, other = draw(random, num_stages), draw(random, num_stages)
            if pipeline.alike[state.device[one]] == pipeline.alike[state.device[other]]:
                continue
            limit = here + start * left * left * exponential[draw(random, exponential.size)]
            _exchange_devices(pipeline, state, one, other)
            after = energy(pipeline, state, passes, doublings, limit)
            if after <= limit:
                here = after
                _keep_if_best(pipeline, state)
            else:
                _exchange_devices(pipeline, state, one, other)
            continue
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
        elif pipeline.may_be_idle and draw(random, _STEPS_PER_BEGIN) > 0:
            # The last and the first stage are never without any.
            while state.num_items[target] == 0:
                target += sign
        limit = here + start * left * left * exponential[draw(random, exponential.size)]
        if kind < _SINGLES:
            if not _can_move(pipeline, state, item, target):
                continue
            _carry(pipeline, state, item, target)
            after = energy(pipeline, state, passes, doublings, limit)
            if after > limit:
                _carry(pipeline, state, item, origin)
                continue
            _list_with_neighbours(pipeline, state, item, origin)
        else:
            size = _move(pipeline, state, item, target, way, 2 << draw(random, _OCTAVES))
            after = energy(pipeline, state, passes, doublings, limit)
            if after > limit:
                for index in range(size - 1, -1, -1):
                    _shift(pipeline, state, state.moved[index], origin)
                continue
        here = after
        _keep_if_best(pipeline, state)


@compiled
def anneal_anywhere(
    pipeline: Pipeline,
    state: State,
    passes: Passes,
    exponential: Floats,
    start: float,
    ends: Floats,
    doublings: int,
    num_steps: int,
) -> None:
    """As `anneal`, for items that any device may take. Which items are able to move is left as it was."""
    random, moved, num_items = state.random, state.moved, state.stage.size
    here = energy(pipeline, state, passes, doublings, np.inf)
    for step in range(num_steps):
        left = ends[0] + (ends[1] - ends[0]) * (step / num_steps)
        item, kind = draw(random, num_items), draw(random, 16)
        origin, other, size = state.stage[item], -1, 1
        if kind < _EXCHANGES:
            other = draw(random, num_items)
            target = state.stage[other]
        else:
            target = _near_or_far(pipeline, state, item)
        if target == origin or not _runs(pipeline, state, item, target):
            continue
        if other >= 0 and not _runs(pipeline, state, other, origin):
            continue
        limit = here + start * left * left * exponential[draw(random, exponential.size)]
        moved[0] = item
        if kind >= _SINGLES:
            size = _gather(pipeline, state, item, target, 2 << draw(random, _OCTAVES))
        for index in range(size):
            _carry(pipeline, state, moved[index], target)
        if other >= 0:
            _carry(pipeline, state, other, origin)
        after = energy(pipeline, state, passes, doublings, limit)
        if after <= limit:
            here = after
            _keep_if_best(pipeline, state)
            continue
        if other >= 0:
            _carry(pipeline, state, other, target)
        for index in range(size - 1, -1, -1):
            _carry(pipeline, state, moved[index], origin)


@compiled
def _near_or_far(pipeline: Pipeline, state: State, item: int) -> int:
    """The stage of an item that makes what this one reads, or reads what it makes; at times, or without one, any."""
    random, first = state.random, pipeline.touched_first[item]
    count = pipeline.touched_first[item + 1] - first
    if count == 0 or draw(random, _STEPS_PER_FAR) == 0:
        return int(draw(random, state.device.size))
    value = pipeline.touched[first + draw(random, count)]
    readers = pipeline.reader_first[value + 1] - pipeline.reader_first[value]
    at = draw(random, readers + 1)
    if at < readers:
        return int(state.stage[pipeline.reader[pipeline.reader_first[value] + at]])
    return int(state.stage[pipeline.maker[value]]) if pipeline.maker[value] >= 0 else 0


@compiled
def _gather(pipeline: Pipeline, state: State, first: int, target: int, limit: int) -> int:
    """Fills `moved` with the item and, up to the limit, those around it in its stage that the target can run. How many.

    In a chain these are neighbours on both sides.
    """
    origin, moved = state.stage[first], state.moved
    moved[0] = first
    size, at = 1, 0
    while at < size and size < limit:
        for way in range(2):
            starts, others = pipeline.before_first, pipeline.before
            if way == _LATER:
                starts, others = pipeline.after_first, pipeline.after
            for index in range(starts[moved[at]], starts[moved[at] + 1]):
                other = others[index]
                is_new = size < limit and state.stage[other] == origin and _runs(pipeline, state, other, target)
                for earlier in range(size):
                    is_new = is_new and moved[earlier] != other
                if is_new:
                    moved[size] = other
                    size += 1
        at += 1
    return size
