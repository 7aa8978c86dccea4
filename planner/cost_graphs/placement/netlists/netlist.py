"""The free problem without what cannot matter: colocated nodes as one cell, tensors as hyperedges (nets) over cells.

A tensor is paid for by every device that touches it, unless one device holds all of it: who produces it does not
matter. So tensors over the same cells are one net; what a device pays for it depends on how many of them it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.problem import Floats, Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class Netlist:
    """Arrays by device class [k], cell [i], net [t], pin [p] and device [d]; a net has two cells or more.

    - `seconds` [k, i]: inf where the cell cannot run. `held_bytes` [i]. `cell_of_node` [n].
    - `net_begin` [t + 1] into `net_cell` [p]: the distinct cells of a net. `net_seconds` [k, t].
    - `class_of_device` [d], `device_bytes` [d].
    """

    seconds: Floats
    held_bytes: Floats
    cell_of_node: Integers
    net_begin: Integers
    net_cell: Integers
    net_seconds: Floats
    class_of_device: Integers
    device_bytes: Floats

    @property
    def num_cells(self) -> int:
        return int(self.held_bytes.size)

    @property
    def num_nets(self) -> int:
        return int(self.net_begin.size - 1)

    @property
    def num_devices(self) -> int:
        return int(self.class_of_device.size)

    @cached_property
    def net_of_pin(self) -> Integers:
        return np.repeat(np.arange(self.num_nets), np.diff(self.net_begin))

    @cached_property
    def cell_begin(self) -> Integers:
        """[i + 1] into `cell_net`."""
        return _begins(np.bincount(self.net_cell, minlength=self.num_cells))

    @cached_property
    def cell_net(self) -> Integers:
        """[p] the nets of each cell."""
        return self.net_of_pin[np.argsort(self.net_cell, kind="stable")]


def netlist_of(problem: PlacementProblem) -> Netlist:
    """One cell for each colocation group. O((nodes + reads) log reads)."""
    classes = problem.class_of_device
    whole = Netlist(
        seconds=problem.seconds,
        held_bytes=problem.node_bytes,
        cell_of_node=np.arange(problem.num_nodes),
        net_begin=_begins(np.bincount(problem.read_tensor, minlength=problem.num_tensors) + 1),
        net_cell=_pins(problem),
        net_seconds=problem.transfer_seconds,
        class_of_device=classes,
        device_bytes=problem.class_bytes[classes].astype(np.float64),
    )
    return merged(whole, problem.colocation)


def merged(netlist: Netlist, cell_of_cell: Integers) -> Netlist:
    """Cells of one number become one; numbers run from 0 without gaps. Nets in normal form: each set of cells once."""
    num_cells = int(cell_of_cell.max(initial=-1)) + 1
    seconds = np.zeros((netlist.seconds.shape[0], num_cells))
    for row, cell_seconds in zip(seconds, netlist.seconds, strict=True):
        np.add.at(row, cell_of_cell, cell_seconds)
    begin, pins, net_seconds = _normal(
        netlist.net_of_pin, cell_of_cell[netlist.net_cell], netlist.net_seconds, num_cells
    )
    return Netlist(
        seconds=seconds,
        held_bytes=np.bincount(cell_of_cell, netlist.held_bytes, num_cells).astype(np.float64),
        cell_of_node=cell_of_cell[netlist.cell_of_node],
        net_begin=begin,
        net_cell=pins,
        net_seconds=net_seconds,
        class_of_device=netlist.class_of_device,
        device_bytes=netlist.device_bytes,
    )


def loads_of(netlist: Netlist, devices: Integers) -> Floats:
    """[devices] seconds of cells and of the nets that they cut."""
    classes = netlist.class_of_device
    loads = np.zeros(netlist.num_devices)
    np.add.at(loads, devices, netlist.seconds[classes[devices], np.arange(netlist.num_cells)])
    touched = np.unique(netlist.net_of_pin * netlist.num_devices + devices[netlist.net_cell])
    net, device = touched // netlist.num_devices, touched % netlist.num_devices
    apart = np.bincount(net, minlength=netlist.num_nets)[net] > 1
    np.add.at(loads, device[apart], netlist.net_seconds[classes[device[apart]], net[apart]])
    return loads


def _pins(problem: PlacementProblem) -> Integers:
    """Producer and readers, tensor by tensor."""
    tensor = np.concatenate([np.arange(problem.num_tensors), problem.read_tensor])
    node = np.concatenate([problem.tensor_producer, problem.read_node])
    pins: Integers = node[np.argsort(tensor, kind="stable")]
    return pins


def _normal(
    pin_net: Integers, pin_cell: Integers, net_seconds: Floats, num_cells: int
) -> tuple[Integers, Integers, Floats]:
    """No free nets, no lone cells, each set of cells once with the sum of the costs."""
    keys = np.unique(pin_net * num_cells + pin_cell)
    pin_net, pin_cell = keys // max(num_cells, 1), keys % max(num_cells, 1)
    size = np.bincount(pin_net, minlength=net_seconds.shape[1])
    matters = (size >= 2) & (net_seconds.max(axis=0, initial=0.0) > 0)
    pin_cell, size = pin_cell[matters[pin_net]], size[matters]
    first = _first_alike(_begins(size), pin_cell)
    distinct, merged_into = np.unique(first, return_inverse=True)
    summed = np.zeros((net_seconds.shape[0], distinct.size))
    for row, alike_seconds in zip(summed, net_seconds[:, matters], strict=True):
        np.add.at(row, merged_into, alike_seconds)
    is_first = np.zeros(first.size, dtype=bool)
    is_first[distinct] = True
    return _begins(size[is_first]), pin_cell[np.repeat(is_first, size)], summed


def _first_alike(begin: Integers, pin_cell: Integers) -> Integers:
    """[t] the first net over the same cells."""
    first_of_key: dict[bytes, int] = {}
    keys = (pin_cell[begin[net] : begin[net + 1]].tobytes() for net in range(begin.size - 1))
    return np.array([first_of_key.setdefault(key, net) for net, key in enumerate(keys)], dtype=np.int64)


def _begins(counts: Integers) -> Integers:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
