"""What crosses between stages: which values each is given, the bytes of each edge of their DAG, and what that takes.

Direct: a producer sends to each stage that reads the value. Relay: a value passes through every stage up to its last
reader. Either way stage 0 takes the graph's inputs and the last stage returns its outputs.

Seconds are as Tarnawski et al. model them (NeurIPS 2020, "Efficient Algorithms for Device Placement of DNN Graph
Operators"). A device pays once for each distinct tensor that leaves its stage, whatever the fan-out: copies to
different devices travel over different links at the same time, so the slowest of these links counts. It pays once for
each distinct tensor that enters. Each direction pays one latency, the largest of the links used. Nothing is paid within
a device. With equal links a segment's load therefore follows from its own two ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem

# A device that is not chosen yet: transfers with it are paid over the other end's best link, which none undercuts.
UNKNOWN = -1
# In place of a stage: what is there before any has run.
AHEAD = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossings:
    """Distinct (value, the stage that sends it, the stage that it is sent to). A stage is sent a value by one other."""

    values: Integers
    sources: Integers
    targets: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """By value: the stage that makes it (-1: an input), the last that needs it (-1: none). `edges`: bytes by pair."""

    num_stages: int
    made_in: Integers
    last_needed_in: Integers
    crossings: Crossings
    edges: Mapping[tuple[int, int], int]


def traffic(problem: PartitionProblem, stage_of_node: Integers, num_stages: int) -> Traffic:
    made_in = np.where(problem.value_producer >= 0, stage_of_node[problem.value_producer], -1)
    last_needed_in = np.full(problem.num_values, -1, dtype=np.int64)
    np.maximum.at(last_needed_in, problem.read_value, stage_of_node[problem.read_node])
    last_needed_in[problem.value_returned] = num_stages - 1
    crossings = (
        _relayed(made_in, last_needed_in) if problem.relay else _direct(problem, made_in, stage_of_node, num_stages)
    )
    return Traffic(
        num_stages=num_stages,
        made_in=made_in,
        last_needed_in=last_needed_in,
        crossings=crossings,
        edges=_edges(problem, crossings, num_stages),
    )


def _relayed(made_in: Integers, last_needed_in: Integers) -> Crossings:
    first = np.maximum(made_in, 0)
    hops = np.maximum(last_needed_in - first, 0)
    values = np.repeat(np.arange(made_in.size), hops)
    sources = first[values] + np.arange(values.size) - np.repeat(np.cumsum(hops) - hops, hops)
    return Crossings(values=values, sources=sources, targets=sources + 1)


def _direct(problem: PartitionProblem, made_in: Integers, stage_of_node: Integers, num_stages: int) -> Crossings:
    returned = np.flatnonzero(problem.value_returned)
    values = np.concatenate([problem.read_value, returned])
    readers = np.concatenate([stage_of_node[problem.read_node], np.full(returned.size, num_stages - 1)])
    pairs = np.unique(values * num_stages + readers)
    values, readers = pairs // num_stages, pairs % num_stages
    sources = np.maximum(made_in[values], 0)
    crossing = sources != readers
    return Crossings(values=values[crossing], sources=sources[crossing], targets=readers[crossing])


def _edges(problem: PartitionProblem, crossings: Crossings, num_stages: int) -> dict[tuple[int, int], int]:
    pairs, edge_of_crossing = np.unique(crossings.sources * num_stages + crossings.targets, return_inverse=True)
    sizes = np.zeros(pairs.size, dtype=np.int64)
    np.add.at(sizes, edge_of_crossing, problem.value_bytes[crossings.values])
    ends = zip((pairs // num_stages).tolist(), (pairs % num_stages).tolist(), strict=True)
    return dict(zip(ends, sizes.tolist(), strict=True))


def sources_of_lone_batch(flow: Traffic) -> list[list[int]]:
    """[stages], ascending: the stages whose passes it waits for; AHEAD for stage 0 where that hands it inputs alone,
    which leave before its pass."""
    of_stage_0 = (flow.crossings.sources == 0) & (flow.made_in[flow.crossings.values] >= 0)
    given_more = set(flow.crossings.targets[of_stage_0].tolist())
    sources: list[list[int]] = [[] for _ in range(flow.num_stages)]
    for source, target in sorted(flow.edges):
        sources[target].append(source if source or target in given_more else AHEAD)
    return sources


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """[stages] seconds of what is received and of what is sent."""

    received: Floats
    sent: Floats


def communication_seconds(
    problem: PartitionProblem, crossings: Crossings, device_of_stage: Sequence[int] | Integers
) -> Floats:
    """[stages], in training with the gradients that come back. With UNKNOWN devices, which are never those of another
    stage: a lower bound for the known ones."""
    devices = np.asarray(device_of_stage, dtype=np.int64)
    source, target = devices[crossings.sources], devices[crossings.targets]
    apart = (source != target) | (source == UNKNOWN)
    source, target = source[apart], target[apart]
    crossings = _some(crossings, apart)
    latency = problem.best_latency_seconds[source, target]
    seconds = problem.value_bytes[crossings.values] * problem.best_seconds_per_byte[source, target]
    exchange = _exchange(crossings, latency, seconds, devices.size)
    if problem.training is None:
        return exchange.received + exchange.sent
    carry = problem.value_gradient_bytes[crossings.values] > 0
    source, target, crossings = source[carry], target[carry], _some(crossings, carry)
    latency = problem.best_latency_seconds[target, source]
    seconds = problem.value_gradient_bytes[crossings.values] * problem.best_seconds_per_byte[target, source]
    gradients = _exchange(crossings, latency, seconds, devices.size)
    return exchange.received + exchange.sent + gradients.received + gradients.sent


def exchange_seconds(
    problem: PartitionProblem, crossings: Crossings, devices_of_stage: Sequence[Sequence[int]]
) -> Exchange:
    """Forward, between any copies of the stages: over the slowest link that two of them may use."""
    latency, per_byte = slowest_links(problem, devices_of_stage)
    pairs = crossings.sources, crossings.targets
    seconds = problem.value_bytes[crossings.values] * per_byte[pairs]
    return _exchange(crossings, latency[pairs], seconds, len(devices_of_stage))


def gradient_exchange_seconds(
    problem: PartitionProblem, crossings: Crossings, devices_of_stage: Sequence[Sequence[int]]
) -> Exchange:
    """Backward: each crossing value's gradient comes back, from its targets' copies to its source's."""
    if problem.training is None:
        nothing = np.zeros(len(devices_of_stage))
        return Exchange(received=nothing, sent=nothing)
    latency, per_byte = slowest_links(problem, devices_of_stage)
    crossings = _some(crossings, problem.value_gradient_bytes[crossings.values] > 0)
    back = crossings.targets, crossings.sources
    seconds = problem.value_gradient_bytes[crossings.values] * per_byte[back]
    mirrored = _exchange(crossings, latency[back], seconds, len(devices_of_stage))
    return Exchange(received=mirrored.sent, sent=mirrored.received)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handovers:
    """[stages] how long after a pass receivers that wait for what it made can begin to receive, the longest."""

    forward: Floats
    gradients: Floats


