"""How long a search may take: in steps, which are the same on any machine, and on the clock, which is not."""

from __future__ import annotations

import time


class Limits:
    """`effort` scales the steps. The clock can only end a search earlier, with the best so far.

    A search asks `out_of_time` now and then; `has_cut` says that the answer was yes.
    """

    def __init__(self, *, effort: float = 1.0, seconds: float | None = None) -> None:
        self.effort = effort
        self.started_seconds = time.monotonic()
        self.deadline_seconds = float("inf") if seconds is None else self.started_seconds + seconds
        self.has_cut = False

    def out_of_time(self) -> bool:
        self.has_cut = self.has_cut or time.monotonic() >= self.deadline_seconds
        return self.has_cut
