"""The least bottleneck over contiguous segments of the program order: which cuts, and which device takes which segment.

This is the dynamic programme of Tarnawski et al. (NeurIPS 2020) over one linear order, with a choice of devices. Coarse
first, for a value to beat; then over every allowed position, leaving out what cannot beat it. Exact with relayed
tensors or equal links, where a segment's load follows from its ends and its neighbours' devices, as long as devices
differ in few ways (memory that cannot bind is no difference) and positions are affordable. Direct routing over unequal
links is searched with bounds on the loads, then by branch and bound on the true ones: its answer may leave a gap to
`lower_bound_seconds`. So may devices that are too many to tell apart: some orders of them are tried, and all orders of
them with memory in tiers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from planner.partition.ordered.exact_search import NEGLIGIBLE, branch_and_bound
from planner.partition.ordered.host_windows import over_windows
from planner.partition.ordered.many_devices import affordable, over_many_devices
from planner.partition.ordered.memory_tiers import everything_bytes, in_memory_tiers, without_idle_memory
from planner.partition.ordered.positions import allowed_positions, few_positions
from planner.partition.ordered.program_pass import Layout, OrderedPass, evaluate_layout, ordered_pass
from planner.partition.ordered.search import Solution, reach
from planner.partition.ordered.segment_loads import only_neighbours_exchange
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.training.memory import depends_on_num_stages

# Pairs of a step and an end that one pass may look at: about a second.
MAX_PAIRS = 1.5e8
# Starts of segments that one pass over all positions may have: about three seconds.
MAX_STARTS = 8_000
COARSE_POSITIONS = 160
# In training, with memory that binds, every number of stages is searched: over all of so many positions, else over few.
MAX_TRAINING_POSITIONS = 64
TRAINING_POSITIONS = 80
# Where devices differ in too many ways to tell all apart, of memory in tiers: a tenth of a second for each trial.
MAX_TIERED_WORDS = 1_000_000
# Positions that walks through many devices are searched over: all if they are no more.
MAX_WALK_POSITIONS, COARSE_WALK_POSITIONS = 512, 64
# Branch and bound looks at so many reads, over all the layouts that it tries: about a second.
MAX_TRIED_READS = 4_000_000


def least_bottleneck(
    problem: PartitionProblem, num_stages: int = 0, *, prove: bool = True, coarse: bool = False
) -> Layout | None:
    """None if nothing fits: no segments, in any order of the devices that was tried, stay within memory. Without
    `prove`, the bound is one that needs no search of its own. If it may be `coarse`, a layout over few of many
    positions will do: for searches that go on from there.

    In training, what a stage keeps may depend on the number of stages behind it: see `_least_in_training`.
    """
    few = problem.training is None or not depends_on_num_stages(problem.training)
    if num_stages or few or problem.device_memory_bytes.min() >= everything_bytes(problem):
        return _least_bottleneck(problem, num_stages, prove=prove, coarse=coarse)[0]
    return _least_in_training(problem, coarse=coarse)


def _least_in_training(problem: PartitionProblem, *, coarse: bool) -> Layout | None:
    """As if each stage kept one microbatch: a bound, and the answer if that fits in truth. Else every number of stages
    in turn: exact up to MAX_TRAINING_POSITIONS, beyond that over the positions most worth cutting at, and over
    all of them for what fits wherever a stage stands. The first of equal plans is chosen."""
    assert problem.training is not None
    light = replace(problem, training=replace(problem.training, microbatches=1))
    lightest, bound = _least_bottleneck(light, 0, coarse=coarse)
    if lightest and evaluate_layout(problem, lightest.boundaries, lightest.devices).fits(problem):
        return lightest
    most = min(problem.num_devices, allowed_positions(problem).size - 1)
    if allowed_positions(problem).size <= MAX_TRAINING_POSITIONS:
        exact = [_least_bottleneck(problem, stages) for stages in range(1, most + 1)]
        plans = [layout for layout, _ in exact if layout is not None]
        bound = max(bound, min(least for _, least in exact))
    else:
        # As many kept as there could be stages: what fits so, fits.
        safe, _ = _least_bottleneck(problem, 0, coarse=coarse)
        plans = [safe] if safe is not None else []
        for stages in range(1, most + 1):
            shared = ordered_pass(problem, stages)
            limit = min((one.bottleneck_seconds for one in plans), default=np.inf)
            solution = shared.search(few_positions(problem, TRAINING_POSITIONS), limit)
            layout = shared.layout(solution.boundaries, solution.steps)
            plans += [layout] if layout is not None else []
    if not plans:
        return None
    best = min(plans, key=lambda layout: layout.bottleneck_seconds)
    return replace(best, lower_bound_seconds=min(best.bottleneck_seconds, bound))


def _least_bottleneck(
    problem: PartitionProblem, num_stages: int, *, prove: bool = True, coarse: bool = False
) -> tuple[Layout | None, float]:
    """With a bound for every layout of so many stages, infinite where there is provably none."""
    problem = without_idle_memory(problem)
    in_hand = _coarse_layout(problem, num_stages)
    if in_hand is not None:
        if coarse and allowed_positions(problem).size > COARSE_POSITIONS:
            return in_hand, 0.0
        problem = without_idle_memory(problem, in_hand.bottleneck_seconds)
    shared = ordered_pass(problem, num_stages)
    proven = 0.0
    exact = shared.exact_loads or only_neighbours_exchange(problem)
    if not (shared.complete and shared.exact_loads) and (exact or prove or in_hand is None):
        in_hand, proven = _over_walks(problem, num_stages, in_hand)
        if exact and not (num_stages or problem.relay or _is_proven(in_hand, proven)):
            in_hand = _best_of(problem, over_windows(problem, _limit(in_hand)), in_hand)
    if shared.complete and not _is_proven(in_hand, proven):
        fine, fine_bound = _search(shared, _limit(in_hand))
        in_hand, proven = _better(in_hand, shared.layout(fine.boundaries, fine.steps)), max(proven, fine_bound)
        if in_hand and not shared.exact_loads and in_hand.bottleneck_seconds > fine.value * (1 + NEGLIGIBLE):
            in_hand, proven = _refined(shared, fine, in_hand, proven)
    if in_hand is None:
        return None, proven
    bound = min(max(proven, _cheap_bound(shared, in_hand.bottleneck_seconds)), in_hand.bottleneck_seconds)
    return replace(in_hand, lower_bound_seconds=bound), bound


def _is_proven(in_hand: Layout | None, proven: float) -> bool:
    return in_hand is not None and in_hand.bottleneck_seconds <= proven * (1 + NEGLIGIBLE)


def _over_walks(problem: PartitionProblem, num_stages: int, in_hand: Layout | None) -> tuple[Layout | None, float]:
    """The better of the layout in hand and the best walk, and a bound: 0 where not all positions are exact.

    With memory in tiers where devices are of too many kinds.
    """
    allowed = allowed_positions(problem)
    every = allowed.size <= MAX_WALK_POSITIONS
    positions = few_positions(problem, MAX_WALK_POSITIONS)
    in_tiers = not affordable(problem, positions.size)
    lower = _in_tiers(problem, positions, round_up=False) if in_tiers else problem
    walks = over_many_devices(lower, positions, num_stages=num_stages, limit=_limit(in_hand)) if lower else None
    in_hand = _best_of(problem, walks.layouts if walks else (), in_hand)
    if not every:
        return in_hand and _best_cuts(problem, num_stages, in_hand), 0.0
    if in_tiers:
        higher = _in_tiers(problem, positions, round_up=True)
        walks = over_many_devices(higher, positions, num_stages=num_stages, limit=_limit(in_hand)) if higher else None
    return in_hand, walks.value if walks is not None else 0.0


def _best_cuts(problem: PartitionProblem, num_stages: int, layout: Layout) -> Layout:
    """Over all positions that can be afforded, with its devices in the order that they have."""
    shared = ordered_pass(problem, num_stages, layout.devices)
    fine, _ = _search(shared, _limit(layout))
    return _better(layout, shared.layout(fine.boundaries, fine.steps)) or layout


def _best_of(
    problem: PartitionProblem, layouts: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], in_hand: Layout | None
) -> Layout | None:
    for boundaries, devices in layouts:
        seconds = evaluate_layout(problem, boundaries, devices).bottleneck_seconds
        in_hand = _better(in_hand, Layout(boundaries=boundaries, devices=devices, bottleneck_seconds=seconds))
    return in_hand


def _in_tiers(problem: PartitionProblem, positions: Integers, *, round_up: bool) -> PartitionProblem | None:
    return in_memory_tiers(
        problem, lambda tiered: affordable(tiered, positions.size, MAX_TIERED_WORDS), round_up=round_up
    )


def _limit(in_hand: Layout | None) -> float:
    """Just above the value in hand, so that rounding leaves nothing out."""
    return in_hand.bottleneck_seconds * (1 + 1e-9) if in_hand else np.inf


def _search(shared: OrderedPass, limit: float) -> tuple[Solution, float]:
    """The pass's solution below the limit, and what nothing undercuts: 0 if not everything was exact."""
    positions = _affordable_positions(shared, limit)
    solution = shared.search(positions, limit)
    every_position = positions.size == allowed_positions(shared.problem).size
    return solution, min(solution.value, limit) if every_position and shared.complete else 0.0


