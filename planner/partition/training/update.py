"""What ends a training step once gradients are summed: their norms, which all devices agree on, and the optimizer.

Both are arithmetic on all trained elements, and so as quick as the device's memory; no profile measures them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSeconds:
    norms: float
    optimizer: float

    @property
    def both(self) -> float:
        return self.norms + self.optimizer


def update_seconds(gradient_bytes: int, optimizer_bytes: int, memory_bytes_per_second: float) -> UpdateSeconds:
    """Norms read each gradient. The optimizer reads it again, reads and writes its weight, and its own state."""
    return UpdateSeconds(
        norms=gradient_bytes / memory_bytes_per_second,
        optimizer=(3 * gradient_bytes + 2 * optimizer_bytes) / memory_bytes_per_second,
    )
