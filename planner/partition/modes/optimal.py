"""Mode "optimal": the least of the asked objective that a portfolio of searches comes to, and the best bound of any.

The searches stand in two tables, in the order in which they run: CONTIGUOUS for one stage on each device, FREE for
stages anywhere. Before them comes what arithmetic proves: work divided at will; what whoever runs a bundle has to do at
least; what runs in turn; all states spread evenly; a pipeline that fills and drains; for latency, paths and what
parting them costs. After them stages are joined while that costs nothing. With recomputation, all of it runs for the
plain problem, then for one in which what stages could run again moves for nothing, and what stages run again is chosen
for both.

Every candidate is judged by `evaluate`. Budgets are counted in steps, so that the answer is the same on any machine
unless a clock is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.bounds.large_values import large_values_bound
from planner.partition.bounds.latency import block_bound, path_bound
from planner.partition.bounds.least_load import least_load_bound
from planner.partition.bounds.least_memory import least_memory_bound
from planner.partition.bounds.serial_latency import serial_bound
from planner.partition.bounds.step_time import fill_bound
from planner.partition.bounds.transfers import transfer_bound
from planner.partition.bounds.work import largest_bundle_bound, memory_bound, work_bound
from planner.partition.infeasible import memory_shortage
from planner.partition.list_scheduling import offer_schedules
from planner.partition.modes.balanced import check_num_stages
from planner.partition.modes.lone_batch import lone_batch
from planner.partition.modes.single import offer_single_devices
from planner.partition.modes.size_based import any_fit, size_based
from planner.partition.modes.sparse_nn import sparse_nn
from planner.partition.objective import Objective
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.bundle_moves import offer_moved_anywhere, offer_moved_bundles
from planner.partition.portfolio.cut_search import climb, fewest_stages
from planner.partition.portfolio.exact_ideals import least_over_ideals
from planner.partition.portfolio.exact_stages import is_small, least_of_all
from planner.partition.portfolio.fewer_devices import offer_fewer_devices
from planner.partition.portfolio.fork_stages import offer_forks
from planner.partition.portfolio.least_step import least_step
from planner.partition.portfolio.many_ideals import bound_by_fewer_nodes
from planner.partition.portfolio.moved_cuts import offer_moved_cuts
from planner.partition.portfolio.orders import offer_other_orders, offer_own_order
from planner.partition.portfolio.portfolio import Portfolio, Search, run_in_turn
from planner.partition.portfolio.reasons import reasons
from planner.partition.portfolio.replicated import least_bottleneck_with_copies, with_idle_copies
from planner.partition.portfolio.several_stages import MOST_ROUNDS, may_have_several, offer_several_stages
from planner.partition.portfolio.stages_of_devices import offer_packing
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.recomputation.cones import sent_for_nothing
from planner.partition.recomputation.search import recompute
from planner.partition.request import Request
from planner.partition.score import Scored, score

# To look for a lone batch's latency takes about 0.1 ms for each node.
MAX_LATENCY_MODE_NODES = 20_000
MAX_OTHER_OBJECTIVES_NODES = 300
# Larger programs are searched from the best start alone.
_MAX_NODES_OF_RUNNERS_UP = 800
# Cuts of the program order that are moved leave a longer training step nothing to gain from other orders.
_MAX_NODES_OF_REORDERED_STEPS = 64
# Of more free stages than this, pairs to join are too many.
_FEW = 64


def optimal(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises OptionsError for stages that cannot be, Infeasible where nothing fits. Deterministic without a clock."""
    if request.recompute:
        return _with_recomputation(problem, request)
    per_device = MOST_ROUNDS if may_have_several(problem, request) else 1
    check_num_stages(problem, request.num_stages, "optimal", per_device)
    portfolio = Portfolio(problem, request)
    _arithmetic(portfolio)
    if request.num_stages > problem.num_devices:
        offer_several_stages(portfolio)
    else:
        run_in_turn(portfolio, FREE if request.free else CONTIGUOUS)
    if portfolio.best is None:
        raise memory_shortage(problem, "optimal", request.num_stages)
    best = portfolio.best
    if not request.num_stages and not portfolio.has_copies and (not request.free or best.assignment.num_stages <= _FEW):
        best = fewest_stages(problem, portfolio.bundles, best, request.objective)
    bound = min(portfolio.proven_bound, best.value)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=bound)


def _without_freedom(problem: PartitionProblem, request: Request) -> Scored:
    return score(problem, optimal(problem, replace(request, free=False)), request.objective)


def _with_recomputation(problem: PartitionProblem, request: Request) -> Assignment:
    """Bounded by arithmetic alone: what else is proven counts transfers that may be spared."""
    plain, objective = replace(request, recompute=False), request.objective
    portfolio = Portfolio(problem, plain)
    portfolio.keep(recompute(problem, score(problem, optimal(problem, plain), objective), objective))
    with suppress(Infeasible):
        assignment = optimal(sent_for_nothing(problem), plain)
        portfolio.keep(recompute(problem, score(problem, assignment, objective), objective))
    if request.free:
        with suppress(Infeasible):
            portfolio.keep(_without_freedom(problem, request))
    best = portfolio.best
    assert best is not None
    _arithmetic(portfolio, recomputes=True)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=portfolio.proven_bound)


def _arithmetic(portfolio: Portfolio, *, recomputes: bool = False) -> None:
    problem, bundles, objective = portfolio.problem, portfolio.bundles, portfolio.request.objective
    if objective is Objective.MEMORY:
        portfolio.prove(memory_bound(problem))
        if not recomputes:
            portfolio.prove(least_memory_bound(problem, bundles, portfolio.bound))
    elif objective is Objective.LATENCY:
        portfolio.prove(path_bound(problem, bundles))
        if not recomputes:
            portfolio.prove(block_bound(problem, bundles))
        if not (portfolio.request.free or recomputes):
            portfolio.prove(serial_bound(problem, bundles, portfolio.request.num_stages))
    else:
        microbatches = problem.training.microbatches if problem.training else 1
        turns = microbatches if objective is Objective.STEP_TIME else 1
        portfolio.prove(work_bound(problem) * turns)
        if not portfolio.has_copies:
            largest = largest_bundle_bound(problem, bundles)
            portfolio.prove(largest * turns)
            if objective is Objective.THROUGHPUT and not recomputes:
                portfolio.prove(least_load_bound(problem, bundles, portfolio.bound))
            if _has_one_stage_each(portfolio) and not recomputes:
                busiest = max(work_bound(problem), largest)
                portfolio.prove(fill_bound(problem, bundles, busiest, portfolio.request.num_stages))


def _program_order(portfolio: Portfolio) -> None:
    problem, bundles, request = portfolio.problem, portfolio.bundles, portfolio.request
    only_one = _is_chain(bundles) and allowed_positions(problem).size == bundles.count + 1
    # Of other objectives it is where searches begin, and they move cuts themselves.
    coarse = request.objective is not Objective.THROUGHPUT
    layout = least_bottleneck(problem, request.num_stages, prove=only_one and not coarse, coarse=coarse)
    if layout is None:
        return
    portfolio.in_program_order = contiguous(problem, layout.boundaries, layout.devices)
    portfolio.offer(portfolio.in_program_order)
    if only_one and _is_bottleneck(portfolio):
        portfolio.prove(layout.lower_bound_seconds)


def _has_one_stage_each(portfolio: Portfolio) -> bool:
    """Each device, of a training step."""
    problem, request = portfolio.problem, portfolio.request
    has_several = portfolio.has_copies or request.free or may_have_several(problem, request)
    return request.objective is Objective.STEP_TIME and not has_several


def _is_chain(bundles: Bundles) -> bool:
    """Whether there is only one order; that of the program if it may be cut between any two bundles."""
    return all(bundle + 1 in after for bundle, after in enumerate(bundles.after[:-1]))


def _transfers(portfolio: Portfolio) -> None:
    if portfolio.best is not None:
        problem, value = portfolio.problem, portfolio.best.value
        portfolio.prove(transfer_bound(problem, value))
        portfolio.prove(large_values_bound(problem, portfolio.bound, value))


def _filled_and_drained(portfolio: Portfolio) -> None:
    request = portfolio.request
    portfolio.prove(
        least_step(
            portfolio.problem,
            portfolio.bundles,
            least=portfolio.bound,
            limit=portfolio.limit,
            num_stages=request.num_stages,
            effort=request.effort,
        )
    )


def _is_bottleneck(portfolio: Portfolio) -> bool:
    return portfolio.request.objective is Objective.THROUGHPUT and not portfolio.has_copies


def _all_orders(portfolio: Portfolio) -> None:
    request = portfolio.request
    solution = least_over_ideals(
        portfolio.problem,
        portfolio.bundles,
        request.objective,
        num_stages=request.num_stages,
        limit=portfolio.limit,
        effort=request.effort,
    )
    if solution is None:
        if not portfolio.has_copies:
            bound = bound_by_fewer_nodes(
                portfolio.problem, portfolio.bundles, request.objective, portfolio.limit, request.effort
            )
            portfolio.prove(bound * (1 - 1e-9))
        return
    portfolio.offer(solution.assignment)
    if not portfolio.has_copies:
        portfolio.prove(min(solution.value, portfolio.limit) * (1 - 1e-9))


def _local_search(portfolio: Portfolio) -> None:
    assert portfolio.best is not None
    few = portfolio.problem.num_nodes <= _MAX_NODES_OF_RUNNERS_UP
    for start in [portfolio.best, *(portfolio.runners_up if few else ())]:
        portfolio.keep(climb(portfolio, start))
    portfolio.climbed = portfolio.best


def _other_modes(portfolio: Portfolio) -> None:
    """None of them is better than this one. The slowest runs where it is quick, and where nothing fits yet."""
    problem, request = portfolio.problem, portfolio.request
    for_latency = request.objective is Objective.LATENCY
    most = (MAX_LATENCY_MODE_NODES if for_latency else MAX_OTHER_OBJECTIVES_NODES) * request.effort

    def otherwise(_: PartitionProblem) -> Assignment:
        """What `any_fit` would search for again."""
        if portfolio.in_program_order is None or request.num_stages:
            return any_fit(problem)
        return portfolio.in_program_order

    def for_a_lone_batch() -> Assignment:
        return lone_batch(problem, request, "optimal", otherwise)

    modes: tuple[Callable[[], Assignment], ...] = (
        lambda: size_based(problem, otherwise),
        # Without tables it is the one before.
        *([lambda: sparse_nn(problem)] if problem.is_embedding.any() else []),
        for_a_lone_batch,
    )
    for mode in modes:
        is_slow = mode is for_a_lone_batch and problem.num_nodes > most
        if portfolio.is_over or (is_slow and portfolio.best is not None):
            return
        with suppress(Infeasible, OptionsError):
            portfolio.offer(mode())


def _has_not_climbed(portfolio: Portfolio) -> bool:
    return portfolio.best is not None and portfolio.best is not portfolio.climbed


def _copies(portfolio: Portfolio) -> None:
    problem, request = portfolio.problem, portfolio.request
    portfolio.offer(least_bottleneck_with_copies(problem, request.num_stages))
    if portfolio.best is not None:
        portfolio.keep(with_idle_copies(problem, portfolio.best, request.objective))


def _one_stage_on_each_device(portfolio: Portfolio) -> None:
    """So that more freedom never makes an answer worse."""
    with suppress(Infeasible):
        portfolio.keep(_without_freedom(portfolio.problem, portfolio.request))
    portfolio.climbed = portfolio.best


def _runs_side_by_side(portfolio: Portfolio) -> bool:
    """Where values go from stage to stage, no two stages run at once."""
    return portfolio.request.objective is Objective.LATENCY and not portfolio.problem.relay


def _may_move_bundles(portfolio: Portfolio) -> bool:
    is_of_memory = portfolio.request.objective is Objective.MEMORY
    return not is_of_memory and portfolio.best is not None and not portfolio.problem.relay


def _may_move_anywhere(portfolio: Portfolio) -> bool:
    """Not for a step: with several stages on a device it is seldom shorter for even loads, since they wait in turn."""
    is_for_it = portfolio.request.objective is Objective.THROUGHPUT and not portfolio.request.num_stages
    return is_for_it and _may_move_bundles(portfolio)


def _may_reorder(portfolio: Portfolio) -> bool:
    is_of_step = portfolio.request.objective is Objective.STEP_TIME
    return not is_of_step or portfolio.problem.num_nodes <= _MAX_NODES_OF_REORDERED_STEPS


def _may_move_cuts(portfolio: Portfolio) -> bool:
    is_of_step = portfolio.request.objective is Objective.STEP_TIME
    return is_of_step and portfolio.best is not None and not portfolio.has_copies


def _is_for(*objectives: Objective) -> Callable[[Portfolio], bool]:
    return lambda portfolio: portfolio.request.objective in objectives


TRANSFERS = Search(name="transfers that no device is spared", run=_transfers, applies=_is_bottleneck)
LOCAL_SEARCH = Search(name="local search on the true objective", run=_local_search, applies=_has_not_climbed)
# What is parted may mislead it: so it ends no higher than without.
CLIMB_BEFORE_FORKS = replace(
    LOCAL_SEARCH, applies=lambda portfolio: _runs_side_by_side(portfolio) and _has_not_climbed(portfolio)
)
ALL_OF_SMALL = Search(name="all stages and devices of a small program", run=least_of_all, applies=is_small)
# A step's cuts have been moved on its own seconds then; it is climbed from once, when bundles have moved too.
CLIMB_BEFORE_BUNDLES = replace(
    LOCAL_SEARCH, applies=lambda portfolio: not _may_move_cuts(portfolio) and _has_not_climbed(portfolio)
)
CONTIGUOUS = (
    Search(name="the whole program on one device", run=offer_single_devices),
    Search(name="segments of the program order, exact over that order", run=_program_order),
    Search(
        name="segments of the program order on fewer devices",
        run=offer_fewer_devices,
        applies=lambda portfolio: (
            portfolio.request.objective is Objective.STEP_TIME and not portfolio.request.num_stages
        ),
    ),
    Search(
        name="segments of the program order, for other objectives",
        run=offer_own_order,
        applies=_is_for(Objective.LATENCY, Objective.MEMORY),
    ),
    Search(
        name="order ideals: all orders, or all orders of fewer nodes as a bound",
        run=_all_orders,
        applies=_is_for(Objective.THROUGHPUT, Objective.MEMORY),
    ),
    Search(name="segments of other orders", run=offer_other_orders, applies=_may_reorder),
    CLIMB_BEFORE_FORKS,
    Search(
        name="stages side by side, where idle devices are worth it",
        run=offer_forks,
        applies=lambda portfolio: portfolio.best is not None and _runs_side_by_side(portfolio),
    ),
    Search(
        name="cuts and devices moved for the shortest step",
        run=offer_moved_cuts,
        applies=_may_move_cuts,
    ),
    CLIMB_BEFORE_BUNDLES,
    Search(
        name="several stages on each device, under schedules that are for them",
        run=offer_several_stages,
        applies=lambda portfolio: portfolio.best is not None and may_have_several(portfolio.problem, portfolio.request),
    ),
    Search(
        name="bundles moved between stages",
        run=offer_moved_bundles,
        applies=_may_move_bundles,
    ),
    ALL_OF_SMALL,
    Search(name="other modes, where quick", run=_other_modes),
    LOCAL_SEARCH,
    Search(name="copies of stages", run=_copies, applies=lambda portfolio: portfolio.request.replicate),
    TRANSFERS,
    Search(
        name="order ideals: a bound on steps, filled and drained",
        run=_filled_and_drained,
        applies=lambda portfolio: portfolio.best is not None and _has_one_stage_each(portfolio),
    ),
)
FREE = (
    Search(name="one stage on each device", run=_one_stage_on_each_device),
    Search(name="list scheduling", run=offer_schedules, applies=_runs_side_by_side),
    ALL_OF_SMALL,
    Search(
        name="packing, where nothing fits yet",
        run=offer_packing,
        applies=lambda portfolio: portfolio.best is None,
    ),
    Search(name="bundles moved between devices", run=offer_moved_anywhere, applies=_may_move_anywhere),
    LOCAL_SEARCH,
    TRANSFERS,
)
