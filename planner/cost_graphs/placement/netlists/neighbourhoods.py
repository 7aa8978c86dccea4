"""Large neighbourhoods, one after another: the most loaded device and some partners, wider when nothing is left.

Each is searched by an integer programme that places the cells of these devices on them anew; the rest stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.cost_graphs.placement.netlists.milp import ELSEWHERE, FREE, better_or_bound
from planner.cost_graphs.placement.netlists.netlist import Netlist, loads_of, merged
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Integers

_FIRST_NODES, _LAST_LEVEL = 50, 6
_FEWEST_FREED, _MOST_FREED = 2, 8
# Of cells on devices: what a programme decides in seconds.
_PLACES = 400
# After so many in vain the neighbourhoods grow.
_IN_VAIN = 20
_DRAWS = 40


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


class NeighbourhoodSearch:
    """Remembers what was tried, from one call to the next. Deterministic unless a clock ends it."""

    def __init__(self, netlist: Netlist, turn: int = 0) -> None:
        self._netlist = netlist
        self._choice = np.random.default_rng(turn)
        # By contents of the freed devices: the first level that has something left to try.
        self._next_level: dict[bytes, int] = {}
        self._in_vain = 0
        self.level = 0

    @property
    def is_exhausted(self) -> bool:
        """Nothing wider is left to try."""
        return self.level > _LAST_LEVEL

    def improved(self, devices: Integers, *, attempts: int, questions: int, out_of_time: OutOfTime) -> Integers:
        """No worse than `devices`. Ends after `attempts` programmes, or when a level of them was in vain."""
        for _ in range(attempts):
            freed = None if self._in_vain >= _IN_VAIN else self._freed(devices)
            if freed is None:
                self.level, self._in_vain = min(self.level + 1, _LAST_LEVEL + 1), 0
                break
            if out_of_time():
                break
            limits = Limits(nodes=_FIRST_NODES << self.level, questions=questions)
            cells = region(self._netlist, devices, freed, _PLACES * (1 + self.level), self._choice)
            better, is_final = placed_anew(self._netlist, devices, freed, cells, limits, out_of_time)
            self._note(devices if better is None else better, freed, is_final and self._is_all(devices, freed, cells))
            # The solver takes loads for less that are less by its tolerance alone: such devices may go round for ever.
            is_less = better is not None and _greatest(self._netlist, better, freed) < _greatest(
                self._netlist, devices, freed
            )
            self._in_vain = 0 if is_less else self._in_vain + 1
            devices = devices if better is None else better
        return devices

    def _freed(self, devices: Integers) -> Integers | None:
        """The most loaded device and some others, of sizes in turn, not tried as they are; None if none was drawn."""
        largest = min(_FEWEST_FREED + 1 + self.level, _MOST_FREED, self._netlist.num_devices)
        for _ in range(_DRAWS):
            size = int(self._choice.integers(min(_FEWEST_FREED, largest), largest + 1))
            freed = self._drawn(devices, size)
            if self._next_level.get(_contents(devices, freed), 0) <= self.level:
                return freed
        return None

    def _note(self, devices: Integers, freed: Integers, is_final: bool) -> None:
        self._next_level[_contents(devices, freed)] = _LAST_LEVEL + 1 if is_final else self.level + 1

    def _is_all(self, devices: Integers, freed: Integers, cells: Integers) -> bool:
        return int(np.isin(devices, freed).sum()) == cells.size

    def _drawn(self, devices: Integers, size: int) -> Integers:
        """Each partner at random, or every other time one that has a neighbour of a cell that is in already."""
        netlist, choice = self._netlist, self._choice
        freed = {int(loads_of(netlist, devices).argmax())}
        while len(freed) < size:
            partner = int(choice.integers(netlist.num_devices))
            if choice.integers(2):
                partner = self._neighbour(devices, freed, partner)
            freed.add(partner)
        return np.array(sorted(freed))

    def _neighbour(self, devices: Integers, freed: set[int], otherwise: int) -> int:
        netlist = self._netlist
        pins = np.flatnonzero(np.isin(devices[netlist.net_cell], list(freed)))
        if not pins.size:
            return otherwise
        net = int(netlist.net_of_pin[self._choice.choice(pins)])
        others = devices[netlist.net_cell[netlist.net_begin[net] : netlist.net_begin[net + 1]]]
        return int(self._choice.choice(others))


def _greatest(netlist: Netlist, devices: Integers, freed: Integers) -> float:
    return float(loads_of(netlist, devices)[freed].max())


def _contents(devices: Integers, freed: Integers) -> bytes:
    return np.where(np.isin(devices, freed), devices, -1).tobytes()
