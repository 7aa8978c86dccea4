"""The loops of `least_over_walks`, compiled. Apart, so that only a search over many devices waits for the compiler.

Positions are indexes 0 to P - 1, the last being the program's end; a set of them is a row of 64-bit words.
"""

from __future__ import annotations

import numpy as np

from planner.partition.ordered.least_over_walks import WalkArrays, Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats, Integers

NOT_REACHED, GIVEN_UP = -1, -2


@compiled
def stages_within(
    loads: Floats, segment_start: Integers, segment_end: Integers, limit: float, size: int
) -> tuple[Words, Integers]:
    """From `loads` [label, segment]: the ends of each label and start within `limit`; by label and end, the first
    start, P where there is none."""
    num_labels = loads.shape[0]
    ends = np.zeros((num_labels, size, (size + 63) >> 6), dtype=np.uint64)
    earliest = np.full((num_labels, size), size, dtype=np.int64)
    for label in range(num_labels):
        for segment in range(segment_start.size):
            if loads[label, segment] <= limit:
                start, end = segment_start[segment], segment_end[segment]
                ends[label, start, end >> 6] |= np.uint64(1) << np.uint64(end & 63)
                earliest[label, end] = min(earliest[label, end], start)
    return ends, earliest


@compiled
def first_of_rest(capacity: Integers, stride: Integers, unit_back: Integers, last: int) -> Integers:
    """By count of used units: the first position from which the unused ones may do, at best, all up to the last.

    `unit_back` [unit, x]: the first position from which one unit may lead to position x or beyond.
    """
    num_units = unit_back.shape[0]
    num_bases = 1
    for unit in range(num_units):
        num_bases *= capacity[unit] + 1
    first = np.full(num_bases, last, dtype=np.int64)
    digit = capacity.copy()
    for base in range(num_bases - 1, -1, -1):
        for unit in range(num_units):
            if digit[unit] < capacity[unit]:
                first[base] = min(first[base], unit_back[unit, first[base + stride[unit]]])
        for unit in range(num_units):
            digit[unit] -= 1
            if digit[unit] >= 0:
                break
            digit[unit] = capacity[unit]
    return first


@compiled
def reach(
    walks: WalkArrays, num_stages: int, ends: Words, rest: Integers, back: Integers, reached: Words,
    steps_left: Integers,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Fills `reached` [base, node, word]: where a walk with so many used units stands. Ends at the program's end.

    Returns (base, node, start, edge) of the last stage, or NOT_REACHED; GIVEN_UP once `steps_left` [1], each a word of
    ends, are none. `back` [node, x]: the first position at which the node can be if what follows it begins at x.
    """
    capacity, stride, start_unit, start_node = walks.capacity, walks.stride, walks.start_unit, walks.start_node
    edge_first, edge_unit, edge_node, row = walks.edge_first, walks.edge_unit, walks.edge_node, walks.row
    num_units, num_nodes, size = capacity.size, edge_first.size - 1, ends.shape[1]
    num_words, last = ends.shape[2], size - 1
    digit = np.zeros(num_units, dtype=np.int64)
    after = np.zeros(num_words, dtype=np.uint64)
    before = np.zeros((row.max() + 1, num_words), dtype=np.uint64)
    for index in range(start_node.size):
        base = stride[start_unit[index]] if start_unit[index] >= 0 else 0
        if back[start_node[index], rest[base]] <= 0:
            reached[base, start_node[index], 0] |= np.uint64(1)
    for base in range(rest.size):
        stages = 0
        for unit in range(num_units):
            digit[unit] = base // stride[unit] % (capacity[unit] + 1)
            stages += digit[unit]
        may_end = num_stages == 0 or stages + (start_unit[0] < 0) == num_stages
        before[:] = 0
        may_go_on = num_stages == 0 or stages + (start_unit[0] < 0) < num_stages
        for node in range(num_nodes):
            filled = False
            for word in range(num_words):
                if row[node] >= 0:
                    reached[base, node, word] &= ~before[row[node], word]
                    before[row[node], word] |= reached[base, node, word]
                filled = filled or reached[base, node, word] != 0
            if not filled:
                continue
            if steps_left[0] < 0:
                return GIVEN_UP, GIVEN_UP, GIVEN_UP, GIVEN_UP
            current = -1
            for edge in range(edge_first[node], edge_first[node + 1]):
                unit, target = edge_unit[edge], edge_node[edge]
                if unit >= 0 and digit[unit] >= capacity[unit]:
                    continue
                label = walks.edge_label[edge] + walks.label_offset[stages]
                if label != current:
                    current = label
                    after[:] = 0
                    for word in range(num_words):
                        bits = reached[base, node, word]
                        start = word << 6
                        while bits != 0:
                            if bits & np.uint64(1) != 0:
                                steps_left[0] -= num_words - (start >> 6)
                                for other in range(start >> 6, num_words):
                                    after[other] |= ends[label, start, other]
                            bits >>= np.uint64(1)
                            start += 1
                if may_end and after[last >> 6] >> np.uint64(last & 63) & np.uint64(1) != 0:
                    for start in range(last):
                        here = reached[base, node, start >> 6] >> np.uint64(start & 63) & np.uint64(1)
                        if here != 0 and ends[label, start, last >> 6] >> np.uint64(last & 63) & np.uint64(1) != 0:
                            return base, node, start, edge
                if target < 0 or not may_go_on:
                    continue
                next_base = base + stride[unit] if unit >= 0 else base
                first = back[target, rest[next_base]]
                for word in range(first >> 6, num_words):
                    bits = after[word]
                    if word == first >> 6:
                        bits &= ~np.uint64(0) << np.uint64(first & 63)
                    if word == last >> 6:
                        bits &= ~(np.uint64(1) << np.uint64(last & 63))
                    reached[next_base, target, word] |= bits
    return NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED


@compiled
def step_back(
    walks: WalkArrays, base: int, node: int, position: int, ends: Words, reached: Words
) -> tuple[int, int, int, int]:
    """(base, node, start, edge) of a stage that ends where the walk stands; NOT_REACHED at its start."""
    capacity, stride = walks.capacity, walks.stride
    edge_first, edge_unit, edge_node = walks.edge_first, walks.edge_unit, walks.edge_node
    num_nodes, word, bit = edge_first.size - 1, position >> 6, np.uint64(position & 63)
    for before in range(num_nodes):
        for edge in range(edge_first[before], edge_first[before + 1]):
            if edge_node[edge] != node:
                continue
            unit, own = edge_unit[edge], base
            if unit >= 0:
                if base // stride[unit] % (capacity[unit] + 1) == 0:
                    continue
                own = base - stride[unit]
            stages = 0
            for other in range(capacity.size):
                stages += own // stride[other] % (capacity[other] + 1)
            label = walks.edge_label[edge] + walks.label_offset[stages]
            for start in range(position):
                here = reached[own, before, start >> 6] >> np.uint64(start & 63) & np.uint64(1)
                if here != 0 and ends[label, start, word] >> bit & np.uint64(1) != 0:
                    return own, before, start, edge
    return NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED
