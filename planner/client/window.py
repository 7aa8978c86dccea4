"""How many microbatches a run has in flight.

With more of them each process finds several when it wakes, and wakes less often. That is worth something where a
microbatch takes little longer than waking does, and there more of them are soon answered. Large ones only fall out of
the caches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.client.microbatches import Item
from planner.client.session import Arrival
from planner.client.tensors import RawTensor

# What those beyond the usual ones may add to the time that a microbatch is on its way.
_QUEUE_SECONDS = 4e-3
_MOST = 64
_MOST_BYTES = 1 << 20


class RunWindow(Protocol):
    """Asked before each microbatch, and told of each result with what was sent last."""

    @property
    def size(self) -> int: ...
    def answered(self, arrival: Arrival, sent: Sequence[Item]) -> None: ...


class Window:
    """At least `usual`; up to 64 where that many are answered within 4 ms, and are 1 MiB at most."""

    def __init__(self, usual: int) -> None:
        self.size = self._usual = usual
        self._begun, self._num_answered = time.monotonic(), 0

    def answered(self, arrival: Arrival, sent: Sequence[Item]) -> None:
        self._num_answered += 1
        if self._num_answered < self.size:
            return
        now = time.monotonic()
        in_time = _QUEUE_SECONDS * self._num_answered / max(now - self._begun, 1e-9)
        num_bytes = sum(len(item.data) for item in sent if isinstance(item, RawTensor))
        num_bytes += 0 if arrival.payload is None else arrival.payload.nbytes
        fitting = min(int(in_time), _MOST_BYTES // max(num_bytes, 1), 2 * self.size, _MOST)
        self.size = max(self._usual, fitting)
        self._begun, self._num_answered = now, 0


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """As many as the caller asks for."""

    size: int

    def answered(self, arrival: Arrival, sent: Sequence[Item]) -> None:
        pass