def _coarse_layout(problem: PartitionProblem, num_stages: int) -> Layout | None:
    shared = ordered_pass(problem, num_stages)
    in_hand = None
    if shared.complete:
        coarse = shared.search(few_positions(problem, COARSE_POSITIONS))
        in_hand = shared.layout(coarse.boundaries, coarse.steps)
    if not (num_stages or shared.exact_loads or only_neighbours_exchange(problem)):
        in_hand = _best_of(problem, over_windows(problem, _limit(in_hand)), in_hand)
    if in_hand is None and not shared.complete:
        walks = over_many_devices(problem, few_positions(problem, COARSE_WALK_POSITIONS), num_stages=num_stages)
        in_hand = _best_of(problem, walks.layouts if walks else (), None)
    return in_hand


def _refined(shared: OrderedPass, fine: Solution, in_hand: Layout, proven: float) -> tuple[Layout, float]:
    """A better layout if there is one in reach, and the best proven bound."""
    trials = MAX_TRIED_READS // (shared.problem.read_value.size + 1000)
    exact = branch_and_bound(shared, fine, in_hand.bottleneck_seconds, trials)
    best = _better(in_hand, shared.layout(exact.boundaries, exact.steps)) or in_hand
    return best, best.bottleneck_seconds if exact.complete and proven else proven


