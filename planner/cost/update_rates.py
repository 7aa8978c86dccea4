"""At what rates a device reads the norms of gradients and updates states: as measured of its kind, else its memory's.

Each weight takes some calls, so a small one takes longer than its bytes. A profile measures all trained states of the
graph together, and a stage counts its share of their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.device_kinds import memory_bytes_per_second
from planner.cost.inventory import Device
from planner.cost.measured import MeasuredTimes
from planner.cost.shapes import Shape
from planner.cost.sources import CostSource
from planner.graph.alias import storage_roots
from planner.graph.ir import Graph

# SGD reads each gradient, reads its weight and writes it.
SGD_BYTES_PER_GRADIENT_BYTE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRates:
    """Bytes per second."""

    norms: float
    optimizer: float


def measured_rates(graph: Graph, times: MeasuredTimes, shapes: Mapping[int, Shape]) -> UpdateRates | None:
    """`shapes` by value id, of the states among them. None where it was not measured, or took no time."""
    update = times.update
    if update is None or not update.norm_seconds or not update.optimizer_seconds:
        return None
    roots = storage_roots(graph)
    trained = {roots[state.value_id] for state in graph.states if state.requires_grad}
    gradient_bytes = sum(shapes[root].size_bytes for root in trained)
    if not gradient_bytes:
        return None
    return UpdateRates(
        norms=gradient_bytes / update.norm_seconds,
        optimizer=SGD_BYTES_PER_GRADIENT_BYTE * gradient_bytes / update.optimizer_seconds,
    )


def update_rates(device: Device, sources: Sequence[CostSource]) -> UpdateRates:
    source = next((one for one in sources if one.device_kind == device.kind), None)
    of_memory = memory_bytes_per_second(device)
    return UpdateRates(
        norms=(source and source.norm_bytes_per_second) or of_memory,
        optimizer=(source and source.optimizer_bytes_per_second) or of_memory,
    )
