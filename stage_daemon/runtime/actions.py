"""What a lane does for each microbatch, in order: the schedule as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TakeInput:
    """Takes the next microbatch that a client sent."""


@dataclass(frozen=True, slots=True)
class Receive:
    edge_id: int


@dataclass(frozen=True, slots=True)
class Forward:
    stage: int


@dataclass(frozen=True, slots=True)
class Send:
    edge_id: int


@dataclass(frozen=True, slots=True)
class GiveOutput:
    """Hands the result back to the client."""


Action = TakeInput | Receive | Forward | Send | GiveOutput
Lane = tuple[Action, ...]
