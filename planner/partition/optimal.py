"""Mode "optimal": the least of the asked objective that a portfolio of searches finds, and the best bound of any.

| search | finds | proves |
|---|---|---|
| arithmetic | | work divided at will; the longest path; all states spread evenly |
| paths, by arithmetic | | transfers that no device is spared |
| single devices | the whole program on one | |
| the program order | segments, exact over that order | all orders, if there is no other |
| order ideals, where few | stages of any order | exact over equal links |
| additive relaxation | stages of any order, or any device for any node | as far as it is searched |
| other orders | segments of each | |
| other modes, where quick | what they find | |
| copies of stages, if asked for | segments, and how many devices each gets | |
| recomputation, if asked for | what stages run again, also with what that makes moved for nothing | |
| local search | from the best of all, on the true objective | |

Every candidate is judged by `evaluate`. Budgets are counted in steps, so that the answer is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment, contiguous
from planner.partition.balanced import check_num_stages
from planner.partition.bounds import largest_bundle_bound, memory_bound, path_bound, work_bound
from planner.partition.cost_aware import cost_aware
from planner.partition.cut_search import climb
from planner.partition.exact_ideals import least_over_ideals
from planner.partition.fewest_stages import fewest_stages
from planner.partition.infeasible import memory_shortage
from planner.partition.kl_based import kl_based
from planner.partition.lift import one_stage_each, stages_by_level
from planner.partition.objective import Objective
from planner.partition.ordered_pass import ordered_pass
from planner.partition.ordered_plan import least_bottleneck
from planner.partition.placement.contiguous import best_contiguous
from planner.partition.placement.free import best_free
from planner.partition.portfolio import Portfolio
from planner.partition.positions import few_positions
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of, program_orders, reordered
from planner.partition.reasons import reasons
from planner.partition.recompute import recompute
from planner.partition.recompute_cones import sent_for_nothing
from planner.partition.relaxation import relaxed
from planner.partition.replicated import least_bottleneck_with_copies, with_idle_copies
from planner.partition.request import Request
from planner.partition.score import score
from planner.partition.size_based import size_based
from planner.partition.sparse_nn import sparse_nn
from planner.partition.transfer_bound import transfer_bound

# Larger programs are searched in their own order alone, and less.
MAX_REORDERED_NODES = 800
MAX_OTHER_MODES_NODES = 600
OTHER_ORDERS_POSITIONS = 80
MAX_RELAXED_NODES = 600
MAX_IDEAL_PAIRS = 1_000_000
# Steps of annealing: at most, and by pairs of nodes.
MAX_FREE_STEPS, FREE_STEPS_PER_PAIR = 4_000_000, 500
# Of each device's memory, what the relaxation may fill with states, in turn.
ROOM_SHARES = (1.0, 0.85, 0.6)


def optimal(problem: PartitionProblem, request: Request) -> Assignment:
    """Raises OptionsError for stages that cannot be, Infeasible where nothing fits. Deterministic."""
    if request.recompute:
        return _with_recomputation(problem, request)
    check_num_stages(problem, request.num_stages, "optimal")
    found = Portfolio(problem, request)
    bundles = bundles_of(problem)
    _arithmetic(found, bundles)
    _single_devices(found)
    _program_order(found, bundles)
    _transfers(found)
    _all_orders(found, bundles)
    _relaxation(found, bundles)
    _other_orders(found, bundles)
    _other_modes(found)
    _improve(found, bundles)
    _copies(found)
    _transfers(found)
    if found.best is None:
        raise memory_shortage(problem, "optimal", request.num_stages)
    best = found.best
    if not request.num_stages and not found.has_copies:
        best = fewest_stages(problem, bundles, best, request.objective)
    bound = min(found.proven_bound, best.value)
    return replace(best.assignment, reasons=reasons(problem, best), lower_bound_seconds=bound)


def _with_recomputation(problem: PartitionProblem, request: Request) -> Assignment:
    """Bounded by arithmetic alone: what else is proven counts transfers that may be spared."""
    plain, objective = replace(request, recompute=False), request.objective
    found = Portfolio(problem, plain)
    found.keep(recompute(problem, score(problem, optimal(problem, plain), objective), objective))
    with suppress(Infeasible):
        moved = optimal(sent_for_nothing(problem), plain)
        found.keep(recompute(problem, score(problem, moved, objective), objective))
    assert found.best is not None
    _arithmetic(found, bundles_of(problem))
    return replace(found.best.assignment, reasons=reasons(problem, found.best), lower_bound_seconds=found.proven_bound)


def _arithmetic(found: Portfolio, bundles: Bundles) -> None:
    problem, objective = found.problem, found.request.objective
    if objective is Objective.MEMORY:
        found.prove(memory_bound(problem))
    elif objective is Objective.LATENCY:
        found.prove(path_bound(problem, bundles))
    else:
        microbatches = problem.training.microbatches if problem.training else 1
        turns = microbatches if objective is Objective.STEP_TIME else 1
        found.prove(work_bound(problem) * turns)
        if not found.has_copies:
            found.prove(largest_bundle_bound(problem, bundles) * turns)


def _single_devices(found: Portfolio) -> None:
    """One of each kind and size of device."""
    problem = found.problem
    if found.request.num_stages > 1:
        return
    seen = set()
    totals = problem.work_seconds.sum(axis=1)
    for device in range(problem.num_devices):
        alike = (float(totals[device]), int(problem.device_memory_bytes[device]))
        if alike not in seen and np.isfinite(totals[device]):
            seen.add(alike)
            found.offer(contiguous(problem, (0, problem.num_nodes), (device,), ("",)))


def _other_modes(found: Portfolio) -> None:
    """What they find, where that is quick: none of them is better."""
    problem, request = found.problem, found.request
    modes: tuple[Callable[[], Assignment], ...] = (
        lambda: size_based(problem),
        lambda: sparse_nn(problem),
        lambda: cost_aware(problem, request),
        lambda: kl_based(problem, request),
    )
    if found.is_proven or problem.num_nodes > MAX_OTHER_MODES_NODES * request.effort:
        return
    for mode in modes:
        with suppress(Infeasible, OptionsError):
            found.offer(mode())


def _program_order(found: Portfolio, bundles: Bundles) -> None:
    problem, request = found.problem, found.request
    layout = least_bottleneck(problem, request.num_stages)
    if layout is None:
        return
    found.offer(contiguous(problem, layout.boundaries, layout.devices, ("",) * len(layout.devices)))
    if _is_chain(bundles) and request.objective is Objective.THROUGHPUT and not (request.free or found.has_copies):
        found.prove(layout.lower_bound_seconds)


def _is_chain(bundles: Bundles) -> bool:
    """Whether there is only one order."""
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
        return
    found.offer(solution.assignment)
    if not (request.free or found.has_copies):
        found.prove(min(solution.value, found.limit) * (1 - 1e-9))


def _relaxation(found: Portfolio, bundles: Bundles) -> None:
    """The additive problem's placements, at last with room for what flows."""
    problem, request = found.problem, found.request
    if found.is_proven or request.num_stages or problem.num_nodes > MAX_RELAXED_NODES * request.effort:
        return
    for room_share in ROOM_SHARES:
        device_of_node, bound = _placed(problem, bundles, request, room_share)
        if room_share == 1.0 and request.objective is Objective.THROUGHPUT and not found.has_copies:
            found.prove(bound)
        if device_of_node is None:
            return
        lifted = (
            stages_by_level(problem, bundles, device_of_node)
            if request.free
            else one_stage_each(problem, bundles, device_of_node)
        )
        scored = found.offer(lifted)
        if scored is None or scored.fits:
            return


