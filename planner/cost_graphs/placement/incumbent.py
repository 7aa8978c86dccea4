"""The best placement that a search has come to, and when a bound proves it."""

from __future__ import annotations

from collections.abc import Callable

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.problem import Integers

# Relative: values this close are one, whatever is asked for. Sums of the same numbers in another order differ by less.
EQUAL = 1e-9


class Incumbent:
    """`seconds` is inf and `devices` [n] None until something fits.

    `seconds_of` says what a placement takes, or None where it breaks a rule.
    """

    def __init__(
        self, problem: PlacementProblem, seconds_of: Callable[[PlacementProblem, Integers], float | None]
    ) -> None:
        self.problem, self._seconds_of = problem, seconds_of
        self.devices: Integers | None = None
        self.seconds = float("inf")

    def offer(self, devices: Integers | None) -> None:
        seconds = None if devices is None else self._seconds_of(self.problem, devices)
        if seconds is not None and seconds < self.seconds:
            self.devices, self.seconds = devices, seconds

    @property
    def to_beat(self) -> float:
        """What another has to stay under to count as better; a bound that does not proves this one."""
        return self.seconds * (1 - EQUAL)
