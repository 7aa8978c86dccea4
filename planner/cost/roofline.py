"""Seconds that each node takes on each device: the larger of its arithmetic and its memory traffic.

That is the roofline of Williams et al. 2009. A call's own overhead comes on top. Views cost nothing; opaque nodes take
the times that they were given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cost.device_kinds import device_kind
from planner.cost.flops import node_flops
from planner.cost.inventory import Device
from planner.cost.movement import bytes_moved, is_free
from planner.cost.shapes import Shape, shapes_of
from planner.errors import GraphError
from planner.graph.alias import storage_roots
from planner.graph.ir import Argument, ArgumentList, Dtype, Graph, Node, OperatorKind, SubgraphReference

Floats = npt.NDArray[np.float64]
MAX_SUBGRAPH_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCosts:
    """`seconds` is [devices, nodes]; `flops` and `bytes_moved` are [nodes]; `shapes` by value id."""

    seconds: Floats
    flops: Floats
    bytes_moved: Floats
    shapes: Mapping[int, Shape]


def node_costs(graph: Graph, devices: Sequence[Device], symbol_values: Mapping[int, int]) -> NodeCosts:
    """Linear in nodes + values. Raises GraphError for an opaque time that is negative or not finite."""
    work = _work(graph, symbol_values, 0)
    rows: dict[tuple[str, float, float], Floats] = {}
    for device in devices:
        speed = (device.kind, device.flops_per_second, device.memory_bytes_per_second)
        if speed not in rows:
            rows[speed] = _seconds(graph, work, device)
    order = [(device.kind, device.flops_per_second, device.memory_bytes_per_second) for device in devices]
    seconds = np.stack([rows[speed] for speed in order]) if order else np.zeros((0, len(graph.nodes)))
    return NodeCosts(seconds=seconds, flops=work.flops, bytes_moved=work.bytes_moved, shapes=work.shapes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Work:
    flops: Floats
    bytes_moved: Floats
    calls: Floats
    dtypes: tuple[Dtype | None, ...]
    shapes: Mapping[int, Shape]


def _work(graph: Graph, symbol_values: Mapping[int, int], depth: int) -> _Work:
    if depth > MAX_SUBGRAPH_DEPTH:
        raise GraphError(f"subgraphs are nested more than {MAX_SUBGRAPH_DEPTH} deep")
    shapes = shapes_of(graph, symbol_values)
    roots = storage_roots(graph)
    inner = [_totals(_work(subgraph, symbol_values, depth + 1)) for subgraph in graph.subgraphs]
    measured = [_node_work(node, shapes, roots, inner) for node in graph.nodes]
    table = np.array(measured, dtype=np.float64).reshape(-1, 3)
    dtypes = tuple(_dtype(node, shapes) for node in graph.nodes)
    return _Work(flops=table[:, 0], bytes_moved=table[:, 1], calls=table[:, 2], dtypes=dtypes, shapes=shapes)


def _totals(work: _Work) -> tuple[float, float, float]:
    return float(work.flops.sum()), float(work.bytes_moved.sum()), float(work.calls.sum())


def _node_work(
    node: Node, shapes: Mapping[int, Shape], roots: Mapping[int, int], inner: Sequence[tuple[float, float, float]]
) -> tuple[float, float, float]:
    """(flops, bytes moved, kernels started)."""
    if is_free(node, roots):
        return (0.0, 0.0, 0.0)
    if node.operator.kind is OperatorKind.HIGHER_ORDER:
        # One branch runs; which is not known, so the dearest counts.
        branches = [inner[index] for index in _subgraphs_in(node.arguments) if index < len(inner)]
        return max(branches, default=(0.0, float(bytes_moved(node, shapes)), 1.0))
    return (float(node_flops(node, shapes)), float(bytes_moved(node, shapes)), 1.0)


def _subgraphs_in(arguments: Sequence[Argument]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        if isinstance(argument, SubgraphReference):
            found.append(argument.subgraph_index)
        elif isinstance(argument, ArgumentList):
            found.extend(_subgraphs_in(argument.items))
        elif isinstance(argument, tuple):
            found.extend(_subgraphs_in(argument))
    return found


def _dtype(node: Node, shapes: Mapping[int, Shape]) -> Dtype | None:
    return next((shapes[output].dtype for output in node.outputs if output), None)


def _seconds(graph: Graph, work: _Work, device: Device) -> Floats:
    kind = device_kind(device.kind)
    rates = {dtype: device.flops_per_second or kind.flops_per_second(dtype) for dtype in set(work.dtypes)}
    rate = np.array([rates[dtype] for dtype in work.dtypes], dtype=np.float64)
    memory_rate = device.memory_bytes_per_second or kind.memory_bytes_per_second
    seconds = np.maximum(work.flops / rate, work.bytes_moved / memory_rate) + work.calls * kind.node_seconds
    for index, node in enumerate(graph.nodes):
        if node.operator.kind is OperatorKind.OPAQUE:
            seconds[index] = _opaque_seconds(node, index, device.kind)
    return seconds


def _opaque_seconds(node: Node, index: int, kind: str) -> float:
    """The kind's own time; failing that the slowest that is known; 0 where none is."""
    times = dict(node.opaque_seconds)
    for name, seconds in times.items():
        if not 0.0 <= seconds < float("inf"):
            raise GraphError(
                f"node {index} ({node.name!r}): opaque_seconds for {name!r} is {seconds}, needs a finite number from 0"
            )
    return times.get(kind, max(times.values(), default=0.0))
