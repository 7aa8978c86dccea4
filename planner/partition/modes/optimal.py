"""Mode "optimal": the least of the asked objective that a portfolio of searches finds, and the best bound of any.

| search | finds | proves |
|---|---|---|
| arithmetic | | work divided at will; what runs in turn; all states spread evenly; a pipeline that fills and drains |
| paths, by arithmetic | | transfers that no device is spared |
| single devices | the whole program on one | |
| the program order | segments, exact over that order | all orders, if there is no other |
| the program order, for latency or memory | segments that a batch passes soonest, or fill devices least | |
| order ideals, where few | stages of any order | exact over equal links, else a bound |
| order ideals of fewer nodes, where many | | all orders |
| additive relaxation | stages of any order, or any device for any node | as far as it is searched |
| other orders | segments of each | |
| other modes, where quick | what they find | |
| with `free`: list scheduling, for latency, instead of the additive relaxation | stages that run side by side | |
| with `free`: all of these without it | the best with one stage on each device | |
| copies of stages, if asked for | segments, and how many devices each gets | |
| recomputation, if asked for | what stages run again, also with what that makes moved for nothing | |
| local search | from the best of all, on the true objective | |

Every candidate is judged by `evaluate`. Budgets are counted in steps, so that the answer is the same on any machine.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible
from planner.partition.assignment import Assignment, contiguous
from planner.partition.bounds.latency import block_bound, serial_bound
from planner.partition.bounds.step_time import fill_bound
from planner.partition.bounds.transfers import transfer_bound
from planner.partition.bounds.work import largest_bundle_bound, memory_bound, path_bound, work_bound
from planner.partition.infeasible import memory_shortage
from planner.partition.list_scheduling import offer_schedules
from planner.partition.modes.balanced import check_num_stages
from planner.partition.objective import Objective, PipelineSchedule
from planner.partition.ordered.least_bottleneck import OrderedPlan, least_bottleneck
from planner.partition.ordered.objectives import offer_ordered
from planner.partition.ordered.positions import allowed_positions
from planner.partition.portfolio.cut_search import climb
from planner.partition.portfolio.exact_ideals import bound_by_fewer_nodes, least_over_ideals
from planner.partition.portfolio.fewest_stages import fewest_stages
from planner.partition.portfolio.other_modes import offer_other_modes, offer_single_devices
from planner.partition.portfolio.other_orders import MAX_REORDERED_NODES, offer_other_orders
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.portfolio.program_orders import Bundles, bundles_of
from planner.partition.portfolio.reasons import reasons
from planner.partition.portfolio.relaxed_placements import offer_relaxed_placements
from planner.partition.portfolio.replicated import least_bottleneck_with_copies, with_idle_copies
from planner.partition.portfolio.score import Scored, score
from planner.partition.problem import PartitionProblem
from planner.partition.recomputation.cones import sent_for_nothing
from planner.partition.recomputation.search import recompute
from planner.partition.request import Request

# Of more free stages than this, pairs to join are too many.
_FEW = 16


def optimal(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises OptionsError for stages that cannot be, Infeasible where nothing fits. Deterministic."""
    if request.recompute:
        return _with_recomputation(problem, request)
    check_num_stages(problem, request.num_stages, "optimal")
    found = Portfolio(problem, request)
    bundles = bundles_of(problem)
    _arithmetic(found, bundles)
    if request.free:
        _any_device(found, bundles)
    else:
        _one_stage_each(found, bundles)
    if found.best is None:
        raise memory_shortage(problem, "optimal", request.num_stages)
    best = found.best
    if not request.num_stages and not found.has_copies and (not request.free or best.assignment.num_stages <= _FEW):
        best = fewest_stages(problem, bundles, best, request.objective)
    bound = min(found.proven_bound, best.value)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=bound)


def _one_stage_each(found: Portfolio, bundles: Bundles) -> None:
    offer_single_devices(found)
    _program_order(found, bundles)
    if found.request.objective in (Objective.LATENCY, Objective.MEMORY) and not found.is_proven:
        offer_ordered(found)
    _transfers(found)
    bounded = found.limit
    _all_orders(found, bundles)
    offer_relaxed_placements(found, bundles)
    offer_other_orders(found, bundles)
    offer_other_modes(found)
    _improve(found, bundles)
    _copies(found)
    if found.limit < bounded:
        _transfers(found)


def _any_device(found: Portfolio, bundles: Bundles) -> None:
    """From the best with one stage for each device, so that more freedom never makes it worse."""
    with suppress(Infeasible):
        found.keep(_without_freedom(found.problem, found.request))
    start = found.best
    _transfers(found)
    # Where values go from stage to stage, no two stages run at once.
    side_by_side = found.request.objective is Objective.LATENCY and not found.problem.relay
    if side_by_side:
        offer_schedules(found, bundles)
    if not side_by_side or found.best is None:
        offer_relaxed_placements(found, bundles)
    if found.best is not start:
        _improve(found, bundles)
        _transfers(found)


def _without_freedom(problem: PartitionProblem, request: Request) -> Scored:
    return score(problem, optimal(problem, replace(request, free=False)), request.objective)


