"""Bundles moved between the stages of a plan, whatever order of the program that asks for: for the bottleneck, for a
training step, and for a lone batch. And between devices, where each may run several stages.

Cuts of an order leave out most stages of a program with many orders (cells of a dozen branches each, as in NASNet):
there plans take up to a seventh less. Nor do stages of an order's segments run side by side, as experts and encoders
can: a pipeline of such stages fills and drains sooner. So where seconds count that a microbatch is on its way, devices
that are idle stand between the stages too, to begin one on, and stages change devices.

Loads and ends of passes are those of `evaluate`. Of memory, what the plan in hand needs besides its states, its buffers
and what it saves for backward passes is taken to stay as it is, and what then does not fit is left less room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.bounds.work import first_users_bytes, held_bytes
from planner.partition.objective import Objective
from planner.partition.ordered.hosts import Hosts, distinct_rows, hosts_of
from planner.partition.placement.stage_moves import Costs, Flow, Moved, is_too_large, with_items_moved
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.portfolio.stages_of_devices import stages_by_level
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles
from planner.partition.score import Scored, score
from planner.partition.training.memory import kept_microbatches
from planner.partition.turns_kernel import ONCE, Turns, turns_of

# Of which each has half the steps of the one before.
_TRIALS = 3
# From what the moves before came to, as long as they gain so much of the seconds.
_MOST_TIMES, _WORTH_AGAIN = 3, 1e-3


def offer_moved_bundles(portfolio: Portfolio) -> None:
    """From the best in hand without its copies, where each stage has a device of its own; and again from there."""
    _move_on(portfolio, _offer_moved_from)


def offer_moved_anywhere(portfolio: Portfolio) -> None:
    """From the best in hand: bundles moved between devices for the bottleneck, each of which may run several stages."""
    _move_on(portfolio, _offer_moved_anywhere)


def _move_on(portfolio: Portfolio, move: Callable[[Portfolio, Scored], None]) -> None:
    start = _without_copies(portfolio)
    for _ in range(_MOST_TIMES):
        if portfolio.problem.num_devices == 1 or portfolio.is_over:
            return
        move(portfolio, start)
        before, start = start, _without_copies(portfolio)
        if start.value > before.value * (1 - _WORTH_AGAIN):
            return


def _without_copies(portfolio: Portfolio) -> Scored:
    best = portfolio.best
    assert best is not None
    if not best.assignment.replicas:
        return best
    return score(portfolio.problem, replace(best.assignment, replicas=()), portfolio.request.objective)


def _offer_moved_from(portfolio: Portfolio, start: Scored) -> None:
    problem, request = portfolio.problem, portfolio.request
    devices = start.assignment.device_of_stage
    if len(devices) > 1 and len(set(devices)) == len(devices):
        with_idle = _turns(problem, request.objective) is not None and not request.num_stages
        _offer_moved(portfolio, start, _Slots.of(hosts_of(problem), start.assignment, with_idle=with_idle))


def _offer_moved_anywhere(portfolio: Portfolio, start: Scored) -> None:
    _offer_moved(portfolio, start, _Slots.anywhere(portfolio.problem.num_devices, start.assignment))


def _offer_moved(portfolio: Portfolio, start: Scored, slots: _Slots) -> None:
    problem, request, bundles = portfolio.problem, portfolio.request, portfolio.bundles
    flow, links = _flow(problem, bundles), _links(problem)
    if is_too_large(flow, slots.device.size, links.seconds_per_byte.shape[1]):
        return
    costs = _costs(problem, bundles, start, slots, links, _turns(problem, request.objective))
    if slots.are_anywhere:
        costs = replace(costs, buffered=costs.buffered + _of_a_stage(problem) / 2)
    stage_of_bundle = np.empty(bundles.count, dtype=np.int64)
    stage_of_bundle[bundles.bundle_of_node] = slots.slot_of_stage[list(start.assignment.stage_of_node)]
    for trial in range(_TRIALS):
        moved = with_items_moved(
            flow,
            costs,
            stage_of_bundle,
            slots.device,
            effort=request.effort / (1 << trial),
            target_seconds=portfolio.bound,
            out_of_time=request.out_of_time,
        )
        scored = portfolio.offer(_assignment(problem, bundles, slots, moved))
        if scored is None or scored.fits:
            return
        missing = -_spare(problem, scored)[slots.device]
        costs = replace(costs, spare=np.maximum(costs.spare - np.maximum(missing, 0.0), 0.0))


def _of_a_stage(problem: PartitionProblem) -> Floats:
    """[values] bytes of what runs beside the value's ends: of those that go from device to device, each ends a stage
    and begins one, so that either end has half of what a stage more takes."""
    held, made = held_bytes(problem), problem.value_producer >= 0
    bytes_beside = np.zeros(problem.num_values)
    np.maximum.at(bytes_beside, problem.read_value, held[problem.read_node])
    np.maximum.at(bytes_beside, np.flatnonzero(made), held[problem.value_producer[made]])
    return bytes_beside


def _spare(problem: PartitionProblem, scored: Scored) -> Floats:
    """[devices] bytes that each has left."""
    peaks: Floats = np.array(scored.evaluation.device_peak_bytes, dtype=np.float64)
    return problem.device_memory_bytes.astype(np.float64) - peaks


def _turns(problem: PartitionProblem, objective: Objective) -> Turns | None:
    """Of what is to be over soon; None for the bottleneck."""
    if objective is Objective.STEP_TIME:
        assert problem.training is not None
        return turns_of(problem.training)
    return ONCE if objective is Objective.LATENCY else None


def _assignment(problem: PartitionProblem, bundles: Bundles, slots: _Slots, moved: Moved) -> Assignment:
    if slots.are_anywhere:
        return stages_by_level(problem, bundles, moved.device_of_stage[moved.stage_of_item].tolist())
    used, stage_of_bundle = np.unique(moved.stage_of_item, return_inverse=True)
    return bundles.assignment(stage_of_bundle, tuple(moved.device_of_stage[used].tolist()))


class _Slots(NamedTuple):
    """Stages and, if these may be idle, room for others between them: the `device` [slots] of each, and the
    `slot_of_stage` [stages]. Anywhere, a slot for each device."""

    device: Integers
    slot_of_stage: Integers
    may_be_idle: bool
    are_anywhere: bool = False

    @classmethod
    def of(cls, hosts: Hosts, assignment: Assignment, *, with_idle: bool) -> _Slots:
        """Devices that are idle stand behind stages on their hosts, one behind each in turn, or behind the last but
        one: never at either end, where the caller is."""
        devices = list(assignment.device_of_stage)
        behind: list[list[int]] = [[] for _ in devices]
        host, inner = hosts.host_of_device, range(len(devices) - 1)
        idle = sorted(set(range(host.size)) - set(devices)) if with_idle and inner else []
        for device in idle:
            near = [stage for stage in inner if host[devices[stage]] == host[device]] or [inner[-1]]
            behind[min(near, key=lambda stage: len(behind[stage]))].append(device)
        slots, slot_of_stage = list[int](), list[int]()
        for device, others in zip(devices, behind, strict=True):
            slot_of_stage.append(len(slots))
            slots += [device, *others]
        return cls(np.array(slots, dtype=np.int64), np.array(slot_of_stage, dtype=np.int64), with_idle)

    @classmethod
    def anywhere(cls, num_devices: int, assignment: Assignment) -> _Slots:
        """The first stage's device is the first: the caller is there, and at the last stage's."""
        used = assignment.device_of_stage
        device = np.array([used[0], *(other for other in range(num_devices) if other != used[0])], dtype=np.int64)
        return cls(device, np.argsort(device)[list(used)], may_be_idle=True, are_anywhere=True)


def _flow(problem: PartitionProblem, bundles: Bundles) -> Flow:
    bundle = bundles.bundle_of_node
    tails = np.repeat(np.arange(bundles.count), [len(after) for after in bundles.after])
    heads = np.array([other for after in bundles.after for other in after], dtype=np.int64)
    return Flow.of(
        bundles.count,
        maker=np.where(problem.value_producer >= 0, bundle[problem.value_producer], -1),
        is_returned=problem.value_returned,
        comes_back=(problem.value_gradient_bytes > 0) & (problem.training is not None),
        reads=(problem.read_value, bundle[problem.read_node]),
        arcs=(tails, heads),
    )


def _costs(
    problem: PartitionProblem,
    bundles: Bundles,
    start: Scored,
    slots: _Slots,
    links: _Links,
    turns: Turns | None,
) -> Costs:
    passes, moved = [problem.compute_seconds], [np.outer(links.seconds_per_byte[0], problem.value_bytes)]
    if problem.training is not None:
        passes.append(problem.backward_seconds(recomputed=problem.recomputes_activations, is_split=True))
        moved.append(np.outer(links.seconds_per_byte[1], problem.value_gradient_bytes))
    if turns is not None and turns.splits:
        passes.append(problem.weight_seconds)
    kinds = distinct_rows(np.hstack(passes) if len(passes) > 1 else passes[0])
    rows = kinds.rows.reshape(-1, problem.num_nodes)
    seconds: Floats = np.stack([np.bincount(bundles.bundle_of_node, row, bundles.count) for row in rows], dtype=float)
    sent, alike = np.stack(moved), hosts_of(problem).alike
    return Costs(
        seconds=seconds.reshape(-1, len(passes), bundles.count).transpose(1, 0, 2),
        by_maker=sent,
        by_reader=sent,
        latency=links.latency[: len(moved)],
        handover=links.handover[: len(moved)],
        **_bytes(problem, bundles, slots.device.size),
        link=links.of_pair,
        kind=kinds.kind_of_row,
        alike=np.array([alike[device][0] for device in range(problem.num_devices)]),
        memory=problem.device_memory_bytes.astype(np.float64),
        spare=_spare(problem, start)[slots.device],
        may_be_idle=slots.may_be_idle,
        is_anywhere=slots.are_anywhere,
        returning=int(slots.slot_of_stage[-1]),
        turns=turns,
    )


def _bytes(problem: PartitionProblem, bundles: Bundles, num_slots: int) -> dict[str, Floats]:
    """What bundles hold, states by their first user: where another stage uses one too, that is among what stays as it
    is. What values and gradients for backward passes take, for each microbatch that a stage keeps."""
    training, owner = problem.training, bundles.bundle_of_node
    held = first_users_bytes(problem, bundles)
    buffered = problem.microbatches_in_flight * problem.value_bytes.astype(np.float64)
    if training is None:
        return {"held": held, "buffered": buffered}
    own = problem.made_roots
    saved = np.bincount(owner, problem.node_kept_bytes, bundles.count)
    saved += np.bincount(owner[problem.root_producer[own]], problem.root_saved_bytes[own], bundles.count)
    is_read_back = np.zeros(problem.num_values, dtype=np.bool_)
    is_read_back[problem.read_value[problem.node_has_gradient[problem.read_node]]] = True
    if problem.recomputes_activations:
        # Once, and not for each microbatch; and all that comes in.
        held, saved, is_read_back = held + saved, np.zeros_like(saved), np.ones_like(is_read_back)
    return {
        "held": held.astype(np.float64),
        "buffered": buffered,
        "saved": saved.astype(np.float64),
        "given": np.where(is_read_back, problem.value_bytes, 0.0),
        "kept": np.array([kept_microbatches(training, num_slots, slot) for slot in range(num_slots)], dtype=np.float64),
    }


class _Links(NamedTuple):
    """`of_pair` [devices, devices] of those that are unlike; of each, [2, links] there and back."""

    of_pair: Integers
    latency: Floats
    seconds_per_byte: Floats
    handover: Floats


def _links(problem: PartitionProblem) -> _Links:
    costs = problem.link_latency_seconds, problem.link_seconds_per_byte, problem.link_handover_seconds
    pairs = np.stack([one for cost in costs for one in (cost, cost.T)], axis=2)
    unlike = distinct_rows(pairs.reshape(-1, 6))
    return _Links(unlike.kind_of_row.reshape(pairs.shape[:2]), *unlike.rows.T.reshape(3, 2, -1))
