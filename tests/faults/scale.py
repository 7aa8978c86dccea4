"""How much the fault tests do: a little in `make test`; in `make soak` all that was promised, or a share of it."""

from __future__ import annotations

import os
import random

IS_SOAK = bool(os.environ.get("PLANNER_SOAK"))
SHARE = float(os.environ.get("PLANNER_SOAK_SHARE") or 1.0)
# Of a test that does as much as is asked for: pytest.mark.timeout.
MOST_SECONDS = 7200 if IS_SOAK else 900
# What a soak kills, by the names in tests/faults/streams.py, as often as they are named; nothing stands for all.
KINDS_NAMED = tuple(filter(None, os.environ.get("PLANNER_SOAK_KILLS", "").split(",")))


def scaled(small: int, full: int) -> int:
    return max(1, round(full * SHARE)) if IS_SOAK else small


def random_moments() -> random.Random:
    """Other moments in each soak, which prints how to repeat them; the same ones in each `make test`."""
    seed = int(os.environ["PLANNER_SOAK"]) if IS_SOAK else 0
    return random.Random(seed)


def tell(figure: str) -> None:
    """What a soak found, in one line; pytest shows it with -s."""
    print(f"\nsoak: {figure}", flush=True)
