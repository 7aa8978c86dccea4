"""The loop over pairs of ideals, compiled. Apart, so that only a search over ideals waits for the compiler."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.ideals.ideal_costs import IdealTables
from planner.partition.lattice import Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Booleans, Floats, Integers


@compiled
def relax_rows(
    rows: tuple[int, int],
    ideals: Words,
    work: Integers,
    tables: IdealTables,
    class_bytes: Floats,
    step: Integers,
    alive: Booleans,
    alive_mask: Words,
    limit: float,
    max_work: int,
    best: Floats,
    parent: Integers,
) -> int:
    """Takes each ideal in `rows` as a start, and every superset as an end of the next stage. Returns pairs seen, one
    whose load is worked out counting as several.

    `best` [i, s]: the least bottleneck of stages that cover ideal i with the devices of state s. `parent`: the last
    stage, as (start * states + state before) * classes + class. O(pairs * edges).
    """
    num_ideals, num_words = ideals.shape
    num_states, num_classes = step.shape
    reached = np.zeros(tables.num_pins.size, dtype=np.int64)
    live = np.zeros(num_states, dtype=np.int64)
    next_states = np.zeros(num_classes, dtype=np.uint64)
    num_pairs = 0
    for start in range(rows[0], rows[1]):
        num_live = 0
        next_states[:] = 0
        targets = np.uint64(0)
        for state in range(num_states):
            if alive[start, state] and best[start, state] < limit:
                live[num_live] = state
                num_live += 1
                for own in range(num_classes):
                    if step[state, own] >= 0:
                        next_states[own] |= np.uint64(1) << np.uint64(step[state, own] & 63)
        if num_live == 0:
            continue
        for own in range(num_classes):
            targets |= next_states[own]
        for at in range(tables.first[start], tables.first[start + 1]):
            reached[tables.edge[at]] = tables.pins[at]
        for end in range(start + 1, num_ideals):
            if work[end] - work[start] > max_work:
                break
            num_pairs += 1
            if alive_mask[end] & targets == 0:
                continue
            inside = True
            for word in range(num_words):
                if ideals[start, word] & ~ideals[end, word] != 0:
                    inside = False
                    break
            if not inside:
                continue
            for own in range(num_classes):
                if alive_mask[end] & next_states[own] == 0:
                    continue
                least = tables.compute[end, own] - tables.compute[start, own]
                if least >= limit or tables.forbidden[end, own] != tables.forbidden[start, own]:
                    continue
                if tables.held_bytes[end] - tables.held_bytes[start] > class_bytes[own]:
                    continue
                num_pairs += 2 * num_live
                gains = False
                for index in range(num_live):
                    state = live[index]
                    after = step[state, own]
                    if after >= 0 and alive[end, after]:
                        gains = gains or max(best[start, state], least) < best[end, after]
                if not gains:
                    continue
                num_pairs += 2 * (tables.first[end + 1] - tables.first[end])
                load = tables.closing[end, own] - tables.opening[start, own]
                for at in range(tables.first[end], tables.first[end + 1]):
                    pins_before = reached[tables.edge[at]]
                    if pins_before > 0:
                        base, size, now = (
                            tables.offset[tables.edge[at]],
                            tables.num_pins[tables.edge[at]],
                            tables.pins[at],
                        )
                        load += tables.payments[own, base + now - pins_before] - tables.payments[own, base + now]
                        load += tables.payments[own, base + size] - tables.payments[own, base + size - pins_before]
                if load >= limit:
                    continue
                for index in range(num_live):
                    state = live[index]
                    after = step[state, own]
                    if after >= 0 and alive[end, after]:
                        value = max(best[start, state], load)
                        if value < best[end, after]:
                            best[end, after] = value
                            parent[end, after] = (start * num_states + state) * num_classes + own
        for at in range(tables.first[start], tables.first[start + 1]):
            reached[tables.edge[at]] = 0
    return num_pairs
