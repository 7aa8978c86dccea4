"""Random draws that are the same on any machine: no library function whose last bit differs decides anything.

This file imports numba: import it where it is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.partition.placement.compiled import compiled
from planner.partition.problem import Floats

# One word.
Random = npt.NDArray[np.uint64]
SEED = 0x9E3779B97F4A7C15
_TABLE = 1 << 12
# Expected order statistics of an exponential distribution: its quantiles by additions and divisions only.
EXPONENTIAL: Floats = np.cumsum(1.0 / np.arange(_TABLE, 0, -1, dtype=np.float64))


@compiled
def draw(random: Random, limit: int) -> int:
    """In [0, limit), from `random`, which it changes: xorshift64."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return int(np.int64((x >> np.uint64(33)) % np.uint64(limit)))
