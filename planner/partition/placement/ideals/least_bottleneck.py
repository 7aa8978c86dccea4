"""The least bottleneck over chains of ideals: exact dynamic programming, pruned by the value in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.lattice import Words
from planner.partition.placement.device_states import DeviceStates
from planner.partition.placement.ideals.contraction import ItemCosts
from planner.partition.placement.ideals.ideal_costs import IdealSets, ideal_sets, ideal_tables
from planner.partition.placement.ideals.pruning import may_lead_on
from planner.partition.placement.problem import OutOfTime, never
from planner.partition.problem import Booleans, Floats, Integers

_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Item numbers, and the class of the device that takes them."""

    items: tuple[int, ...]
    device_class: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """`stages` in order; `value_seconds` is inf if none below the limit were found. `complete`: none is better.

    `reached` [ideals, states]: the least bottleneck below the limit with which each ideal is covered.
    """

    stages: tuple[Stage, ...]
    value_seconds: float
    complete: bool
    num_pairs: int
    reached: Floats


def best_chain(
    costs: ItemCosts,
    ideals: Sequence[int],
    states: DeviceStates,
    class_bytes: Floats,
    limit: float,
    *,
    max_pairs: int,
    out_of_time: OutOfTime = never,
    allowed: Booleans | None = None,
) -> Chain:
    """The least bottleneck below `limit`, by states that `allowed` [ideals, states] has not ruled out.

    O(ideals^2 * (edges at a border + states)) before pruning.
    """
    from planner.partition.placement.ideals.stage_kernel import relax_rows

    sets = ideal_sets(costs, ideals)
    alive = may_lead_on(costs, sets, states, class_bytes, limit)
    if allowed is not None:
        alive &= allowed[sets.index]
    reachable = alive.sum(axis=1) > 0
    reached = np.full((len(ideals), states.num_states), np.inf)
    if not (reachable[0] and reachable[-1]):
        return Chain(stages=(), value_seconds=np.inf, complete=states.complete, num_pairs=0, reached=reached)
    sets, alive = sets.only(reachable), np.ascontiguousarray(alive[reachable])
    tables = ideal_tables(costs, sets)
    best = np.full(alive.shape, np.inf)
    best[0, 0] = 0.0
    parent = np.full(alive.shape, -1, dtype=np.int64)
    masks, num_ideals = _masks(alive), alive.shape[0]
    max_work = int(min(limit / sets.step_seconds, 1 << 62)) + costs.num_items
    num_pairs, row = 0, 0
    while row < num_ideals and num_pairs < max_pairs and not out_of_time():
        end = min(row + _ROWS_AT_ONCE, num_ideals)
        num_pairs += relax_rows(
            (row, end), sets.words, sets.work, tables, class_bytes, states.step, alive, masks, limit,
            max_work, best, parent,
        )  # fmt: skip
        row = end
    reached[sets.index] = best
    state = int(np.argmin(best[-1]))
    value = float(best[-1, state])
    return Chain(
        stages=_traced(sets, parent, states, state) if np.isfinite(value) else (),
        value_seconds=value,
        complete=states.complete and row == num_ideals,
        num_pairs=num_pairs,
        reached=reached,
    )


def _masks(alive: Booleans) -> Words:
    """[ideals]: a bit for each state that is alive, 64 apart sharing one."""
    masks = np.zeros(alive.shape[0], dtype=np.uint64)
    for state in range(alive.shape[1]):
        masks |= alive[:, state].astype(np.uint64) << np.uint64(state & 63)
    return masks


def _traced(sets: IdealSets, parent: Integers, states: DeviceStates, state: int) -> tuple[Stage, ...]:
    stages = []
    end = sets.work.size - 1
    while end:
        before, own = divmod(int(parent[end, state]), states.step.shape[1])
        start, state = divmod(before, states.num_states)
        members = np.flatnonzero(sets.bits[:, end] & ~sets.bits[:, start])
        stages.append(Stage(items=tuple(members.tolist()), device_class=own))
        end = start
    return tuple(reversed(stages))
