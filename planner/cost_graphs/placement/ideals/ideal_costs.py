"""What each ideal contributes to the load of the stages that start or end there, so that a pair costs a few additions.

A stage is the difference of two ideals J ⊂ I. What it pays for a hyperedge depends on how many of the pins are inside:
a term of I, less a term of J, corrected for hyperedges that reach over the borders of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from planner.cost_graphs.placement.ideals.contraction import ItemCosts
from planner.partition.lattice import Words, as_bits, as_words
from planner.partition.problem import Booleans, Floats, Integers

Number = TypeVar("Number", np.float64, np.int64)

# Work in whole steps: sums of them keep the order of sets exactly, where sums of seconds would round.
STEPS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdealSets:
    """Ideals [i], supersets later, as `words` [i, words] and as `bits` [items, i].

    `work` [i]: the least seconds of the items on any class, in steps of `step_seconds`. `index` [i]: as was given.
    """

    words: Words
    bits: Booleans
    work: Integers
    step_seconds: float
    index: Integers

    def only(self, mask: Booleans) -> IdealSets:
        return IdealSets(
            words=np.ascontiguousarray(self.words[mask]),
            bits=np.ascontiguousarray(self.bits[:, mask]),
            work=self.work[mask],
            step_seconds=self.step_seconds,
            index=self.index[mask],
        )


class IdealTables(NamedTuple):
    """By ideal [i] and class [k]. `closing` [i, k] less `opening` [j, k] is the load of the stage from ideal j to i,
    but for hyperedges that cross both. Those that cross ideal i are `edge[first[i]:first[i + 1]]`, with `pins` inside.
    What a device with p pins of an edge pays: `payments` [k, offset[edge] + p].
    """

    compute: Floats
    forbidden: Integers
    held_bytes: Floats
    opening: Floats
    closing: Floats
    first: Integers
    edge: Integers
    pins: Integers
    payments: Floats
    offset: Integers
    num_pins: Integers


def ideal_sets(costs: ItemCosts, ideals: Sequence[int]) -> IdealSets:
    """O(ideals * items)."""
    words = as_words(ideals, costs.num_items)
    bits = np.ascontiguousarray(as_bits(words, costs.num_items).T)
    least = np.where(costs.supported, costs.seconds, np.inf).min(axis=0)
    step = max(float(least.sum()), 1e-300) / STEPS
    work = held(bits, np.rint(least / step).astype(np.int64))
    order = np.lexsort((held(bits, np.ones(costs.num_items, dtype=np.int64)), work))
    return IdealSets(
        words=words[order],
        bits=np.ascontiguousarray(bits[:, order]),
        work=work[order],
        step_seconds=step,
        index=order,
    )


def ideal_tables(costs: ItemCosts, sets: IdealSets) -> IdealTables:
    """O(ideals * (items + pins))."""
    bits = sets.bits
    compute = np.stack([held(bits, row) for row in costs.seconds], axis=1)
    opening, closing = np.zeros_like(compute), np.zeros_like(compute)
    num_pins = np.array([len(pins) for pins in costs.edges], dtype=np.int64)
    ideals, edges, insides = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    for edge, (pins, table) in enumerate(costs.edges.items()):
        inside = bits[list(pins)].sum(axis=0)
        crossing = np.flatnonzero((inside > 0) & (inside < len(pins)))
        ideals.append(crossing)
        edges.append(np.full(crossing.size, edge))
        insides.append(inside[crossing])
        _charge(table, inside, opening, closing)
    ideal = np.concatenate(ideals)
    order = np.argsort(ideal, kind="stable")
    return IdealTables(
        compute=compute,
        forbidden=np.stack([held(bits, row.astype(np.int64)) for row in ~costs.supported], axis=1),
        held_bytes=held(bits, costs.item_bytes),
        opening=compute + opening,
        closing=compute + closing,
        first=np.searchsorted(ideal[order], np.arange(bits.shape[1] + 1)).astype(np.int64),
        edge=np.concatenate(edges)[order],
        pins=np.concatenate(insides)[order].astype(np.int64),
        payments=np.concatenate([np.zeros((costs.seconds.shape[0], 0)), *costs.edges.values()], axis=1),
        offset=np.concatenate([[0], np.cumsum(num_pins + 1)])[:-1].astype(np.int64),
        num_pins=num_pins,
    )


def _charge(table: Floats, inside: Integers, opening: Floats, closing: Floats) -> None:
    """A stage from J to I pays table[:, pins] if all pins are in I and none in J, table[:, pins in I] if some."""
    for index in np.flatnonzero(table.any(axis=1)).tolist():
        closing[:, index] += table[index][inside]
        opened = table[index, -1] - table[index, ::-1]
        opened[0] = 0.0
        opening[:, index] += opened[inside]


def held(bits: Booleans, weight: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """[ideals] sums of the items' weights, added in the items' order on any machine."""
    total = np.zeros(bits.shape[1], dtype=weight.dtype)
    for row, value in zip(bits, weight, strict=True):
        if value:
            total += row * value
    return total