def handovers(problem: PartitionProblem, crossings: Crossings, devices_of_stage: Sequence[Sequence[int]]) -> Handovers:
    [seconds] = _slowest([problem.link_handover_seconds], devices_of_stage)
    forward, gradients = np.zeros(len(devices_of_stage)), np.zeros(len(devices_of_stage))
    np.maximum.at(forward, crossings.sources, seconds[crossings.sources, crossings.targets])
    crossings = _some(crossings, problem.value_gradient_bytes[crossings.values] > 0)
    np.maximum.at(gradients, crossings.targets, seconds[crossings.targets, crossings.sources])
    return Handovers(forward=forward, gradients=gradients)


def slowest_links(problem: PartitionProblem, devices_of_stage: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """[stages, stages] latency and seconds per byte, the largest over the pairs of their copies."""
    latency, per_byte = _slowest([problem.link_latency_seconds, problem.link_seconds_per_byte], devices_of_stage)
    return latency, per_byte


def _slowest(links: Sequence[Floats], devices_of_stage: Sequence[Sequence[int]]) -> list[Floats]:
    devices = np.array([device for copies in devices_of_stage for device in copies], dtype=np.int64)
    of_pairs = [of_devices[devices[:, None], devices] for of_devices in links]
    if devices.size == len(devices_of_stage):
        return of_pairs
    starts = np.cumsum([0, *(len(copies) for copies in devices_of_stage)])[:-1]
    return [np.maximum.reduceat(np.maximum.reduceat(one, starts, axis=0), starts, axis=1) for one in of_pairs]


def _some(crossings: Crossings, mask: Booleans) -> Crossings:
    return Crossings(values=crossings.values[mask], sources=crossings.sources[mask], targets=crossings.targets[mask])


def _exchange(crossings: Crossings, latency: Floats, seconds: Floats, num_stages: int) -> Exchange:
    """`latency` and `seconds` of each crossing, forward in time from its sources to its targets."""
    into, out = np.zeros(num_stages), np.zeros(num_stages)
    np.maximum.at(into, crossings.targets, latency)
    np.maximum.at(out, crossings.sources, latency)
    np.add.at(into, crossings.targets, seconds)
    slowest, senders = _slowest_copies(crossings.values, crossings.sources, seconds, num_stages)
    np.add.at(out, senders, slowest)
    return Exchange(received=into, sent=out)


def _slowest_copies(values: Integers, sources: Integers, seconds: Floats, num_stages: int) -> tuple[Floats, Integers]:
    """(seconds, sending stage) of each distinct value that a stage sends."""
    sends, first = np.unique(values * num_stages + sources, return_inverse=True)
    slowest = np.zeros(sends.size)
    np.maximum.at(slowest, first, seconds)
    return slowest, sends % num_stages
