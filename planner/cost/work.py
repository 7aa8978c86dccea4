"""What each node does, before any device is thought of: arithmetic, bytes moved, kernels started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cost.flops import node_flops
from planner.cost.movement import bytes_moved, is_free
from planner.cost.shapes import Shape, shapes_of
from planner.errors import GraphError
from planner.graph.alias import storage_roots
from planner.graph.expression import Expression, evaluate
from planner.graph.ir import Dtype, Graph, Node, OperatorKind, values_read
from planner.graph.operators import facts_of
from planner.graph.subgraphs import subgraphs_run

Floats = npt.NDArray[np.float64]
MAX_SUBGRAPH_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """`flops`, `bytes_moved`, `calls` (kernels started) are [nodes]; `shapes` by value id.

    `dtypes` [nodes] say at which rate each computes: those of results, but where an operator's row says otherwise.
    """

    flops: Floats
    bytes_moved: Floats
    calls: Floats
    dtypes: tuple[Dtype | None, ...]
    shapes: Mapping[int, Shape]


def graph_work(graph: Graph, symbol_values: Mapping[int, int]) -> Work:
    """Linear in nodes + values. Raises GraphError where a dimension cannot be evaluated."""
    return _work(graph, symbol_values, 0)


def _work(graph: Graph, symbol_values: Mapping[int, int], depth: int) -> Work:
    if depth > MAX_SUBGRAPH_DEPTH:
        raise GraphError(f"subgraphs are nested more than {MAX_SUBGRAPH_DEPTH} deep")
    shapes = shapes_of(graph, symbol_values)
    roots = storage_roots(graph)
    inner = [_totals(_work(subgraph, symbol_values, depth + 1)) for subgraph in graph.subgraphs]
    rows = [_node_work(node, shapes, roots, inner, symbol_values) for node in graph.nodes]
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    dtypes = tuple(_dtype(node, shapes) for node in graph.nodes)
    return Work(flops=table[:, 0], bytes_moved=table[:, 1], calls=table[:, 2], dtypes=dtypes, shapes=shapes)


def _totals(work: Work) -> tuple[float, float, float]:
    return float(work.flops.sum()), float(work.bytes_moved.sum()), float(work.calls.sum())


def _node_work(
    node: Node,
    shapes: Mapping[int, Shape],
    roots: Mapping[int, int],
    inner: Sequence[tuple[float, float, float]],
    symbol_values: Mapping[int, int],
) -> tuple[float, float, float]:
    """(flops, bytes moved, kernels started)."""
    if is_free(node, roots):
        return (0.0, 0.0, 0.0)
    if node.operator.kind is OperatorKind.HIGHER_ORDER:
        # One branch runs; which is not known, so the dearest counts.
        branches = [inner[index] for index in subgraphs_run(node)]
        return max(branches, default=(0.0, float(bytes_moved(node, shapes)), 1.0))
    flops = node_flops(node, shapes) if node.flops is None else _count(node.flops, symbol_values)
    size_bytes = bytes_moved(node, shapes) if node.bytes_moved is None else _count(node.bytes_moved, symbol_values)
    return (float(flops), float(size_bytes), 1.0)


def _count(expression: Expression, symbol_values: Mapping[int, int]) -> int:
    """Checked at the hints only: at other sizes it might be below zero."""
    return max(0, evaluate(expression, symbol_values))


def _dtype(node: Node, shapes: Mapping[int, Shape]) -> Dtype | None:
    values = values_read(node) if facts_of(node.operator.name).operand_rate else node.outputs
    return next((shapes[value].dtype for value in values if value), None)
