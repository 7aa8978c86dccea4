"""Segments of the program's own order, and of others in which it could run, that make the objective least.

A cut of another order may part what a cut of the program order cannot. Over few positions: local search goes on from
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.ordered.host_windows import over_windows
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.many_devices import over_many_devices
from planner.partition.ordered.memory_tiers import everything_bytes, in_memory_tiers, without_idle_memory
from planner.partition.ordered.positions import few_positions
from planner.partition.ordered.program_pass import OrderedPass, host_by_host_pass, ordered_pass
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Integers, PartitionProblem
from planner.partition.program_orders import program_orders, reordered

# Nodes of the other orders together: the first few of them for programs of more than some 600, none for larger ones. Of
# experts onto 64 devices, 1,344 nodes, each order takes most of a second.
MAX_REORDERED_NODES = 3200
OTHER_ORDERS_POSITIONS = _HOST_POSITIONS = 80
# Elements of the tables of steps, starts and ends of one pass; positions of the program's own order.
_MAX_ELEMENTS = 1.5e7
_MIN_POSITIONS, _MAX_POSITIONS = 24, 160
_MAX_TIERED_STATES, _MAX_HOST_STATES = 256, 15_000


def offer_own_order(portfolio: Portfolio) -> None:
    """For latency or memory; for latency also from host to host, where devices are too many to tell apart."""
    problem, request = portfolio.problem, portfolio.request
    order, passes = np.arange(problem.num_nodes), list(_passes(problem, portfolio))
    for shared in passes:
        steps = max(1, shared.space.source.size)
        count = int(np.clip((2 * _MAX_ELEMENTS / steps) ** 0.5, _MIN_POSITIONS, _MAX_POSITIONS))
        _offer_best(portfolio, shared, order, count, request.objective)
    if request.objective is Objective.LATENCY and not (passes[0].complete or _fits_the_quickest(problem)):
        by_host = host_by_host_pass(without_idle_memory(problem), request.num_stages, _MAX_HOST_STATES)
        if by_host is not None:
            _offer_best(portfolio, by_host, order, _HOST_POSITIONS, request.objective)


def offer_other_orders(portfolio: Portfolio) -> None:
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    # Of the bottleneck also where another objective is asked for: local search at times ends lower from there.
    own = () if _is_of_bottleneck(portfolio) else (request.objective,)
    # Segments know only bounds on what they exchange over unlike links.
    over_hosts = not (own or request.num_stages or problem.relay) and hosts_of(problem).count > 1
    count = int(MAX_REORDERED_NODES * request.effort) // max(1, problem.num_nodes)
    for order in islice(program_orders(problem, bundles), count):
        if portfolio.best is not None and request.out_of_time():
            return
        program = reordered(problem, order, bundles)
        if over_hosts:
            _offer_windows(portfolio, program, order)
        for shared in _passes(program, portfolio):
            if shared.complete or own:
                for objective in (*own, Objective.THROUGHPUT):
                    _offer_best(portfolio, shared, order, OTHER_ORDERS_POSITIONS, objective)
            elif not over_hosts:
                _offer_many_devices(portfolio, program, order)


def _fits_the_quickest(problem: PartitionProblem) -> bool:
    """Then one stage is no slower than several in turn."""
    quickest = int(np.argmin(problem.compute_seconds.sum(axis=1)))
    return bool(problem.device_memory_bytes[quickest] >= everything_bytes(problem))


def _is_of_bottleneck(portfolio: Portfolio) -> bool:
    return portfolio.request.objective in (Objective.THROUGHPUT, Objective.STEP_TIME)


def _passes(problem: PartitionProblem, portfolio: Portfolio) -> Iterator[OrderedPass]:
    """One; for latency or memory another with memory in tiers where devices are too many to tell apart."""
    request = portfolio.request
    whole = problem if request.objective is Objective.MEMORY else without_idle_memory(problem)
    shared = ordered_pass(whole, request.num_stages)
    yield shared
    if not (shared.complete or _is_of_bottleneck(portfolio)):
        tiered = in_memory_tiers(problem, _is_small, round_up=False)
        if tiered is not None:
            yield ordered_pass(tiered, request.num_stages)


def _is_small(problem: PartitionProblem) -> bool:
    return hosts_of(problem).num_states <= _MAX_TIERED_STATES


def _offer_best(portfolio: Portfolio, shared: OrderedPass, order: Integers, count: int, objective: Objective) -> None:
    solution = shared.search(few_positions(shared.problem, count), objective=objective)
    if solution.boundaries:
        portfolio.offer(in_order(solution.boundaries, shared.devices_of(solution.steps), order))


def _offer_windows(portfolio: Portfolio, program: PartitionProblem, order: Integers) -> None:
    """Both ends on one host are tried over the program order alone: over others they took ten seconds for 0.1 %."""
    for boundaries, devices in over_windows(program, _limit(portfolio), both_ends=False):
        portfolio.offer(in_order(boundaries, devices, order))


def _offer_many_devices(portfolio: Portfolio, program: PartitionProblem, order: Integers) -> None:
    positions = few_positions(program, OTHER_ORDERS_POSITIONS)
    walks = over_many_devices(program, positions, limit=_limit(portfolio), num_stages=portfolio.request.num_stages)
    for boundaries, devices in walks.layouts if walks is not None else ():
        portfolio.offer(in_order(boundaries, devices, order))


def _limit(portfolio: Portfolio) -> float:
    """On the bottleneck of what is offered: of another objective's best nothing follows for it."""
    return portfolio.limit if portfolio.request.objective is Objective.THROUGHPUT else np.inf


def in_order(boundaries: tuple[int, ...], devices: tuple[int, ...], order: Integers) -> Assignment:
    stage_of_node = np.empty(order.size, dtype=np.int64)
    stage_of_node[order] = np.repeat(np.arange(len(devices)), np.diff(boundaries))
    return Assignment(stage_of_node=tuple(stage_of_node.tolist()), device_of_stage=devices)