def _placed(
    problem: PartitionProblem, bundles: Bundles, request: Request, room_share: float
) -> tuple[Integers | None, float]:
    """Device of each node and a bound; None where the relaxation has no placement, or none was found."""
    relaxation = relaxed(problem, bundles, room_share)
    try:
        if request.free:
            steps = int(min(MAX_FREE_STEPS, FREE_STEPS_PER_PAIR * problem.num_nodes**2) * request.effort)
            placement = best_free(relaxation.placement, effort=steps)
        else:
            pairs = int(MAX_IDEAL_PAIRS * request.effort)
            placement = best_contiguous(relaxation.placement, max_pairs=pairs)
    except Infeasible:
        return None, 0.0
    bound = placement.lower_bound_seconds * (1 - 1e-9)
    return relaxation.devices[np.array(placement.device_of_node, dtype=np.int64)], bound


def _other_orders(found: Portfolio, bundles: Bundles) -> None:
    problem, request = found.problem, found.request
    if found.is_proven or problem.num_nodes > MAX_REORDERED_NODES * request.effort:
        return
    for order in program_orders(problem, bundles):
        shared = ordered_pass(reordered(problem, order, bundles), request.num_stages)
        solution = shared.search(few_positions(shared.problem, OTHER_ORDERS_POSITIONS))
        layout = shared.layout(solution.boundaries, solution.classes)
        if layout is not None:
            stages = np.repeat(np.arange(len(layout.devices)), np.diff(layout.boundaries))
            stage_of_node = np.empty(problem.num_nodes, dtype=np.int64)
            stage_of_node[order] = stages
            found.offer(
                Assignment(
                    stage_of_node=tuple(stage_of_node.tolist()),
                    device_of_stage=layout.devices,
                    reasons=("",) * len(layout.devices),
                )
            )


def _improve(found: Portfolio, bundles: Bundles) -> None:
    request = found.request
    if found.best is None or found.is_proven or found.has_copies:
        return
    climbed = climb(
        found.problem,
        bundles,
        found.best,
        request.objective,
        num_stages=request.num_stages,
        target=found.bound,
        effort=request.effort,
    )
    found.keep(climbed)


def _copies(found: Portfolio) -> None:
    problem, request = found.problem, found.request
    if not request.replicate or found.is_proven:
        return
    found.offer(least_bottleneck_with_copies(problem, request.num_stages))
    if found.best is not None:
        found.keep(with_idle_copies(problem, found.best, request.objective))
