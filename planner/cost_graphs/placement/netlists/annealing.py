"""Rounds of annealing over a netlist: hot ones look elsewhere, cool ones polish the best in hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np

from planner.cost_graphs.placement.netlists.netlist import Netlist
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Integers

_CHUNK_STEPS = 1 << 18
_FIRST_ROUND_STEPS_PER_CELL = 1_000
_MAX_ROUND_STEPS = 1 << 26
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """`doublings`: loads enter the energy as their power 2 ** doublings. `start`: the first temperature.

    `swaps`, `clusters`: so many of 256 steps are of that kind; the rest move one cell.
    """

    doublings: int
    start: float
    swaps: int
    clusters: int


# Down from the start only: for a graph so large that hot rounds would end before they have cooled.
_COLD = Heat(doublings=4, start=0.0, swaps=40, clusters=20)
_COLD_STEPS_PER_CELL = 50
# Found by trial on profiled graphs: no one setting is best on all of them.
_WIDE = Heat(doublings=4, start=0.05, swaps=160, clusters=60)
_HEATS = (
    Heat(doublings=3, start=0.02, swaps=60, clusters=120),
    _WIDE,
    Heat(doublings=5, start=0.1, swaps=160, clusters=30),
    _WIDE,
    Heat(doublings=3, start=0.01, swaps=160, clusters=30),
    _WIDE,
    Heat(doublings=3, start=2.0, swaps=128, clusters=60),
)


def annealed(
    netlist: Netlist, start: Integers, *, steps: int, target_seconds: float, out_of_time: OutOfTime, turn: int = 0
) -> tuple[Integers, float]:
    """[cells] devices and their greatest load, no worse than `start`; ends at `target_seconds` or after `steps`.

    `start` has to fit. `turn` varies the random choices. Each round is longer than the one before, so that most of any
    budget goes to long ones.
    """
    from planner.cost_graphs.placement.netlists import annealing_kernel as kernel
    from planner.partition.placement.draws_kernel import EXPONENTIAL

    arena, state = kernel.arena_of(netlist), kernel.state_of(netlist, start)
    state.random[0] ^= np.uint64(turn)
    kernel.recount(arena, state)
    state.best_value[0] = state.load.max()

    def is_over() -> bool:
        return bool(state.best_value[0] <= target_seconds * (1 + _NEGLIGIBLE)) or out_of_time()

    def run(heat: Heat, round_steps: int) -> None:
        """From the best."""
        state.device[:] = state.best
        state.is_changed[:] = 0
        state.num_changed[0] = 0
        state.doublings[0] = heat.doublings
        kernel.recount(arena, state)
        for done in range(0, round_steps, _CHUNK_STEPS):
            if is_over():
                break
            more = min(_CHUNK_STEPS, round_steps - done)
            ends = np.array([1 - done / round_steps, 1 - (done + more) / round_steps])
            kernel.anneal(arena, state, EXPONENTIAL, heat.start, ends, heat.swaps, heat.clusters, more)
            # Sums kept up step by step drift; from the devices alone they do not.
            kernel.recount(arena, state)

    first = min(_COLD_STEPS_PER_CELL * netlist.num_cells, steps)
    length, left = max(_FIRST_ROUND_STEPS_PER_CELL * netlist.num_cells, steps // 8), steps - first
    run(_COLD, first)
    for number in count(turn):
        round_steps = min(length, left, _MAX_ROUND_STEPS)
        if round_steps <= 0 or netlist.num_devices == 1 or is_over():
            break
        run(_HEATS[number % len(_HEATS)], round_steps)
        left -= round_steps
        length += length // 4
    return state.best.copy(), float(state.best_value[0])
