"""A bound on the bottleneck of walks whose devices are too many to count: each device has a price instead.

Within a limit, the cheapest walk is found with no count of the devices that it uses. If it costs more than all devices
together, no walk has enough devices: the limit is below every bottleneck. That holds for any prices (a Lagrangian
relaxation). Prices are sought at which the walks known so far cost the most, as in a matrix game (Freund and Schapire
1999). The bound misses the optimum where a mixture of walks uses each device once on average, and no single walk does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.partition.ordered.device_walks import DeviceWalks
from planner.partition.ordered.least_over_walks import WalkLoads
from planner.partition.problem import Floats, Integers

# Limits are tried until the bound is known to such a share: a tenth of a per cent is no more than loads are rounded.
_ENOUGH = 1e-3
# Walks for one limit: the benchmark's nets need 5 to 30. Prices that are this close to paid exclude nothing.
_MAX_WALKS, _PAID = 40, 1e-5
_ROUNDS = 4000
_MARGIN = 1 + 1e-9


def priced_bound(walks: DeviceWalks, table: WalkLoads, *, least: float, limit: float, max_steps: float) -> float:
    """Nothing below it is possible; between `least`, which holds, and a finite `limit`.

    For walks whose nodes are stages, any number of them, with loads that do not depend on their place. O(walks tried x
    edges x segments): `max_steps` counts segments.
    """
    prices = _Prices(walks, table)
    low, high = least, limit
    while high > low * (1 + _ENOUGH) and prices.steps < max_steps:
        middle = (low + high) / 2
        low, high = (middle, high) if prices.exclude(middle, max_steps) else (low, middle)
    return low


class _Prices:
    def __init__(self, walks: DeviceWalks, table: WalkLoads) -> None:
        self._table = table
        self._first = np.searchsorted(table.starts, np.arange(table.num_positions + 1))
        self._bundles, self._aside = _bundles(walks, table), _aside(walks, table)
        self._capacity = np.array(walks.capacity, dtype=np.float64)
        self._start_unit, self._start_node = np.array(walks.starts, dtype=np.int64).reshape(-1, 2).T.copy()
        self._num_nodes = walks.num_nodes
        # [units] of all devices of the unit, as a share of all.
        self._shares = self._capacity / self._capacity.sum()
        self.steps = 0

    def exclude(self, limit: float, max_steps: float) -> bool:
        """Whether some prices show that no walk is within the limit. They are kept for the next one."""
        from planner.partition.ordered.priced_walks_kernel import cheapest_walk, least_paid

        shares, gains = self._shares, list[Floats]()
        used = np.zeros(self._capacity.size, dtype=np.int64)
        for _ in range(_MAX_WALKS):
            cost, steps = cheapest_walk(
                self._num_nodes, self._first, self._table.ends, self._table.loads, limit, self._bundles, self._aside,
                self._start_unit, self._start_node, shares / self._capacity, used,
            )  # fmt: skip
            self.steps += steps
            if cost > shares.sum() * _MARGIN:
                self._shares = shares
                return True
            gains.append(used / self._capacity - 1)
            gain, shares = least_paid(np.array(gains), _ROUNDS)
            if gain <= _PAID or self.steps >= max_steps:
                return False
        return False


class EdgeBundles(NamedTuple):
    """Edges that differ in their node alone, and are as many bundles as there are other ends: of each its label, the
    nodes that it leaves, and the units used and nodes reached. Lists stand from one first to the next."""

    label: Integers
    node_first: Integers
    nodes: Integers
    target_first: Integers
    target_units: Integers
    target_nodes: Integers


def _bundles(walks: DeviceWalks, table: WalkLoads) -> EdgeBundles:
    targets: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for edge in (one for one in walks.edges if not one.label.is_aside):
        key = edge.node, table.index_of_label[edge.label]
        targets.setdefault(key, []).append((edge.unit, edge.next_node))
    nodes: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = {}
    for (node, label), ends_of_node in targets.items():
        nodes.setdefault((label, tuple(ends_of_node)), []).append(node)
    ends = [end for _, ends_of_node in nodes for end in ends_of_node]
    return EdgeBundles(
        label=np.array([label for label, _ in nodes], dtype=np.int64),
        node_first=np.cumsum([0, *map(len, nodes.values())]),
        nodes=np.array([node for members in nodes.values() for node in members], dtype=np.int64),
        target_first=np.cumsum([0, *(len(ends_of_node) for _, ends_of_node in nodes)]),
        target_units=np.array([unit for unit, _ in ends], dtype=np.int64),
        target_nodes=np.array([node for _, node in ends], dtype=np.int64),
    )


class StagesAside(NamedTuple):
    """`segments` that stages aside may take, those from a position from its `first` to the next; `label` [units] that
    they have there, -1 for none."""

    first: Integers
    segments: Integers
    label: Integers


def _aside(walks: DeviceWalks, table: WalkLoads) -> StagesAside:
    labels = {edge.unit: table.index_of_label[edge.label] for edge in walks.edges if edge.label.is_aside}
    of_unit = np.array([labels.get(unit, -1) for unit in range(len(walks.capacity))], dtype=np.int64)
    segments = np.flatnonzero(np.isfinite(table.loads[list(labels.values())]).any(axis=0))
    first = np.searchsorted(table.starts[segments], np.arange(table.num_positions + 1))
    return StagesAside(first, segments, of_unit)
