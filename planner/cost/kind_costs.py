"""What measurements say of one kind of device: seconds of the nodes that were measured, rates for the others.

Where the dimensions asked for were not measured at, the nearest point's times count, each scaled by what the roofline
(at the rates fitted to the same measurements) says that the node's work has grown or shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.calibrate import calibrate
from planner.cost.calibration import Calibration
from planner.cost.deliveries import measured_message, scaled_delivery
from planner.cost.device_kinds import DeviceKind, device_kind
from planner.cost.measured import MAX_BYTES, NO_DELIVERY, Delivery, MeasuredTimes, check_fits, nearest, point_of
from planner.cost.sources import RateSource
from planner.cost.update_rates import UpdateRates, measured_rates
from planner.cost.work import Floats, Work, graph_work
from planner.graph.ir import Graph
from planner.graph.saved import Saved


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindCosts:
    """`measured` is [nodes] seconds, nan where not measured; None without any. `scaled` if at other dimensions.

    `backward_ratio` [nodes]: a measured backward pass over its forward pass, nan where one of them was not measured;
    `split_ratio` where it is run in two, and `weight_share` what weights take of that. `saved`, by node: what is kept
    for it, where that was measured.

    `delivery` is of the same profile as `measured`, and `has_own_threads` says that it was taken with the threads that
    a worker has, however many share the host.

    `message_seconds`: see planner.cost.messages; None where deliveries were not measured. `update_rates`: see
    planner.cost.update_rates.

    `measured_profile_ids` are of the times, `calibration_profile_ids` of the rates, where they are stored.
    """

    rates: DeviceKind
    rate_source: RateSource
    measured: Floats | None = None
    backward_ratio: Floats | None = None
    split_ratio: Floats | None = None
    weight_share: Floats | None = None
    saved: Mapping[int, Saved] = field(default_factory=dict)
    delivery: Delivery = NO_DELIVERY
    message_seconds: float | None = None
    update_rates: UpdateRates | None = None
    scaled: bool = False
    has_own_threads: bool = False
    measured_profile_ids: tuple[str, ...] = ()
    calibration_profile_ids: tuple[str, ...] = ()


def kind_costs(
    graph: Graph,
    work: Work,
    symbol_values: Mapping[int, int],
    kind: str,
    measured: Sequence[MeasuredTimes],
    calibrations: Sequence[Calibration],
    named: Collection[str] = (),
) -> KindCosts:
    """`work` is the graph's at `symbol_values`.

    Rates are, in this order: of the calibration whose profile is `named`; fitted to the graph's own measurements; of
    the first calibration of the kind; built in.
    """
    tables = [times for times in measured if times.is_of_kind(kind)]
    points = [point_of(times, graph) for times in tables]
    works = [work if point == symbol_values else graph_work(graph, point) for point in points]
    seconds = [_seconds(times, graph) for times in tables]
    measured_ids = tuple(times.profile_id for times in tables if times.profile_id)
    fitted = calibrate(kind, zip(works, seconds, strict=True))
    of_kind = [one for one in calibrations if one.is_of_kind(kind)]
    named_calibration = next((one for one in of_kind if one.profile_id in named), None)
    calibration = named_calibration or fitted or next(iter(of_kind), None)
    rates = calibration.rates if calibration else device_kind(kind)
    costs = KindCosts(
        rates=rates,
        rate_source=RateSource.CALIBRATED if calibration else RateSource.ROOFLINE,
        measured_profile_ids=measured_ids,
        calibration_profile_ids=measured_ids if fitted and calibration is fitted else _stored(calibration),
    )
    if not tables:
        return costs
    at = nearest(points, symbol_values)
    scaled = points[at] != symbol_values
    measured_seconds = seconds[at] * _growth(works[at], work, rates) if scaled else seconds[at]
    split = tables[at].split_seconds
    weights = _by_node([(node, seconds_of_part) for node, _, seconds_of_part in split], len(graph.nodes))
    both = weights + _by_node([(node, seconds_of_part) for node, seconds_of_part, _ in split], len(graph.nodes))
    return replace(
        costs,
        measured=measured_seconds,
        backward_ratio=_ratio(_by_node(tables[at].backward_seconds, len(graph.nodes)), seconds[at]),
        split_ratio=_ratio(both, seconds[at]),
        weight_share=_ratio(weights, both),
        saved=_enlarged(tables[at].saved, works[at], work) if scaled else dict(tables[at].saved),
        message_seconds=measured_message(graph, tables[at], works[at].shapes),
        update_rates=measured_rates(graph, tables[at], works[at].shapes),
        delivery=scaled_delivery(graph, tables[at], works[at].shapes, work.shapes),
        scaled=scaled,
        has_own_threads=tables[at].num_threads > 0,
    )


def _ratio(part: Floats, whole: Floats) -> Floats:
    """[nodes], nan where it is of nothing."""
    ratio: Floats = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
    return ratio


def _stored(calibration: Calibration | None) -> tuple[str, ...]:
    return (calibration.profile_id,) if calibration and calibration.profile_id else ()


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
    return _by_node(times.seconds, len(graph.nodes))


def _by_node(pairs: Sequence[tuple[int, float]], num_nodes: int) -> Floats:
    seconds_of_node = np.full(num_nodes, np.nan)
    for index, seconds in pairs:
        seconds_of_node[index] = seconds
    return seconds_of_node


def _growth(before: Work, after: Work, rates: DeviceKind) -> Floats:
    """[nodes]: 1 for what costs nothing at either."""
    return _grown(roofline_seconds(before, rates), roofline_seconds(after, rates))


def _enlarged(saved: Iterable[tuple[int, Saved]], before: Work, after: Work) -> dict[int, Saved]:
    """What was made within may be as many times as large as what the call moves or, as attention does, computes."""
    growth = np.maximum(_grown(before.bytes_moved, after.bytes_moved), _grown(before.flops, after.flops))
    return {
        index: replace(one, within_bytes=min(math.ceil(one.within_bytes * growth[index]), MAX_BYTES))
        for index, one in saved
    }


def _grown(before: Floats, after: Floats) -> Floats:
    growth: Floats = np.divide(after, before, out=np.ones_like(after), where=before > 0)
    return growth
