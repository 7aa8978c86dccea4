"""What goes through the pipes between the processes that search a free placement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.partition.placement.problem import PlacementProblem
from planner.partition.problem import Integers


class Role(Enum):
    """The first anneals, then proves; the second replaces what some devices hold."""

    ANNEALING = "annealing"
    NEIGHBOURHOODS = "neighbourhoods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`started_seconds`, `deadline_seconds`: of time.monotonic(), which is one clock for all processes."""

    problem: PlacementProblem
    started_seconds: float
    deadline_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """What a process has reached: `devices` of the netlist's cells, their greatest load, and a bound that is proven."""

    devices: Integers
    value_seconds: float
    bound_seconds: float
