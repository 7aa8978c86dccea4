"""A large neighbourhood, searched exactly: cells of some devices are placed on them anew, the rest stays.

Large neighbourhood search by an integer programme: complete for the neighbourhood if its nodes suffice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.partition.placement.netlists.milp import ELSEWHERE, FREE, better_or_bound
from planner.partition.placement.netlists.netlist import Netlist, loads_of, merged
from planner.partition.placement.problem import OutOfTime
from planner.partition.problem import Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one programme: branching nodes, and how often it may ask whether to go on."""

    nodes: int
    questions: int


def placed_anew(
    netlist: Netlist, devices: Integers, freed: Integers, cells: Integers, limits: Limits, out_of_time: OutOfTime
) -> tuple[Integers | None, bool]:
    """[cells] devices with a lesser greatest load among `freed`, none else moved, or None; whether that is final.

    `cells` are on `freed` devices and may change. What another device pays for a tensor depends on its own cells alone,
    so its load stays.
    """
    if freed.size < 2 or not cells.size:
        return None, True
    part, fixed = _part(netlist, devices, freed, cells)
    answer = better_or_bound(
        part,
        float(loads_of(netlist, devices)[freed].max()),
        questions=limits.questions,
        out_of_time=out_of_time,
        max_nodes=limits.nodes,
        fixed=fixed,
    )
    if answer.devices is None:
        return None, answer.is_complete
    changed = devices.copy()
    changed[cells] = freed[answer.devices[: cells.size]]
    return changed, answer.is_complete


def region(
    netlist: Netlist, devices: Integers, freed: Integers, most_places: int, choice: np.random.Generator
) -> Integers:
    """All cells of `freed`; where they on devices are more than `most_places`, those around one that is cut off."""
    limit = max(most_places // freed.size, 1)
    inside = np.isin(devices, freed)
    if int(inside.sum()) <= limit:
        return np.flatnonzero(inside)
    reached = np.zeros(netlist.num_cells, dtype=bool)
    ring = np.array([_cut_cell(netlist, devices, inside, choice)])
    while ring.size and int(reached.sum()) < limit:
        reached[choice.permutation(ring)[: limit - int(reached.sum())]] = True
        touched = np.isin(netlist.net_of_pin, np.unique(netlist.net_of_pin[reached[netlist.net_cell]]))
        ring = np.unique(netlist.net_cell[touched])
        ring = ring[inside[ring] & ~reached[ring]]
    return np.flatnonzero(reached)


def _cut_cell(netlist: Netlist, devices: Integers, inside: np.ndarray, choice: np.random.Generator) -> int:
    """Of a net with cells on several of the freed devices; any of their cells if none has."""
    pins = np.flatnonzero(inside[netlist.net_cell])
    nets, pin_devices = netlist.net_of_pin[pins], devices[netlist.net_cell[pins]]
    least, most = np.full(netlist.num_nets, netlist.num_devices), np.full(netlist.num_nets, -1)
    np.minimum.at(least, nets, pin_devices)
    np.maximum.at(most, nets, pin_devices)
    cut = netlist.net_cell[pins[least[nets] < most[nets]]]
    return int(choice.choice(cut if cut.size else np.flatnonzero(inside)))


def _part(netlist: Netlist, devices: Integers, freed: Integers, cells: Integers) -> tuple[Netlist, Integers]:
    """The freed devices alone; the free cells, then one for what else each of them has, then one for all the rest."""
    numbers = np.full(netlist.num_cells, cells.size + freed.size)
    for rank, device in enumerate(freed.tolist()):
        numbers[devices == device] = cells.size + rank
    numbers[cells] = np.arange(cells.size)
    used, numbers = np.unique(numbers, return_inverse=True)
    places = np.concatenate([np.full(cells.size, FREE), np.arange(freed.size), [ELSEWHERE]])
    part = merged(netlist, numbers)
    part = replace(part, class_of_device=netlist.class_of_device[freed], device_bytes=netlist.device_bytes[freed])
    return part, places[used]
