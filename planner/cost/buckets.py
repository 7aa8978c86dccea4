"""Costs over several settings of the dynamic dimensions: the mean of the seconds, the largest of the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.cost.roofline import NodeCosts
from planner.cost.shapes import Shape
from planner.cost.sources import CostSource
from planner.cost.work import Floats
from planner.graph.saved import Saved, most_saved


def mean_costs(costs: Sequence[tuple[NodeCosts, float]]) -> NodeCosts:
    """Each with its weight; weights sum to 1. Shapes are those of the largest, value by value."""
    if len(costs) == 1:
        return costs[0][0]
    return NodeCosts(
        seconds=_mean([(one.seconds, weight) for one, weight in costs]),
        backward_ratio=_mean([(one.backward_ratio, weight) for one, weight in costs]),
        split_ratio=_mean([(one.split_ratio, weight) for one, weight in costs]),
        weight_share=_mean([(one.weight_share, weight) for one, weight in costs]),
        saved=tuple(map(_most_saved, zip(*(one.saved for one, _ in costs), strict=True))),
        input_seconds=_mean([(one.input_seconds, weight) for one, weight in costs]),
        output_seconds=_mean([(one.output_seconds, weight) for one, weight in costs]),
        flops=_mean([(one.flops, weight) for one, weight in costs]),
        bytes_moved=_mean([(one.bytes_moved, weight) for one, weight in costs]),
        shapes=_largest([one for one, _ in costs]),
        sources=tuple(map(_joint, zip(*(one.sources for one, _ in costs), strict=True))),
    )


def _mean(terms: Sequence[tuple[Floats, float]]) -> Floats:
    mean = np.zeros_like(terms[0][0])
    for values, weight in terms:
        mean += weight * values
    return mean


def _largest(costs: Sequence[NodeCosts]) -> dict[int, Shape]:
    return {
        value_id: max((one.shapes[value_id] for one in costs), key=lambda shape: shape.size_bytes)
        for value_id in costs[0].shapes
    }


def _most_saved(settings: Sequence[Mapping[int, Saved]]) -> dict[int, Saved]:
    """Of what was measured at all of them."""
    nodes = set(settings[0]).intersection(*settings[1:])
    return {index: most_saved(one[index] for one in settings) for index in sorted(nodes)}


def _joint(sources: Sequence[CostSource]) -> CostSource:
    return replace(
        sources[0],
        num_measured=min(source.num_measured for source in sources),
        num_backward=min(source.num_backward for source in sources),
        scaled=any(source.scaled for source in sources),
    )
