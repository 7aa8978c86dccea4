"""Training profiles as files: the format of the Piper package (Tarnawski et al., NeurIPS 2021).

`maxDevices`, `maxMemoryPerDevice` (bytes), `bandwidth` (bytes per unit of time), `mbsInBatch`; per node, by devices per
copy, alternatives (`TMPCs`) of an `id`, `timePerSample`, `parameterSize`, `memoryUsageA`, `memoryUsageB`, and the bytes
`syncTimeFw` and `syncTimeBw` by the node at the other end of a cut edge; per edge `communicationCost` in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost_graphs.hybrid.problem import HybridPlan, HybridProblem
from planner.errors import GraphError, InventoryError, PlannerError
from planner.graph.bounds import shown, shown_value
from planner.graph.cycle import cycle_text, find_cycle
from planner.partition.problem import Floats

MAX_NODES = 4096
MAX_EDGES = 65_536
MAX_DEVICES = 65_536
MAX_MICROBATCHES = 1 << 20
MAX_ALTERNATIVES = 16
# Sums and products of such numbers stay finite.
MAX_NUMBER = 1e18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingProfile:
    """`node_ids` [n] and `alternative_ids` [t][n][a] are the file's own."""

    problem: HybridProblem
    node_ids: tuple[int, ...]
    alternative_ids: tuple[tuple[tuple[str, ...], ...], ...]


def is_training_profile(document: object) -> bool:
    return isinstance(document, Mapping) and "mbsInBatch" in document


def read_training_profile(
    document: Mapping[str, Any],
    *,
    num_devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth: float | None = None,
) -> TrainingProfile:
    """What is given counts instead of the file's. Raises GraphError or InventoryError that names the node or field."""
    nodes, edges = _records(document, "nodes", MAX_NODES), _records(document, "edges", MAX_EDGES)
    if not nodes:
        raise GraphError("the profile has no nodes; there is nothing to plan")
    ids = [_whole(node.get("id"), f"nodes[{index}].id", 0, 1 << 53, GraphError) for index, node in enumerate(nodes)]
    index_of = {node_id: index for index, node_id in enumerate(ids)}
    if len(index_of) != len(ids):
        repeated = next(node_id for index, node_id in enumerate(ids) if index_of[node_id] != index)
        raise GraphError(f"two nodes have id {repeated}; give each node its own", node=str(repeated))
    arcs = _arcs(edges, index_of, ids)
    by_degree = [_alternatives(node, ids[index]) for index, node in enumerate(nodes)]
    degrees = sorted({degree for alternatives in by_degree for degree in alternatives})
    width = max(len(of_degree) for alternatives in by_degree for of_degree in alternatives.values())
    reader = _Reader(by_degree, degrees, width, ids)
    problem = HybridProblem(
        degrees=np.array(degrees, dtype=np.int64),
        seconds=reader.table("timePerSample", missing=math.inf),
        parameter_bytes=reader.table("parameterSize"),
        held_per_microbatch=reader.table("memoryUsageA"),
        held_always=reader.table("memoryUsageB"),
        edge_source=np.array([source for source, _ in arcs], dtype=np.int64),
        edge_target=np.array([target for _, target in arcs], dtype=np.int64),
        edge_bytes=np.array(
            [_number(edge.get("communicationCost"), f"edges[{i}].communicationCost") for i, edge in enumerate(edges)],
            dtype=np.float64,
        ),
        entering_bytes=reader.edge_table("syncTimeFw", [(target, source) for source, target in arcs]),
        leaving_bytes=reader.edge_table("syncTimeBw", arcs),
        microbatches=_whole(document.get("mbsInBatch"), "mbsInBatch", 1, MAX_MICROBATCHES, GraphError),
        num_devices=_whole(
            document.get("maxDevices") if num_devices is None else num_devices,
            "maxDevices",
            1,
            MAX_DEVICES,
            InventoryError,
        ),
        memory_bytes=_number(
            document.get("maxMemoryPerDevice") if memory_bytes is None else memory_bytes,
            "maxMemoryPerDevice",
            InventoryError,
        ),
        bandwidth=_positive(document.get("bandwidth") if bandwidth is None else bandwidth, "bandwidth"),
    )
    return TrainingProfile(
        problem=problem,
        node_ids=tuple(ids),
        alternative_ids=tuple(
            tuple(tuple(str(one["id"]) for one in alternatives.get(degree, ())) for alternatives in by_degree)
            for degree in degrees
        ),
    )


def plan_document(profile: TrainingProfile, plan: HybridPlan) -> dict[str, Any]:
    """Stages in pipeline order, each with its nodes, copies, devices per copy, and the alternative of each node."""
    return {
        "stages": [
            {
                "nodes": [profile.node_ids[node] for node, _ in stage.alternatives],
                "data_parallel": stage.copies,
                "tensor_parallel": int(profile.problem.degrees[stage.degree]),
                "alternatives": {
                    str(profile.node_ids[node]): profile.alternative_ids[stage.degree][node][alternative]
                    for node, alternative in stage.alternatives
                },
            }
            for stage in plan.stages
        ]
    }


