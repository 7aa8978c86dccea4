"""The loops of `priced_walks`, compiled. Positions are indexes 0 to P - 1, the last being the program's end."""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.priced_walks import EdgeBundles, StagesAside
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers


@compiled
def cheapest_walk(
    num_nodes: int, first: Integers, ends: Integers, loads: Floats, limit: float, bundles: EdgeBundles,
    aside: StagesAside, start_unit: Integers, start_node: Integers, price: Floats, used: Integers,
) -> tuple[float, int]:  # fmt: skip
    """Its cost, inf where there is none, and the segments looked at; fills `used` [units].

    `loads` [label, segment]; segments from a position stand from `first` to the next first. A node or a unit of -1 is
    none; an edge to no node ends the program.
    """
    nodes, node_first = bundles.nodes, bundles.node_first
    size = first.size - 1
    last, steps = size - 1, 0
    cost = np.full((num_nodes, size), np.inf)
    # [node, position]: the node and the position of the stage before, and the unit used on the way here.
    before = np.full((num_nodes, size, 3), -1, dtype=np.int64)
    for index in range(start_node.size):
        cost[start_node[index], 0] = price[start_unit[index]]
        before[start_node[index], 0, 2] = start_unit[index]
    best, best_node, best_start = np.inf, -1, -1
    for start in range(last):
        for index in range(aside.first[start], aside.first[start + 1]):
            segment = aside.segments[index]
            cheapest = -1
            for unit in range(aside.label.size):
                within = aside.label[unit] >= 0 and loads[aside.label[unit], segment] <= limit
                if within and (cheapest < 0 or price[unit] < price[cheapest]):
                    cheapest = unit
            end = ends[segment]
            if cheapest < 0 or end == last:
                continue
            steps += num_nodes
            for node in range(num_nodes):
                total = cost[node, start] + price[cheapest]
                if total < cost[node, end]:
                    cost[node, end] = total
                    before[node, end, 0] = node
                    before[node, end, 1] = start
                    before[node, end, 2] = cheapest
        for bundle in range(bundles.label.size):
            label, node = bundles.label[bundle], -1
            for index in range(node_first[bundle], node_first[bundle + 1]):
                if cost[nodes[index], start] < np.inf and (node < 0 or cost[nodes[index], start] < cost[node, start]):
                    node = nodes[index]
            if node < 0:
                continue
            own = cost[node, start]
            steps += first[start + 1] - first[start]
            for segment in range(first[start], first[start + 1]):
                if loads[label, segment] > limit:
                    continue
                end = ends[segment]
                for index in range(bundles.target_first[bundle], bundles.target_first[bundle + 1]):
                    unit, target = bundles.target_units[index], bundles.target_nodes[index]
                    total = own + (price[unit] if unit >= 0 else 0.0)
                    if end == last:
                        if target < 0 and total < best:
                            best, best_node, best_start = total, node, start
                    elif target >= 0 and total < cost[target, end]:
                        cost[target, end] = total
                        before[target, end, 0] = node
                        before[target, end, 1] = start
                        before[target, end, 2] = unit
    used[:] = 0
    if best_node < 0:
        return np.inf, steps
    node, start = best_node, best_start
    while node >= 0:
        if before[node, start, 2] >= 0:
            used[before[node, start, 2]] += 1
        node, start = before[node, start, 0], before[node, start, 1]
    return best, steps


@compiled
def _gains_least(gains: Floats, shares: Floats) -> tuple[int, float]:
    """The row that gains the least with each unit's gain weighted by its share, and how much."""
    row, least = 0, np.inf
    for other in range(gains.shape[0]):
        gain = 0.0
        for unit in range(gains.shape[1]):
            gain += gains[other, unit] * shares[unit]
        if gain < least:
            row, least = other, gain
    return row, least


@compiled
def least_paid(gains: Floats, rounds: int) -> tuple[float, Floats]:
    """(gain, shares): the shares [units], which add up to 1, at which the row of `gains` [walks, units] that gains the
    least gains about the most, each unit's gain weighted by its share.

    By multiplicative weights, which answer the row that gains the least.
    """
    units = gains.shape[1]
    shares, logarithms, summed = np.ones(units) / units, np.zeros(units), np.zeros(units)
    best, best_shares = -np.inf, shares.copy()
    for turn in range(rounds):
        row, least = _gains_least(gains, shares)
        if least > best:
            best, best_shares = least, shares.copy()
        summed += shares
        # Every so often, the mean of the shares so far: it is what comes near the best.
        if turn % 16 == 15:
            mean = summed / summed.sum()
            _, least = _gains_least(gains, mean)
            if least > best:
                best, best_shares = least, mean
        logarithms += gains[row] / np.sqrt(turn + 1.0)
        logarithms -= logarithms.max()
        shares = np.exp(logarithms)
        shares /= shares.sum()
    return best, best_shares
