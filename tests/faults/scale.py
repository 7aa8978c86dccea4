"""How much the fault tests do: a little in `make test`, all that was promised in `make soak`."""

from __future__ import annotations

import os
import random

IS_SOAK = bool(os.environ.get("PLANNER_SOAK"))


def scaled(small: int, full: int) -> int:
    return full if IS_SOAK else small


def random_moments() -> random.Random:
    """Other moments in each soak, which prints how to repeat them; the same ones in each `make test`."""
    seed = int(os.environ["PLANNER_SOAK"]) if IS_SOAK else 0
    return random.Random(seed)
