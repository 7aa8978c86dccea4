"""What ends a training step once gradients are summed: their norms, which all devices agree on, and the optimizer.

Norms and optimizers are arithmetic on all trained elements, and so as quick as a profile measured them, else as the
device's memory. Between them each device sends its norms to the first one and waits for the answer, two small messages
over the links.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSeconds:
    norms: float
    optimizer: float

    @property
    def both(self) -> float:
        return self.norms + self.optimizer


def update_seconds(
    gradient_bytes: int, optimizer_bytes: int, norm_bytes_per_second: float, optimizer_bytes_per_second: float
) -> UpdateSeconds:
    """Norms read each gradient. The optimizer reads it again, reads and writes its weight, and its own state."""
    return UpdateSeconds(
        norms=gradient_bytes / norm_bytes_per_second,
        optimizer=(3 * gradient_bytes + 2 * optimizer_bytes) / optimizer_bytes_per_second,
    )


def agreement_seconds(to_first: Collection[float], from_first: Collection[float]) -> float:
    """Of a message from each other device to the first, and back, to a receiver that waits; no others: nothing to agree
    on."""
    return max(to_first, default=0.0) + max(from_first, default=0.0)


def seconds_after_passes(updates: Collection[UpdateSeconds], agreement: float) -> float:
    """From the last pass of all devices to the step's end: no optimizer steps before all norms are there.

    `updates` are of the devices that train something; without any, nothing is left to do.
    """
    if not updates:
        return 0.0
    return max(one.norms for one in updates) + agreement + max(one.optimizer for one in updates)
