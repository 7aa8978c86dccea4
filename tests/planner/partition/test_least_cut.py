"""Least cuts, beside every cut of small networks."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from planner.partition.least_cut import Network
from tests.random_examples import random_seeds

Arcs = list[tuple[int, int, int]]


def network_of(arcs: Arcs) -> Network:
    network = Network()
    for tail, head, room in arcs:
        network.add(tail, head, room)
    return network


def test_the_smallest_of_the_least_cuts() -> None:
    assert network_of([(0, 1, 3), (0, 2, 2), (1, 2, 5), (1, 3, 2), (2, 3, 3)]).source_side(0, 3) == {0}
    assert network_of([(0, 1, 9), (0, 2, 9), (1, 2, 5), (1, 3, 2), (2, 3, 3)]).source_side(0, 3) == {0, 1, 2}


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(30))
def test_no_cut_holds_less(seed: int) -> None:
    draw = random.Random(seed)
    nodes = range(draw.randint(2, 6))
    arcs = [
        (tail, head, draw.randint(0, 9)) for tail in nodes for head in nodes if tail != head and draw.random() < 0.6
    ]
    network, sink = network_of(arcs), nodes[-1]
    # Again and again, from other sources: a network is as it was.
    for source in [*nodes[:-1], *nodes[:-1]]:
        sides = least_sides(arcs, source, sink, [node for node in nodes if node not in (source, sink)])
        assert network.least_cut(source, sink) == capacity(arcs, sides[0])
    assert network_of(arcs).source_side(0, sink) == set.intersection(*least_sides(arcs, 0, sink, [*nodes[1:-1]]))


def least_sides(arcs: Arcs, source: int, sink: int, others: list[int]) -> list[set[int]]:
    sides = [{source, *chosen} for count in range(len(others) + 1) for chosen in combinations(others, count)]
    least = min(capacity(arcs, side) for side in sides)
    return [side for side in sides if capacity(arcs, side) == least]


def capacity(arcs: Arcs, side: set[int]) -> int:
    return sum(room for tail, head, room in arcs if tail in side and head not in side)
