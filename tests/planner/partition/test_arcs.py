"""Orders of things that wait for each other, compared with all orders of small graphs."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from planner.partition.arcs import (
    after_of_arcs,
    depth_first_order,
    least_first_order,
    topological_order,
)
from tests.random_examples import random_examples

Arcs = list[tuple[int, int]]


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[int, Arcs]:
    """Items under shuffled numbers, so that no order is that of the numbers."""
    count = draw(st.integers(1, 6))
    number = draw(st.permutations(range(count)))
    pairs = [(one, other) for other in range(count) for one in range(other)]
    arcs = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return count, [(number[one], number[other]) for one, other in arcs]


def all_orders(count: int, arcs: Arcs) -> list[tuple[int, ...]]:
    return [
        order
        for order in permutations(range(count))
        if all(order.index(tail) < order.index(head) for tail, head in arcs)
    ]


def neighbours(count: int, arcs: Arcs) -> tuple[list[list[int]], list[list[int]]]:
    tails, heads = [tail for tail, _ in arcs], [head for _, head in arcs]
    return after_of_arcs(heads, tails, count), after_of_arcs(tails, heads, count)


@random_examples(100)
@given(graph=acyclic())
def test_each_is_an_order(graph: tuple[int, Arcs]) -> None:
    before, after = neighbours(*graph)
    possible = all_orders(*graph)
    assert tuple(topological_order(before, after)) in possible
    assert tuple(depth_first_order(after)) in possible


@random_examples(100)
@given(graph=acyclic(), ranks=st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_least_first_is_the_least_of_all_orders(graph: tuple[int, Arcs], ranks: list[int]) -> None:
    _, after = neighbours(*graph)
    possible = all_orders(*graph)
    assert tuple(least_first_order(after)) == min(possible)
    assert tuple(least_first_order(after, ranks.__getitem__)) == min(
        possible, key=lambda order: [(ranks[item], item) for item in order]
    )


def test_one_branch_ends_before_the_next_begins() -> None:
    _, after = neighbours(6, [(0, 1), (0, 3), (1, 2), (3, 4), (2, 5), (4, 5)])
    assert depth_first_order(after) == [0, 1, 2, 3, 4, 5]
    before, after = neighbours(6, [(0, 1), (0, 3), (1, 2), (3, 4), (2, 5), (4, 5)])
    assert topological_order(before, after) == [0, 1, 3, 2, 4, 5]


def test_what_a_cycle_holds_up_is_left_out() -> None:
    before, after = neighbours(5, [(0, 1), (1, 2), (2, 1), (2, 3)])
    assert topological_order(before, after) == [0, 4]
    assert depth_first_order(after) == [0, 4]
    assert least_first_order(after) == [0, 4]
