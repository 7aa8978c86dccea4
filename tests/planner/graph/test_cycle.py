"""A cycle is found wherever there is one, and told in the arcs' direction."""

from __future__ import annotations

import random

import pytest

from planner.graph.cycle import cycle_text, find_cycle
from tests.random_examples import random_seeds


def test_a_program_has_none() -> None:
    assert find_cycle(0, []) is None
    assert find_cycle(4, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 1)]) is None


def test_a_node_that_reads_itself() -> None:
    assert find_cycle(3, [(0, 1), (1, 1), (1, 2)]) == [1]


def test_the_way_into_a_cycle_and_out_of_it_is_no_part_of_it() -> None:
    cycle = find_cycle(6, [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5)])
    assert cycle is not None
    assert len(cycle) == 3
    assert sorted(cycle) == [1, 2, 3]
    assert (cycle[0], cycle[1]) in {(1, 2), (2, 3), (3, 1)}


@pytest.mark.fuzz
def test_what_is_found_is_a_cycle_and_nothing_is_found_only_in_an_order() -> None:
    for seed in random_seeds(200):
        choice = random.Random(seed)
        count = choice.randint(1, 8)
        arcs = [(choice.randrange(count), choice.randrange(count)) for _ in range(choice.randint(0, count))]
        cycle = find_cycle(count, arcs)
        if cycle is None:
            assert is_ordered(count, arcs)
        else:
            assert len(set(cycle)) == len(cycle)
            assert all(pair in arcs for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def is_ordered(count: int, arcs: list[tuple[int, int]]) -> bool:
    """Nodes that nothing unplaced leads to are placed, until none is left."""
    unplaced = set(range(count))
    while placeable := {node for node in unplaced if not any(a in unplaced and b == node for a, b in arcs)}:
        unplaced -= placeable
    return not unplaced


def test_long_cycles_are_told_by_their_ends() -> None:
    assert cycle_text(["a"]) == "a → a"
    assert cycle_text(list("abcdefghijk")) == "a → b → c → d → e → f → g → h → i → j → k → a"
    assert cycle_text(list("abcdefghijkl")) == "a → b → c → d → e → f → (1 more) → h → i → j → k → l → a"
