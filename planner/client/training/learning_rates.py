"""How the learning rate changes: a function of the step, from 0, to what the optimizer's own rate is multiplied by."""

from __future__ import annotations

import math
from collections.abc import Callable

from planner.errors import InvalidArgument

Schedule = Callable[[int], float]


def constant(warmup_steps: int = 0) -> Schedule:
    """Rises to 1 over the warmup, then stays there."""
    return lambda step: _warmup(step, warmup_steps)


def linear(steps: int, *, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """After the warmup falls to `floor` at step `steps` in a line, and stays there."""
    return _falling(steps, warmup_steps, floor, lambda progress: 1.0 - progress)


def cosine(steps: int, *, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """After the warmup falls to `floor` at step `steps` along half a cosine, and stays there."""
    return _falling(steps, warmup_steps, floor, lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)))


def _falling(steps: int, warmup_steps: int, floor: float, shape: Callable[[float], float]) -> Schedule:
    if not 0 <= warmup_steps < steps:
        raise InvalidArgument(f"a warmup of {warmup_steps} steps of {steps}, needs 0 to {steps - 1}")

    def factor(step: int) -> float:
        if step < warmup_steps:
            return _warmup(step, warmup_steps)
        progress = min((step - warmup_steps) / (steps - warmup_steps), 1.0)
        return floor + (1.0 - floor) * shape(progress)

    return factor


def _warmup(step: int, warmup_steps: int) -> float:
    return min((step + 1) / (warmup_steps + 1), 1.0)