def _affordable_positions(shared: OrderedPass, limit: float) -> Integers:
    """Every allowed position where a pass over them all is affordable; otherwise as many as are."""
    count = allowed_positions(shared.problem).size
    first, last = reach(shared.problem, shared.space, shared.step_device, limit)
    source, target = shared.space.source, shared.space.target
    n = shared.problem.num_nodes
    starts = np.clip(last[source] - first[source] + 1, 0, n).astype(np.float64)
    ends = np.clip(np.minimum(last[target], n) - first[target] + 1, 0, n).astype(np.float64)
    pairs = float((starts * ends).sum()) / 2
    if pairs <= MAX_PAIRS and count <= MAX_STARTS:
        return allowed_positions(shared.problem)
    num_affordable = min(MAX_STARTS // 2, int(count * (MAX_PAIRS / max(1.0, pairs)) ** 0.5))
    return few_positions(shared.problem, max(COARSE_POSITIONS, num_affordable))


def _better(one: Layout | None, other: Layout | None) -> Layout | None:
    if one is None or other is None:
        return one or other
    return other if other.bottleneck_seconds < one.bottleneck_seconds else one


def _cheap_bound(shared: OrderedPass, upper: float) -> float:
    """The least value at which the devices' compute alone covers the program, by 40 bisections below `upper`."""
    problem = shared.problem
    if not shared.complete:
        # However it is cut: each device does at most its share of the fastest device's work for each node.
        fastest = problem.work_seconds.min(axis=0)
        return min(upper, max(float(fastest.max()), float(fastest.sum()) / problem.num_devices) * (1 - 1e-9))
    low, high = 0.0, upper
    for _ in range(40):
        middle = (low + high) / 2
        first, _ = reach(problem, shared.space, shared.step_device, middle)
        low, high = (low, middle) if (first[shared.space.starts] == 0).any() else (middle, high)
    return low
