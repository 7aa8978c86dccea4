"""Units and the tensors between them as arrays: what a block of units costs on each serial class.

Where their ideals are too many, units are joined into segments of one order. That loses placements, so what is found
there is a start for the finer search, and bounds do not hold for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.single_pass.contraction import FREE, PassUnits
from planner.partition.arcs import after_of_arcs, components, depth_first_order, distinct_arcs
from planner.partition.problem import Floats, Integers

# A joined unit may take this share of the largest accelerator.
LARGEST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassGraph:
    """Arrays by serial class [a], unit [u], tensor [t] that crosses units, pin [p], option [o] and core node's arc [e].

    - `serial`, `parallel`: the problem's classes of either kind. `unit_bytes` [u]. `unit_seconds` [a, u]; inf: never.
    - `tensor_unit` [t] makes it; `reader_begin` [t + 1] into `reader_unit` [p]. `transfer_seconds` [a, t].
    - `option_tensor` [o] indexes [t]; -1 where nothing else can read it. Taking the option costs `option_bytes` [a, o]
      and `option_seconds` [a, o], leaving it `option_loss` [a, o] more.
    - `arc_source`, `arc_target` [e]: nodes.
    """

    problem: PlacementProblem
    units: PassUnits
    serial: Integers
    parallel: Integers
    unit_bytes: Floats
    unit_seconds: Floats
    tensor_unit: Integers
    reader_begin: Integers
    reader_unit: Integers
    transfer_seconds: Floats
    option_tensor: Integers
    option_bytes: Floats
    option_seconds: Floats
    option_loss: Floats
    arc_source: Integers
    arc_target: Integers

    @property
    def num_units(self) -> int:
        return self.units.num_units

    @property
    def num_tensors(self) -> int:
        return int(self.tensor_unit.size)

    def unit_arcs(self) -> tuple[Integers, Integers]:
        """Distinct (maker, reader) pairs of units."""
        makers = np.repeat(self.tensor_unit, np.diff(self.reader_begin))
        return distinct_arcs(makers, self.reader_unit, self.num_units)


def pass_graph(problem: PlacementProblem, units: PassUnits) -> PassGraph:
    """O((nodes + reads) log reads)."""
    serial, parallel = np.flatnonzero(~problem.class_is_parallel), np.flatnonzero(problem.class_is_parallel)
    core = units.is_core
    nodes = np.flatnonzero(core)
    used_bytes = np.zeros(units.num_units)
    np.add.at(used_bytes, units.unit_of_node[nodes], problem.node_bytes[nodes])
    seconds = np.zeros((serial.size, units.num_units))
    for row, device_class in enumerate(serial):
        np.add.at(seconds[row], units.unit_of_node[nodes], problem.seconds[device_class, nodes])
    source = problem.tensor_producer[problem.read_tensor]
    between_core = core[source] & core[problem.read_node]
    arcs = np.unique(np.stack([source[between_core], problem.read_node[between_core]]), axis=1)
    maker, reader = units.unit_of_node[source], units.unit_of_node[problem.read_node]
    crossing = between_core & (maker != reader)
    pins = np.unique(np.stack([problem.read_tensor[crossing], reader[crossing]]), axis=1)
    tensors, counts = np.unique(pins[0], return_counts=True)
    option_bytes, option_seconds, option_loss = _option_costs(problem, units, serial)
    place = np.full(problem.num_tensors, -1, dtype=np.int64)
    place[tensors] = np.arange(tensors.size)
    return PassGraph(
        problem=problem,
        units=units,
        serial=serial,
        parallel=parallel,
        unit_bytes=used_bytes,
        unit_seconds=seconds,
        tensor_unit=units.unit_of_node[problem.tensor_producer[tensors]],
        reader_begin=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]),
        reader_unit=pins[1],
        transfer_seconds=problem.transfer_seconds[serial][:, tensors],
        option_tensor=np.where(units.option_is_sink, place[units.option_tensor], -1),
        option_bytes=option_bytes,
        option_seconds=option_seconds,
        option_loss=option_loss,
        arc_source=arcs[0],
        arc_target=arcs[1],
    )


def _option_costs(problem: PlacementProblem, units: PassUnits, serial: Integers) -> tuple[Floats, Floats, Floats]:
    """(bytes, seconds, loss when left) [a, o]. An option that is never worth taking is a toll: no bytes, no loss."""
    sending = problem.transfer_seconds[serial][:, units.option_tensor]
    running = units.option_seconds[serial]
    worth = running < sending
    used_bytes = np.where(worth, units.option_bytes, 0.0)
    return used_bytes, np.where(worth, running, sending), np.where(worth, sending - np.where(worth, running, 0.0), 0.0)


def segmented_units(graph: PassGraph, num_segments: int) -> PassUnits:
    """A chain of at most about twice `num_segments` units: a depth-first order, cut where bytes or counts fill up."""
    makers, readers = (units.tolist() for units in graph.unit_arcs())
    used_bytes = graph.unit_bytes
    limit = max(LARGEST_SHARE * _largest_device(graph), float(used_bytes.sum()) / num_segments)
    most = -(-graph.num_units // num_segments)
    root = np.arange(graph.num_units)
    head, filled, count = -1, 0.0, 0
    for unit in depth_first_order(after_of_arcs(makers, readers, graph.num_units)):
        if head < 0 or count >= most or filled + used_bytes[unit] > limit:
            head, filled, count = unit, 0.0, 0
        root[unit] = head
        filled += used_bytes[unit]
        count += 1
    return _joined(graph, root)


def _largest_device(graph: PassGraph) -> float:
    return float(graph.problem.class_bytes[graph.serial].max(initial=0.0))


def _joined(graph: PassGraph, root: Integers) -> PassUnits:
    """Units by their root, and what then waits for itself as one."""
    makers, readers = graph.unit_arcs()
    least = components(root[makers], root[readers], graph.num_units)
    names, number = np.unique(least[root], return_inverse=True)
    new = np.append(number, FREE)
    units = graph.units
    return replace(
        units,
        num_units=int(names.size),
        unit_of_node=new[units.unit_of_node],
        option_unit=new[units.option_unit],
    )
