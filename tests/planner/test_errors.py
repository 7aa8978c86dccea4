"""The tree of errors is the one that its docstring draws, and each reason is told apart."""

from __future__ import annotations

from collections.abc import Iterator

from planner import errors
from planner.errors import GraphError, OptionsError, PlannerError


def below(kind: type[PlannerError], depth: int = 1) -> Iterator[tuple[int, str]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield depth, child.__name__
            yield from below(child, depth + 1)


def drawn() -> Iterator[tuple[int, str]]:
    """Depth and name of each line of the tree; a level is four columns wide."""
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        branch, dash, name = line.partition("── ")
        if dash:
            yield len(branch) // 4 + 1, name.split()[0]


def test_the_docstring_draws_every_error_where_it_stands() -> None:
    assert sorted(drawn()) == sorted(below(PlannerError))


def test_every_error_has_a_reason_of_its_own() -> None:
    kinds = [getattr(errors, name) for _, name in below(PlannerError)]
    reasons = [kind.reason for kind in kinds]
    assert len(set(reasons)) == len(reasons)
    assert PlannerError.reason == "INTERNAL"
    assert (GraphError.reason, OptionsError.reason) == ("INVALID_GRAPH", "INVALID_OPTIONS")


def test_facts_travel_as_text() -> None:
    error = GraphError("nodes: 6, at most 5", found=6, limit=5)
    assert str(error) == error.message == "nodes: 6, at most 5"
    assert error.metadata == {"found": "6", "limit": "5"}
