"""Bundles moved between the stages of a plan, whatever order of the program that asks for: of the bottleneck.

Cuts of an order leave out most stages of a program with many orders (cells of a dozen branches each, as in NASNet):
there plans take up to a seventh less. Loads are those of `evaluate`; of memory, what the plan in hand needs besides its
states and buffers is taken to stay as it is, and what then does not fit is left less room.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.hosts import distinct_rows
from planner.partition.placement.stage_moves import Costs, Flow, is_too_large, with_items_moved
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.score import Scored, score

# Of which each has half the steps of the one before.
_TRIALS = 3


def offer_moved_bundles(portfolio: Portfolio) -> None:
    """From the best in hand without its copies, where each stage has a device of its own."""
    problem, request, best = portfolio.problem, portfolio.request, portfolio.best
    assert best is not None
    if best.assignment.replicas:
        best = score(problem, replace(best.assignment, replicas=()), request.objective)
    devices = best.assignment.device_of_stage
    if len(devices) == 1 or len(set(devices)) < len(devices):
        return
    flow, links = _flow(problem, portfolio.bundles), _links(problem, np.array(devices, dtype=np.int64))
    if is_too_large(flow, len(devices), links.latency.size):
        return
    costs = _costs(problem, portfolio.bundles, best, links)
    start = np.empty(portfolio.bundles.count, dtype=np.int64)
    start[portfolio.bundles.bundle_of_node] = best.assignment.stage_of_node
    for trial in range(_TRIALS):
        moved = with_items_moved(
            flow,
            costs,
            start,
            effort=request.effort / (1 << trial),
            target_seconds=portfolio.bound,
            out_of_time=request.out_of_time,
        )
        scored = portfolio.offer(portfolio.bundles.assignment(moved, devices))
        if scored is None or scored.fits:
            return
        missing = np.array([stage.peak_bytes for stage in scored.evaluation.stages]) - _memory(problem, best)
        costs = replace(costs, spare=np.maximum(costs.spare - np.maximum(missing, 0), 0.0))


def _memory(problem: PartitionProblem, scored: Scored) -> Integers:
    """[stages] of the device of each."""
    memory: Integers = problem.device_memory_bytes[list(scored.assignment.device_of_stage)]
    return memory


def _flow(problem: PartitionProblem, bundles: Bundles) -> Flow:
    bundle = bundles.bundle_of_node
    tails = np.repeat(np.arange(bundles.count), [len(after) for after in bundles.after])
    heads = np.array([other for after in bundles.after for other in after], dtype=np.int64)
    return Flow.of(
        bundles.count,
        maker=np.where(problem.value_producer >= 0, bundle[problem.value_producer], -1),
        is_returned=problem.value_returned,
        reads=(problem.read_value, bundle[problem.read_node]),
        arcs=(tails, heads),
    )


def _costs(problem: PartitionProblem, bundles: Bundles, start: Scored, links: _Links) -> Costs:
    kinds = distinct_rows(problem.work_seconds)
    sent = np.outer(links.seconds_per_byte, problem.value_bytes)
    if problem.training is not None:
        sent += np.outer(links.seconds_per_byte_back, problem.value_gradient_bytes)
    states = np.zeros(problem.num_nodes)
    # By its first user: where another stage uses it too, that is among what stays as it is.
    users, first = np.unique(problem.use_state, return_index=True)
    np.add.at(states, problem.use_node[first], problem.whole_state_bytes[users])
    return Costs(
        seconds=np.stack([np.bincount(bundles.bundle_of_node, row, bundles.count) for row in kinds.rows]),
        kind_of_stage=kinds.kind_of_row[list(start.assignment.device_of_stage)],
        link=links.of_pair,
        sent=sent,
        received=sent,
        latency=links.latency,
        held=np.bincount(bundles.bundle_of_node, states, bundles.count).astype(np.float64),
        buffered=problem.microbatches_in_flight * problem.value_bytes.astype(np.float64),
        spare=(_memory(problem, start) - [stage.peak_bytes for stage in start.evaluation.stages]).astype(np.float64),
    )


class _Links(NamedTuple):
    """`of_pair` [stages, stages] of those that are unlike."""

    of_pair: Integers
    latency: Floats
    seconds_per_byte: Floats
    seconds_per_byte_back: Floats


def _links(problem: PartitionProblem, devices: Integers) -> _Links:
    pairs = np.ix_(devices, devices)
    latency, per_byte = problem.link_latency_seconds[pairs], problem.link_seconds_per_byte[pairs]
    if problem.training is None:
        all_of_pair = np.stack([latency, per_byte, np.zeros_like(per_byte)], axis=2)
    else:
        all_of_pair = np.stack([latency + latency.T, per_byte, per_byte.T], axis=2)
    unlike, of_pair = np.unique(all_of_pair.reshape(-1, 3), axis=0, return_inverse=True)
    return _Links(of_pair.reshape(latency.shape).astype(np.int64), *unlike.T.copy())