class _Reader:
    """Fills tables from the nodes' alternatives."""

    def __init__(
        self,
        by_degree: Sequence[Mapping[int, Sequence[Mapping[str, Any]]]],
        degrees: Sequence[int],
        width: int,
        ids: Sequence[int],
    ) -> None:
        self._by_degree, self._degrees, self._width, self._ids = by_degree, degrees, width, ids

    def table(self, field: str, missing: float = 0.0) -> Floats:
        """[t, n, a]."""
        numbers = np.full((len(self._degrees), len(self._by_degree), self._width), missing)
        for node, alternatives in enumerate(self._by_degree):
            for t, degree in enumerate(self._degrees):
                for a, one in enumerate(alternatives.get(degree, ())):
                    numbers[t, node, a] = _number(one.get(field), f"{self._where(node, degree, a)}.{field}")
        return numbers

    def edge_table(self, field: str, ends: Sequence[tuple[int, int]]) -> Floats:
        """[t, e, a]: by (the node whose alternatives say it, the node at the other end); none is said to be 0."""
        numbers = np.zeros((len(self._degrees), len(ends), self._width))
        for edge, (node, other) in enumerate(ends):
            for t, degree in enumerate(self._degrees):
                for a, one in enumerate(self._by_degree[node].get(degree, ())):
                    where = f"{self._where(node, degree, a)}.{field}"
                    table = one.get(field, {})
                    if not isinstance(table, Mapping):
                        raise GraphError(f"{where} is {shown_value(table)}, needs a mapping from node id to bytes")
                    numbers[t, edge, a] = _number(table.get(str(self._ids[other]), 0.0), f"{where}.{self._ids[other]}")
        return numbers

    def _where(self, node: int, degree: int, alternative: int) -> str:
        return f"node {self._ids[node]}: TMPCs.{degree}[{alternative}]"


def _records(document: Mapping[str, Any], field: str, most: int) -> Sequence[Mapping[str, Any]]:
    records = document.get(field)
    if not isinstance(records, list) or not all(isinstance(one, Mapping) for one in records):
        raise GraphError(f"{field} is {shown_value(records)}, needs a list of mappings")
    if len(records) > most:
        raise GraphError(f"the profile has {len(records):,} {field}, and at most {most:,} can be planned")
    return records


def _alternatives(node: Mapping[str, Any], node_id: int) -> dict[int, list[Mapping[str, Any]]]:
    """By devices per copy; at least one alternative."""
    table = node.get("TMPCs")
    if not isinstance(table, Mapping):
        raise GraphError(f"node {node_id}: TMPCs is {shown_value(table)}, needs a mapping from devices to alternatives")
    by_degree: dict[int, list[Mapping[str, Any]]] = {}
    for key, alternatives in table.items():
        if not (isinstance(key, str) and key.isdecimal() and 1 <= int(key[:9]) <= MAX_DEVICES):
            raise GraphError(f"node {node_id}: TMPCs has {shown(str(key))}, needs a number of devices of 1 or more")
        ok = isinstance(alternatives, list) and len(alternatives) <= MAX_ALTERNATIVES
        if not ok or not all(isinstance(one, Mapping) and "id" in one for one in alternatives):
            raise GraphError(
                f"node {node_id}: TMPCs.{key} is {shown_value(alternatives)}, needs a list of up to {MAX_ALTERNATIVES} "
                "mappings, each with an id"
            )
        if alternatives:
            by_degree[int(key)] = alternatives
    if not by_degree:
        raise GraphError(f"node {node_id} has no alternatives; give it at least one", node=str(node_id))
    return by_degree


def _arcs(edges: Sequence[Mapping[str, Any]], index_of: Mapping[int, int], ids: Sequence[int]) -> list[tuple[int, int]]:
    arcs = []
    for index, edge in enumerate(edges):
        ends = []
        for field in ("sourceId", "destId"):
            node_id = edge.get(field)
            if isinstance(node_id, bool) or not isinstance(node_id, int) or node_id not in index_of:
                raise GraphError(f"edges[{index}].{field} is {shown_value(node_id)}, and no node has that id")
            ends.append(index_of[node_id])
        arcs.append((ends[0], ends[1]))
    cycle = find_cycle(len(ids), arcs)
    if cycle is not None:
        text = cycle_text([str(ids[node]) for node in cycle])
        raise GraphError(f"the edges form a cycle: {text}; leave one of its edges out", node=str(ids[cycle[0]]))
    return arcs


def _whole(value: object, field: str, least: int, most: int, error: type[PlannerError]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise error(f"{field} is {shown_value(value)}, needs a whole number from {least} to {most}")
    return value


def _number(value: object, field: str, error: type[PlannerError] = GraphError) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_NUMBER:
        raise error(f"{field} is {shown_value(value)}, needs a number from 0 to {MAX_NUMBER:g}")
    return float(value)


def _positive(value: object, field: str) -> float:
    number = _number(value, field, InventoryError)
    if not number:
        raise InventoryError(f"{field} is 0, needs more")
    return number
