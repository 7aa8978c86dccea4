"""Ways to generate the same tokens, in turns, and a table of how long each takes a token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def compared(
    ways: Mapping[str, Callable[[], Any]], windows: int, num_tokens: int, check: Callable[[list[Any]], None]
) -> None:
    """Prints medians of the windows but for a first one, in which each way warms up. `num_tokens` are those of one
    call; `check` is given what the ways answer in a window, in their order."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for window in range(windows + 1):
        answers = []
        for name, way in ways.items():
            started = time.perf_counter()
            answers.append(way())
            if window:
                taken[name].append(time.perf_counter() - started)
        check(answers)
    first = statistics.median(next(iter(taken.values())))
    print(f"{'':<28}{'ms a token':>12}{'tokens/s':>12}{'of the first':>14}")
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"{name:<28}{median / num_tokens * 1e3:>12.2f}{num_tokens / median:>12.0f}{first / median:>14.2f}")
