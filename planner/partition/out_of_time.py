"""When a search is to end with what is in hand."""

from __future__ import annotations

from collections.abc import Callable

# Asked now and then by a search. Without a clock, budgets are counted in steps.
OutOfTime = Callable[[], bool]


def never() -> bool:
    """The OutOfTime of a search that has to give the same answer on any machine."""
    return False
