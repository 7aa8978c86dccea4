"""A bound on the fullest device's share by one bundle at a time: what the device that runs it holds at least.

While a node runs, what it reads and makes lies there. Besides, the device buffers what the bundle reads, or holds the
states of what makes that; and so on, and likewise for what it makes.
"""

from __future__ import annotations

import numpy as np

from planner.partition.bounds.around_bundles import SCALE, SINK, messages_of, network_of, read_elsewhere
from planner.partition.bounds.work import held_bytes
from planner.partition.problem import Floats, PartitionProblem
from planner.partition.program_orders import Bundles

# Relative: below what rounding in sums may add.
_MARGIN = 1 - 1e-9
# Bundles looked at, those that hold the most by themselves first.
_MAX_BUNDLES = 64


def least_memory_bound(problem: PartitionProblem, bundles: Bundles, proven: float) -> float:
    """A share; `proven` where it proves no more. Not where stages run nodes again, for then values need not cross.

    Holds for any order and for stages anywhere: each bundle on the largest device.
    """
    room = float(problem.device_memory_bytes.max())
    if room <= 0:
        return proven
    states, held = _shared_state_bytes(problem, bundles), np.zeros(bundles.count)
    np.maximum.at(held, bundles.bundle_of_node, held_bytes(problem))
    # What goes to the caller leaves its maker's stage in any case, and is among what that holds.
    sizes = problem.microbatches_in_flight * problem.value_bytes * ~problem.value_returned
    messages = messages_of(problem, bundles, *read_elsewhere(problem, bundles), sizes.astype(np.float64))
    most = float(states.sum()) + sum(messages.values())
    if not most:
        return max(proven, float(held.max()) / room * _MARGIN)
    network = network_of(states, messages, most)
    for bundle in np.argsort(-(held + states), kind="stable")[:_MAX_BUNDLES].tolist():
        if (held[bundle] + most) / room * _MARGIN > proven:
            least = held[bundle] + network.least_cut(bundle, SINK) / SCALE * most
            proven = max(proven, float(least) / room * _MARGIN)
    return proven


def _shared_state_bytes(problem: PartitionProblem, bundles: Bundles) -> Floats:
    """[bundles] bytes of states, each divided among its uses: no set of bundles holds less."""
    uses = np.bincount(problem.use_state, minlength=problem.state_bytes.size)
    shares = problem.whole_state_bytes[problem.use_state] / uses[problem.use_state]
    return np.asarray(np.bincount(bundles.bundle_of_node[problem.use_node], shares, bundles.count), dtype=np.float64)
