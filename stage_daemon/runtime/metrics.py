"""Where a stage's time goes, to lay the measured timeline over the predicted one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class StageMetrics:
    """Since the stage started. Written by its lane only; a reader may see one field newer than another."""

    num_microbatches: int = 0
    busy_seconds: float = 0.0
    # Waiting for an earlier stage, or for a client.
    receive_wait_seconds: float = 0.0
    # Waiting for a later stage, or for a client, to take something.
    send_wait_seconds: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    # When the forward that is now under way began, on the monotonic clock.
    forward_since: float | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.forward_since = started = time.monotonic()
        try:
            yield
        finally:
            self.forward_since = None
            self.busy_seconds += time.monotonic() - started

    @contextmanager
    def receiving(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.receive_wait_seconds += time.monotonic() - started

    @contextmanager
    def sending(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.send_wait_seconds += time.monotonic() - started
