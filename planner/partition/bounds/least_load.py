"""A bound on the bottleneck by one bundle at a time: what the device that runs it has to do at least.

That device is sent what the bundle reads or makes it, for which it is sent or makes what that reads, and so on; and it
sends what the bundle makes, or runs all that reads it. Seconds of what it runs, is sent and sends add up, with those of
gradients in training. Where devices are plenty, the bundle with the most of it is often what no plan can better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from planner.partition.bounds.around_bundles import SCALE, SINK, Messages, messages_of, network_of, read_elsewhere
from planner.partition.bounds.work import least_seconds_of_bundles
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# Relative: below what rounding in sums may add.
_MARGIN = 1 - 1e-9
# Bundles looked at, those with the most to do by themselves first.
_MAX_BUNDLES = 64


def least_load_bound(problem: PartitionProblem, bundles: Bundles, proven: float) -> float:
    """Seconds; `proven` where it proves no more. Not with copies of stages, nor where stages run nodes again.

    Holds for any order and for stages anywhere: every node where it runs fastest, every message over the best link.
    """
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    if problem.num_devices == 1:
        return proven
    work = least_seconds_of_bundles(problem, bundles)
    latency, per_byte = (
        float(links[apart].min()) for links in (problem.link_latency_seconds, problem.link_seconds_per_byte)
    )
    sizes = problem.value_bytes + (problem.value_gradient_bytes if problem.training is not None else 0)
    seconds_of_value = np.asarray(sizes * per_byte, dtype=np.float64)
    values, readers = read_elsewhere(problem, bundles)
    by_itself = work + 2 * latency + _exchanged(problem, bundles, values, readers, seconds_of_value)
    order = [int(bundle) for bundle in np.argsort(-by_itself, kind="stable")[:_MAX_BUNDLES]]
    most = float(by_itself[order[0]])
    if not proven < most * _MARGIN < np.inf:
        return proven
    messages = messages_of(problem, bundles, values, readers, seconds_of_value)
    network, before, after = network_of(work, messages, most), _arcs(messages, backward=True), _arcs(messages)
    for bundle in order:
        if not by_itself[bundle] * _MARGIN > proven:
            break
        seconds = network.least_cut(bundle, SINK) / SCALE * most
        if not (seconds + 2 * latency) * _MARGIN > proven:
            continue
        needed, needing = _reached(bundle, before), _reached(bundle, after)
        seconds = min(
            seconds + 2 * latency,
            # Unless all that it needs runs there too, and nothing is received; or all that needs it; or both.
            max(seconds, float(work[needed].sum())) + (latency if len(needing) > 1 else 0.0),
            max(seconds, float(work[needing].sum())) + (latency if len(needed) > 1 else 0.0),
            max(seconds, float(work[[*needed, *needing[1:]]].sum())),
        )
        proven = max(proven, seconds * _MARGIN)
    return proven


def _exchanged(
    problem: PartitionProblem, bundles: Bundles, values: Integers, readers: Integers, seconds_of_value: Floats
) -> Floats:
    """[bundles] seconds of what a device that runs nothing else is sent, and sends once to all."""
    sent = np.unique(values)
    makers = bundles.bundle_of_node[problem.value_producer[sent]]
    received = np.bincount(readers, seconds_of_value[values], bundles.count)
    return np.asarray(received + np.bincount(makers, seconds_of_value[sent], bundles.count), dtype=np.float64)


def _arcs(messages: Messages, *, backward: bool = False) -> dict[int, list[int]]:
    """By bundle those that it sends messages to; or those that it is sent them by."""
    arcs: dict[int, list[int]] = defaultdict(list)
    for maker, readers in messages:
        for reader in readers:
            arcs[reader if backward else maker].append(maker if backward else reader)
    return arcs


def _reached(bundle: int, arcs: Mapping[int, Sequence[int]]) -> list[int]:
    """Itself first."""
    reached, waiting = {bundle: None}, [bundle]
    while waiting:
        more = [other for other in arcs.get(waiting.pop(), ()) if other not in reached]
        reached.update(dict.fromkeys(more))
        waiting += more
    return list(reached)
