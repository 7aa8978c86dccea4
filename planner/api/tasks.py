"""What runs in worker processes. Each function reads blobs itself: large bytes never pass through the server.

The server names these functions and does not run them, so the searches are imported only where they run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.cost.calibrate import calibrate
from planner.cost.calibration import Calibration
from planner.cost.inventory import Inventory
from planner.cost.measured import MeasuredTimes, check_fits
from planner.cost.work import graph_work
from planner.errors import GraphError, InvalidArgument, NotFound
from planner.graph.check import why_not_deployable
from planner.graph.ir import Graph, WeightFile
from planner.plan.options import PlanOptions
from planner.plan.plan import Plan
from planner.store.blobs import BlobStore
from planner.store.weights import locate_states
from planner.wire.graph import graph_from_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """Where a graph's bytes are, and how large it may be."""

    blob_url: str
    staging: Path
    sha256: bytes
    max_bytes: int
    max_nodes: int

    def blobs(self) -> BlobStore:
        return BlobStore(self.blob_url, self.staging)

    def read(self) -> Graph:
        graph = graph_from_bytes(self.blobs().read(self.sha256, self.max_bytes))
        if len(graph.nodes) > self.max_nodes:
            raise GraphError(
                f"the graph has {len(graph.nodes)} nodes, this server takes at most {self.max_nodes}",
                num_nodes=len(graph.nodes),
            )
        return graph


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """What the server keeps of a graph in a row. `not_deployable_reason` counts the weights that were given."""

    name: str
    torch_version: str
    num_nodes: int
    num_states: int
    state_bytes: int
    not_deployable_reason: str


def examine_graph(source: GraphSource, weights: tuple[WeightFile, ...]) -> GraphFacts:
    """Checks every bound and reference in the graph, and that the weights hold its tensors."""
    graph = source.read()
    if weights:
        _check_weights(graph, weights, source.blobs())
    return GraphFacts(
        name=graph.name,
        torch_version=graph.torch_version,
        num_nodes=len(graph.nodes),
        num_states=len(graph.states),
        state_bytes=_state_bytes(graph),
        not_deployable_reason=why_not_deployable(graph, bool(weights)) or "",
    )


def compute_plan(
    source: GraphSource,
    graph_id: str,
    inventory: Inventory,
    options: PlanOptions,
    measured: tuple[MeasuredTimes, ...],
    calibrations: tuple[Calibration, ...],
) -> Plan:
    from planner.planning import make_plan

    return make_plan(source.read(), graph_id, inventory, options, measured, calibrations)


def compute_replacement(
    source: GraphSource,
    graph_id: str,
    inventory: Inventory,
    options: PlanOptions,
    replaced: Plan,
    measured: tuple[MeasuredTimes, ...],
    calibrations: tuple[Calibration, ...],
    niceness: int,
) -> tuple[Plan, int]:
    """The plan, and the bytes of weights that move."""
    os.nice(niceness)
    from planner.planning import make_replacement

    plan, replacement = make_replacement(source.read(), graph_id, inventory, options, replaced, measured, calibrations)
    return plan, replacement.moved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesFacts:
    """What the server keeps of measured times beside them. `symbol_values` names every dimension of the graph."""

    num_nodes: int
    symbol_values: tuple[tuple[str, int], ...]
    calibration: Calibration | None


def examine_times(source: GraphSource, times: MeasuredTimes) -> TimesFacts:
    """Raises InvalidArgument where the times do not fit the graph."""
    graph = source.read()
    check_fits(times, graph)
    from planner.planning import chosen_symbol_values

    point = chosen_symbol_values(graph, PlanOptions(symbol_values=times.symbol_values))
    seconds = np.full(len(graph.nodes), np.nan)
    for node, node_seconds in times.seconds:
        seconds[node] = node_seconds
    return TimesFacts(
        num_nodes=len(graph.nodes),
        symbol_values=tuple(sorted((symbol.name, point[symbol.id]) for symbol in graph.symbols)),
        calibration=calibrate(times.device_kind, [(graph_work(graph, point), seconds)]),
    )


def _check_weights(graph: Graph, weights: tuple[WeightFile, ...], blobs: BlobStore) -> None:
    for file in weights:
        size = blobs.size_bytes(file.sha256)
        if size is None:
            raise NotFound(f"weight file {file.sha256.hex()} is not complete here; upload it first")
        if size != file.size_bytes:
            raise InvalidArgument(f"weight file {file.sha256.hex()} has {size} bytes, not {file.size_bytes}")
    locate_states(graph, weights, blobs.read_range)


def _state_bytes(graph: Graph) -> int:
    """Tied tensors counted once."""
    values = graph.values_by_id()
    hints = graph.hints()
    owners = {
        ("tied", state.tie_group) if state.tie_group else ("own", state.value_id): state for state in graph.states
    }
    return sum(values[state.value_id].size_bytes(hints) for state in owners.values())
