"""Seconds that each node takes on each device: measured where it was, else the larger of its arithmetic and its memory
traffic.

The latter is the roofline of Williams et al. 2009. A call's own overhead comes on top. Views cost nothing; opaque nodes
take the times that they were given.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from planner.cost.calibration import Calibration
from planner.cost.inventory import Device
from planner.cost.kind_costs import KindCosts, kind_costs, roofline_seconds
from planner.cost.measured import MeasuredTimes
from planner.cost.shapes import Shape
from planner.cost.sources import CostSource, RateSource
from planner.cost.work import Floats, Work, graph_work
from planner.errors import GraphError
from planner.graph.ir import Graph, Node, OperatorKind
from planner.graph.saved import Saved, most_saved, saved_by_rule

# A key of opaque_seconds: every kind that has no time of its own.
ANY_KIND = "*"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCosts:
    """`seconds` is [devices, nodes]; `flops` and `bytes_moved` are [nodes]; `shapes` by value id.

    `backward_ratio` [devices, nodes]: a backward pass over its forward pass, `split_ratio`: the same run in two, and
    `weight_share`: what weights take of that; nan where it was not measured. `saved` [kinds], by node: what is kept for
    it, where that was measured.
    `input_seconds` and `output_seconds` [devices]: of a microbatch that a client hands in, and of what it is given.
    """

    seconds: Floats
    backward_ratio: Floats
    split_ratio: Floats
    weight_share: Floats
    saved: tuple[Mapping[int, Saved], ...]
    input_seconds: Floats
    output_seconds: Floats
    flops: Floats
    bytes_moved: Floats
    shapes: Mapping[int, Shape]
    sources: tuple[CostSource, ...] = ()

    def saved_by_nodes(self, graph: Graph) -> list[Saved]:
        """[nodes] what is enough on any of the kinds: as measured, else by rule."""
        return [self._saved_by_node(index, node) for index, node in enumerate(graph.nodes)]

    def _saved_by_node(self, index: int, node: Node) -> Saved:
        measured = [of_kind[index] for of_kind in self.saved if index in of_kind]
        if measured and len(measured) == len(self.saved):
            return most_saved(measured)
        by_rule = self._saved_by_rule(node)
        return most_saved([*measured, by_rule]) if measured else by_rule

    def _saved_by_rule(self, node: Node) -> Saved:
        if not node.outputs[0]:
            return saved_by_rule(node, 0, 0)
        shape = self.shapes[node.outputs[0]]
        return saved_by_rule(node, shape.size_bytes, shape.dtype.size_bytes if shape.dtype else 0)


def node_costs(
    graph: Graph,
    devices: Sequence[Device],
    symbol_values: Mapping[int, int],
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
    named: Collection[str] = (),
    workers: Sequence[int] = (),
) -> NodeCosts:
    """Linear in nodes + values, for each distinct kind and point measured.

    `workers` [devices] divide the cores of each; empty: one each.

    `named` are ids of profiles whose calibrations come before rates fitted to `measured`.
    Raises GraphError for an opaque time that is negative or not finite, InvalidArgument for measured times that do not
    fit the graph.
    """
    work = graph_work(graph, symbol_values)
    kinds: dict[str, KindCosts] = {}
    rows: dict[tuple[str, float, float, int], Floats] = {}
    speeds = [_speed(device, count) for device, count in zip(devices, workers or repeat(1), strict=False)]
    for device, speed in zip(devices, speeds, strict=True):
        if device.kind not in kinds:
            kinds[device.kind] = kind_costs(graph, work, symbol_values, device.kind, measured, calibrations, named)
        if speed not in rows:
            kind, (*_, count) = kinds[device.kind], speed
            rows[speed] = _divided(_seconds(graph, work, device, kind), work, kind, count)
    seconds = np.stack([rows[speed] for speed in speeds]) if devices else np.zeros((0, len(graph.nodes)))
    own = [kinds[device.kind] for device in devices]
    deliveries = [kinds[device.kind].delivery for device in devices]
    unknown = np.full(len(graph.nodes), np.nan)

    def measured_on_each(name: str) -> Floats:
        rows = [getattr(kind, name) for kind in own]
        return np.array([unknown if row is None else row for row in rows]).reshape(seconds.shape)

    return NodeCosts(
        seconds=seconds,
        backward_ratio=measured_on_each("backward_ratio"),
        split_ratio=measured_on_each("split_ratio"),
        weight_share=measured_on_each("weight_share"),
        saved=tuple(kind.saved for kind in kinds.values()),
        input_seconds=np.array([delivery.input_seconds for delivery in deliveries]),
        output_seconds=np.array([delivery.output_seconds for delivery in deliveries]),
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        shapes=work.shapes,
        sources=tuple(_source(graph, kind, costs, devices) for kind, costs in kinds.items()),
    )


def _speed(device: Device, workers: int) -> tuple[str, float, float, int]:
    return (device.kind, device.flops_per_second, device.memory_bytes_per_second, workers)


def _divided(seconds: Floats, work: Work, kind: KindCosts, workers: int) -> Floats:
    """[nodes], with a share of the cores: all takes as many times as long, but for the start of a call, which one core
    makes. Unless it was measured with the threads of one worker.
    """
    if workers == 1 or kind.has_own_threads:
        return seconds
    starting = np.minimum(seconds, work.calls * kind.rates.node_seconds)
    longer: Floats = starting + (seconds - starting) * workers
    return longer


def _seconds(graph: Graph, work: Work, device: Device, kind: KindCosts) -> Floats:
    seconds = roofline_seconds(work, kind.rates, device.flops_per_second, device.memory_bytes_per_second)
    for index, node in enumerate(graph.nodes):
        if node.operator.kind is OperatorKind.OPAQUE:
            seconds[index] = _opaque_seconds(node, index, device.kind)
    return seconds if kind.measured is None else np.where(np.isnan(kind.measured), seconds, kind.measured)


def _opaque_seconds(node: Node, index: int, kind: str) -> float:
    """The kind's own time; failing that the time of "*"; inf, which bars the node, where others only have one."""
    times = dict(node.opaque_seconds)
    for name, seconds in times.items():
        if not 0.0 <= seconds < float("inf"):
            raise GraphError(
                f"node {index} ({node.name!r}): opaque_seconds for {name!r} is {seconds}, needs a finite number from 0"
            )
    own = {name.lower(): seconds for name, seconds in times.items()}
    return own.get(kind.lower(), own.get(ANY_KIND, math.inf if own else 0.0))


def _source(graph: Graph, name: str, kind: KindCosts, devices: Sequence[Device]) -> CostSource:
    """Rates count as given where each device of the kind comes with both."""
    has_own_rates = all(
        one.flops_per_second > 0 and one.memory_bytes_per_second > 0 for one in devices if one.kind == name
    )
    return CostSource(
        device_kind=name,
        num_measured=0 if kind.measured is None else int(np.isfinite(kind.measured).sum()),
        num_nodes=len(graph.nodes),
        num_backward=0 if kind.backward_ratio is None else int(np.isfinite(kind.backward_ratio).sum()),
        message_seconds=kind.message_seconds,
        norm_bytes_per_second=kind.update_rates.norms if kind.update_rates else None,
        optimizer_bytes_per_second=kind.update_rates.optimizer if kind.update_rates else None,
        rates=RateSource.GIVEN if has_own_rates else kind.rate_source,
        scaled=kind.scaled,
        measured_profile_ids=kind.measured_profile_ids,
        calibration_profile_ids=kind.calibration_profile_ids,
    )
