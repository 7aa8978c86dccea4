"""What goes through the pipes between the processes that search a free placement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.problem import Integers

# The steps of a search that has ended: it has come as far as anyone waits for.
ENDED = 1 << 62


class Role(Enum):
    """The first anneals, then proves; the second replaces what some devices hold."""

    ANNEALING = "annealing"
    NEIGHBOURHOODS = "neighbourhoods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A search ends after about `num_steps`, or at the deadline, by time.monotonic(): one clock for all processes."""

    problem: PlacementProblem
    num_steps: int
    deadline_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a search has after so many `steps`: `devices` of the netlist's cells and a bound that is proven.

    None for devices: the process has gone and has no more to say.
    """

    steps: int
    devices: Integers | None = None
    bound_seconds: float = 0.0
    is_proven: bool = False
