"""Profiled cost graphs as files: the format that Tarnawski et al. published their instances in (NeurIPS 2020).

`maxFPGAs` accelerators of `maxSizePerFPGA` bytes and `maxCPUs` host devices; per node a time on either (`fpgaLatency`,
`cpuLatency`), `size` in bytes, `supportedOnFpga`, `isBackwardNode` and perhaps a `colorClass`; per edge the time
to move its source's output between an accelerator and host memory. Times have no unit of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost_graphs.placement.problem import Placement, PlacementProblem
from planner.errors import GraphError, InventoryError, PlannerError
from planner.graph.bounds import MAX_NODES, shown_value
from planner.graph.cycle import cycle_text, find_cycle

MAX_EDGES = 2_000_000
MAX_DEVICES = 1024
# Sums and products of such numbers stay finite.
MAX_NUMBER = 1e18
HOST, ACCELERATOR = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostGraph:
    """`node_ids` are the file's own, by the problem's node index."""

    problem: PlacementProblem
    node_ids: tuple[int, ...]


def is_cost_graph(document: object) -> bool:
    return isinstance(document, Mapping) and "maxFPGAs" in document


def read_cost_graph(document: Mapping[str, object]) -> CostGraph:
    """Raises GraphError or InventoryError that names the node, edge or field."""
    nodes, edges = _records(document, "nodes", MAX_NODES), _records(document, "edges", MAX_EDGES)
    if not nodes:
        raise GraphError("the cost graph has no nodes; there is nothing to place")
    ids = [_whole(node, "id", f"node {index}") for index, node in enumerate(nodes)]
    index_of = {node_id: index for index, node_id in enumerate(ids)}
    if len(index_of) != len(ids):
        repeated = next(node_id for index, node_id in enumerate(ids) if index_of[node_id] != index)
        raise GraphError(f"two nodes have id {repeated}; give each node its own", node=str(repeated))
    costs, arcs = _edges(edges, index_of, ids)
    cycle = find_cycle(len(ids), arcs)
    if cycle is not None:
        text = cycle_text([str(ids[node]) for node in cycle])
        raise GraphError(f"the edges form a cycle: {text}; leave one of its edges out", node=str(ids[cycle[0]]))
    return CostGraph(problem=_problem(document, nodes, ids, costs, arcs), node_ids=tuple(ids))


def placement_document(graph: CostGraph, placement: Placement) -> dict[str, str]:
    """{node id: "cpu0" or "fpga3"}."""
    hosts = int(graph.problem.class_devices[HOST])
    names = [f"cpu{d}" if d < hosts else f"fpga{d - hosts}" for d in range(graph.problem.num_devices)]
    return {
        str(node_id): names[device] for node_id, device in zip(graph.node_ids, placement.device_of_node, strict=True)
    }


def _problem(
    document: Mapping[str, object],
    nodes: Sequence[Mapping[str, object]],
    ids: Sequence[int],
    costs: Mapping[int, float],
    arcs: Sequence[tuple[int, int]],
) -> PlacementProblem:
    count = len(nodes)
    class_devices = _device_count(document, "maxCPUs"), _device_count(document, "maxFPGAs")
    if not sum(class_devices):
        raise InventoryError("maxCPUs and maxFPGAs are 0; there has to be a device to place on")
    names = [f"node {node_id}" for node_id in ids]
    seconds = np.empty((2, count))
    seconds[HOST] = [_number(node, "cpuLatency", name) for node, name in zip(nodes, names, strict=True)]
    seconds[ACCELERATOR] = [_accelerator_time(node, name) for node, name in zip(nodes, names, strict=True)]
    tensor_of = {producer: tensor for tensor, producer in enumerate(costs)}
    transfer = np.zeros((2, len(costs)))
    transfer[ACCELERATOR] = list(costs.values())
    return PlacementProblem(
        seconds=seconds,
        node_bytes=np.array([_number(node, "size", name) for node, name in zip(nodes, names, strict=True)]),
        tensor_producer=np.array(list(costs), dtype=np.int64),
        read_tensor=np.array([tensor_of[source] for source, _ in arcs], dtype=np.int64),
        read_node=np.array([target for _, target in arcs], dtype=np.int64),
        transfer_seconds=transfer,
        is_backward=np.array(
            [_flag(node, "isBackwardNode", 0, name) for node, name in zip(nodes, names, strict=True)], dtype=np.bool_
        ),
        colocation=_colocation(nodes),
        class_devices=np.array(class_devices),
        class_bytes=np.array([math.inf, _number(document, "maxSizePerFPGA", "the inventory", InventoryError)]),
        class_is_parallel=np.array([True, False]),
        node_names=tuple(map(str, ids)),
        class_names=("cpu", "fpga"),
    )


def _records(document: Mapping[str, object], field: str, most: int) -> Sequence[Mapping[str, object]]:
    records = document.get(field)
    if not isinstance(records, list):
        raise GraphError(f"{field} is {shown_value(records)}, needs a list of objects", field=field)
    if len(records) > most:
        raise GraphError(
            f"{field} has {len(records):,} entries, and at most {most:,} can be placed; give groups of nodes as one",
            field=field,
        )
    for index, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise GraphError(f"{field}[{index}] is {shown_value(record)}, needs an object", field=field)
    return records


def _edges(
    edges: Sequence[Mapping[str, object]], index_of: Mapping[int, int], ids: Sequence[int]
) -> tuple[dict[int, float], list[tuple[int, int]]]:
    """Cost by source, in order of appearance, and the distinct arcs; both by node index."""
    costs: dict[int, float] = {}
    arcs: dict[tuple[int, int], None] = {}
    for position, edge in enumerate(edges):
        name = f"edge {position}"
        source, target = _end(edge, "sourceId", name, index_of), _end(edge, "destId", name, index_of)
        cost = _number(edge, "cost", name)
        if abs(costs.setdefault(source, cost) - cost) > 1e-6:
            raise GraphError(
                f"{name}: node {ids[source]} has output costs {costs[source]} and {cost}; a node's edges all carry its "
                f"one output, so give them one cost"
            )
        arcs[source, target] = None
    return costs, list(arcs)


def _end(edge: Mapping[str, object], field: str, name: str, index_of: Mapping[int, int]) -> int:
    node_id = _whole(edge, field, name)
    if node_id not in index_of:
        raise GraphError(f"{name}: {field} is {node_id}, and no node has that id", node=str(node_id))
    return index_of[node_id]


def _colocation(nodes: Sequence[Mapping[str, object]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    numbers: dict[object, int] = {}
    keys = [("class", _colour(node)) if "colorClass" in node else index for index, node in enumerate(nodes)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _colour(node: Mapping[str, object]) -> str:
    colour = node["colorClass"]
    if isinstance(colour, bool) or not isinstance(colour, (int, str)):
        raise GraphError(f"node {node['id']}: colorClass is {shown_value(colour)}, needs a number or a text")
    return str(colour)


def _accelerator_time(node: Mapping[str, object], name: str) -> float:
    return _number(node, "fpgaLatency", name) if _flag(node, "supportedOnFpga", 1, name) else math.inf


def _flag(node: Mapping[str, object], field: str, otherwise: int, name: str) -> bool:
    value = node.get(field, otherwise)
    if value not in (0, 1):
        raise GraphError(f"{name}: {field} is {shown_value(value)}, needs 0 or 1", field=field)
    return bool(value)


def _device_count(document: Mapping[str, object], field: str) -> int:
    count = _whole(document, field, "the inventory", InventoryError)
    if not 0 <= count <= MAX_DEVICES:
        raise InventoryError(f"{field} is {shown_value(count)}, needs 0 to {MAX_DEVICES}", field=field)
    return count


def _number(record: Mapping[str, object], field: str, name: str, kind: type[PlannerError] = GraphError) -> float:
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_NUMBER:
        raise kind(f"{name}: {field} is {shown_value(value)}, needs a finite number from 0 to 1e18", field=field)
    return float(value)


def _whole(record: Mapping[str, object], field: str, name: str, kind: type[PlannerError] = GraphError) -> int:
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise kind(f"{name}: {field} is {shown_value(value)}, needs a whole number of 64 bits", field=field)
    return value
