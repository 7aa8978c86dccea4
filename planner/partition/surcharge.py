"""Layouts for loads that the search over the program order underestimates: what was unforeseen is added next time.

Where a stage sends one tensor to many others, its load grows with cuts that the search has not made when it weighs the
stage. What the last layout's stages paid beyond their estimates is a good guess at what the next one's will.
"""

from __future__ import annotations

import numpy as np

from planner.partition.ordered_pass import Layout, OrderedPass
from planner.partition.problem import Floats, Integers


def surcharged(shared: OrderedPass, positions: Integers, layout: Layout, limit: float, rounds: int) -> Layout:
    """The best layout of so many rounds whose guessed bottleneck is below the limit, or the given one."""
    best, seen = layout, layout
    for _ in range(rounds):
        surcharge = _unforeseen_seconds(shared, seen)
        found = shared.layout_of(shared.search(positions, limit, surcharge))
        if found is None or found.boundaries == seen.boundaries:
            break
        seen = found
        best = found if found.bottleneck_seconds < best.bottleneck_seconds else best
    return best


def _unforeseen_seconds(shared: OrderedPass, layout: Layout) -> Floats:
    """By stage number: the true load beyond the estimate."""
    unforeseen = np.zeros(shared.problem.num_devices + 2)
    for stage, (label, load) in enumerate(zip(layout.labels, layout.stage_load_seconds, strict=True)):
        start, end = layout.boundaries[stage], layout.boundaries[stage + 1]
        estimate = shared.loads.seconds(shared.segments.row(start, end), np.array([end]))[label, 0]
        unforeseen[stage] = max(0.0, load - float(estimate))
    return unforeseen
