"""What measurements say of one kind of device: seconds of the nodes that were measured, rates for the others.

Where the dimensions asked for were not measured at, the nearest point's times count, each scaled by what the roofline
(at the rates fitted to the same measurements) says that the node's work has grown or shrunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.calibration import Calibration, calibrate
from planner.cost.device_kinds import DeviceKind, device_kind
from planner.cost.measured import MeasuredTimes, check_fits, nearest, point_of
from planner.cost.sources import RateSource
from planner.cost.work import Floats, Work, graph_work
from planner.graph.ir import Graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindCosts:
    """`measured` is [nodes] seconds, nan where not measured; None without any. `scaled` if at other dimensions."""

    rates: DeviceKind
    rate_source: RateSource
    measured: Floats | None = None
    scaled: bool = False


def kind_costs(
    graph: Graph,
    work: Work,
    symbol_values: Mapping[int, int],
    kind: str,
    measured: Sequence[MeasuredTimes],
    calibrations: Sequence[Calibration],
) -> KindCosts:
    """`work` is the graph's at `symbol_values`. The graph's own measurements come before a calibration of the kind."""
    tables = [times for times in measured if times.is_of_kind(kind)]
    points = [point_of(times, graph) for times in tables]
    works = [work if point == symbol_values else graph_work(graph, point) for point in points]
    seconds = [_seconds(times, graph) for times in tables]
    fitted = calibrate(kind, zip(works, seconds, strict=True))
    known = fitted or next((one for one in calibrations if one.is_of_kind(kind)), None)
    rates = known.rates if known else device_kind(kind)
    source = RateSource.CALIBRATED if known else RateSource.ROOFLINE
    if not tables:
        return KindCosts(rates=rates, rate_source=source)
    at = nearest(points, symbol_values)
    scaled = points[at] != symbol_values
    found = seconds[at] * _growth(works[at], work, rates) if scaled else seconds[at]
    return KindCosts(rates=rates, rate_source=source, measured=found, scaled=scaled)


def roofline_seconds(
    work: Work, rates: DeviceKind, flops_per_second: float = 0.0, memory_bytes_per_second: float = 0.0
) -> Floats:
    """[nodes]. A rate of 0 means that of `rates`."""
    by_dtype = {dtype: flops_per_second or rates.flops_per_second(dtype) for dtype in set(work.dtypes)}
    rate = np.array([by_dtype[dtype] for dtype in work.dtypes], dtype=np.float64)
    memory_rate = memory_bytes_per_second or rates.memory_bytes_per_second
    seconds: Floats = np.maximum(work.flops / rate, work.bytes_moved / memory_rate) + work.calls * rates.node_seconds
    return seconds


def _seconds(times: MeasuredTimes, graph: Graph) -> Floats:
    check_fits(times, graph)
    seconds = np.full(len(graph.nodes), np.nan)
    for index, found in times.seconds:
        seconds[index] = found
    return seconds


def _growth(before: Work, after: Work, rates: DeviceKind) -> Floats:
    """[nodes]: 1 for what costs nothing at either."""
    first, second = roofline_seconds(before, rates), roofline_seconds(after, rates)
    growth: Floats = np.divide(second, first, out=np.ones_like(second), where=first > 0)
    return growth
