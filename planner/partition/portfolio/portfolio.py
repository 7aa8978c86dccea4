"""What several searches know together, the best assignment and the best proven bound; and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.partition.assignment import Assignment
from planner.partition.problem import PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of
from planner.partition.request import Request
from planner.partition.score import Scored, score

# Relative: a value this close to the bound is proven, and the search for better ones ends.
PROVEN = 2e-9
# The local search begins beside the best: from the second and third of what was offered it ends elsewhere.
MAX_RUNNERS_UP = 2


class Portfolio:
    """Searches offer what they find and raise the bound as far as they prove it. `runners_up`: next to the best.

    `climbed`: where the local search ended last, and would end again. `in_program_order`: the least bottleneck's
    segments of it.
    """

    def __init__(self, problem: PartitionProblem, request: Request) -> None:
        self.problem, self.request = problem, request
        self.best: Scored | None = None
        self.runners_up: list[Scored] = []
        self.climbed: Scored | None = None
        self.in_program_order: Assignment | None = None
        self.bound = 0.0

    @cached_property
    def bundles(self) -> Bundles:
        return bundles_of(self.problem)

    def offer(self, assignment: Assignment | None) -> Scored | None:
        """Kept if it fits and is better; returned in any case. With copies on idle devices if these are asked for."""
        if assignment is None:
            return None
        scored = score(self.problem, assignment, self.request.objective, saturate=self.request.saturate_host)
        self.keep(scored)
        return scored

    def keep(self, scored: Scored) -> None:
        num_stages = self.request.num_stages
        if num_stages and scored.assignment.num_stages != num_stages:
            return
        if scored.is_better_than(self.best):
            scored, self.best = self.best or scored, scored
        if scored.fits and scored is not self.best:
            self.runners_up = sorted([*self.runners_up, scored], key=lambda one: one.value)[:MAX_RUNNERS_UP]

    def prove(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    @property
    def has_copies(self) -> bool:
        """Whether stages may have copies: then a bottleneck is not bounded by one device's work on a stage."""
        return self.request.replicate or self.request.saturate_host

    @property
    def limit(self) -> float:
        """Just above the value in hand, so that rounding leaves nothing out."""
        return self.best.value * (1 + 1e-9) if self.best else float("inf")

    @property
    def proven_bound(self) -> float:
        """The bound, and never more than the value; the value itself where only rounding is between them."""
        value = self.best.value if self.best else float("inf")
        return value if self.is_proven else min(self.bound, value)

    @property
    def is_proven(self) -> bool:
        return self.best is not None and self.best.value <= self.bound * (1 + PROVEN)

    @property
    def is_over(self) -> bool:
        """Nothing is left to find, or no time; there is always time for a first assignment."""
        return self.best is not None and (self.is_proven or self.request.out_of_time())


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
