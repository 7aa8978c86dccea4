"""Which microbatches of a stream a lane takes, or go over an edge, where the copies of a stage take them in turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """Every so many, from the number `first` on; microbatches count from 1."""

    first: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.every:
            raise ValueError(f"microbatch {self.first} is the first of every {self.every}, needs 1 to {self.every}")

    def microbatch(self, position: int) -> int:
        """The number of the one that comes after `position` others of its own."""
        return self.first + position * self.every


EVERY = Turn()