def _with_recomputation(problem: PartitionProblem, request: Request) -> Assignment:
    """Bounded by arithmetic alone: what else is proven counts transfers that may be spared."""
    plain, objective = replace(request, recompute=False), request.objective
    found = Portfolio(problem, plain)
    found.keep(recompute(problem, score(problem, optimal(problem, plain), objective), objective))
    with suppress(Infeasible):
        moved = optimal(sent_for_nothing(problem), plain)
        found.keep(recompute(problem, score(problem, moved, objective), objective))
    if request.free:
        with suppress(Infeasible):
            found.keep(_without_freedom(problem, request))
    assert found.best is not None
    _arithmetic(found, bundles_of(problem), recomputes=True)
    return replace(found.best.assignment, reasons=reasons(problem, found.best), lower_bound_seconds=found.proven_bound)


def _arithmetic(found: Portfolio, bundles: Bundles, *, recomputes: bool = False) -> None:
    problem, objective = found.problem, found.request.objective
    if objective is Objective.MEMORY:
        found.prove(memory_bound(problem))
    elif objective is Objective.LATENCY:
        found.prove(path_bound(problem, bundles))
        if not recomputes:
            found.prove(block_bound(problem, bundles))
        if not (found.request.free or recomputes):
            found.prove(serial_bound(problem, bundles, found.request.num_stages))
    else:
        microbatches = problem.training.microbatches if problem.training else 1
        turns = microbatches if objective is Objective.STEP_TIME else 1
        found.prove(work_bound(problem) * turns)
        if not found.has_copies:
            largest = largest_bundle_bound(problem, bundles)
            found.prove(largest * turns)
            if objective is Objective.STEP_TIME and not (found.request.free or recomputes):
                busiest = max(work_bound(problem), largest)
                found.prove(fill_bound(problem, bundles, busiest, found.request.num_stages))


def _program_order(found: Portfolio, bundles: Bundles) -> None:
    problem, request = found.problem, found.request
    only_one = _is_chain(bundles) and allowed_positions(problem).size == bundles.count + 1
    layout = least_bottleneck(problem, request.num_stages, prove=only_one)
    if layout is None:
        return
    found.offer(contiguous(problem, layout.boundaries, layout.devices, ("",) * len(layout.devices)))
    if only_one and request.objective is Objective.THROUGHPUT and not found.has_copies:
        found.prove(layout.lower_bound_seconds)
    if only_one and request.objective is Objective.STEP_TIME and not (found.has_copies or request.free):
        _busiest_in_memory(found, bundles, layout)


def _busiest_in_memory(found: Portfolio, bundles: Bundles, layout: OrderedPlan) -> None:
    """What memory and messages make of the busiest device, and the pipeline filled and drained around it.

    The best order makes do with less memory than these stages are sought for.
    """
    problem, num_stages = found.problem, found.request.num_stages
    assert problem.training is not None
    if problem.training.schedule is PipelineSchedule.BEST:
        return
    found.prove(layout.lower_bound_seconds * problem.training.microbatches)
    nothing = np.zeros_like(problem.link_latency_seconds)
    computing = least_bottleneck(
        replace(problem, link_latency_seconds=nothing, link_seconds_per_byte=nothing), num_stages
    )
    if computing is not None:
        found.prove(fill_bound(problem, bundles, computing.lower_bound_seconds, num_stages))


def _is_chain(bundles: Bundles) -> bool:
    """Whether there is only one order; that of the program if it may be cut between any two bundles."""
    return all(bundle + 1 in after for bundle, after in enumerate(bundles.after[:-1]))


def _transfers(found: Portfolio) -> None:
    request = found.request
    if found.best and not found.is_proven and request.objective is Objective.THROUGHPUT and not found.has_copies:
        found.prove(transfer_bound(found.problem, found.best.value))


def _all_orders(found: Portfolio, bundles: Bundles) -> None:
    request = found.request
    if found.is_proven or request.objective not in (Objective.THROUGHPUT, Objective.MEMORY):
        return
    solution = least_over_ideals(
        found.problem,
        bundles,
        request.objective,
        num_stages=request.num_stages,
        limit=found.limit,
        effort=request.effort,
    )
    if solution is None:
        if request.objective is Objective.THROUGHPUT and not found.has_copies:
            found.prove(bound_by_fewer_nodes(found.problem, bundles, found.limit, request.effort) * (1 - 1e-9))
        return
    found.offer(solution.assignment)
    if not found.has_copies:
        found.prove(min(solution.value, found.limit) * (1 - 1e-9))


def _improve(found: Portfolio, bundles: Bundles) -> None:
    request = found.request
    if found.best is None or found.is_proven:
        return
    few = found.problem.num_nodes <= MAX_REORDERED_NODES
    for start in [found.best, *(found.runners_up if few else ())]:
        climbed = climb(
            found.problem,
            bundles,
            start,
            request.objective,
            num_stages=request.num_stages,
            target=found.bound,
            effort=request.effort,
            saturate=request.saturate_host,
        )
        found.keep(climbed)


def _copies(found: Portfolio) -> None:
    problem, request = found.problem, found.request
    if not request.replicate or found.is_proven:
        return
    found.offer(least_bottleneck_with_copies(problem, request.num_stages))
    if found.best is not None:
        found.keep(with_idle_copies(problem, found.best, request.objective))
