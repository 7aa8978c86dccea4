"""A search as `optimal` sees it, and the one loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.partition.portfolio.portfolio import Portfolio


def always(_: Portfolio) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """`run` offers assignments to the portfolio, raises its bound, or both; its steps are counted, scaled by the effort
    that is asked for. `applies` says whether it can help with what is asked and known so far.
    """

    name: str
    run: Callable[[Portfolio], None]
    applies: Callable[[Portfolio], bool] = always


def run_in_turn(portfolio: Portfolio, searches: Sequence[Search]) -> None:
    """Until the best assignment is proven, or time is over and there is one."""
    for search in searches:
        if portfolio.is_over:
            return
        if search.applies(portfolio):
            search.run(portfolio)
