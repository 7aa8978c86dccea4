"""One thread that keeps every channel of a worker alive, whatever its stages are busy with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

# Chances to give a sign of life within one deadline.
_BEATS_PER_DEADLINE = 5


class KeptAlive(Protocol):
    def keep_alive(self) -> None: ...


class Pulse:
    def __init__(self, channels: Sequence[KeptAlive], deadline_seconds: float) -> None:
        self._channels = channels
        self._interval_seconds = deadline_seconds / _BEATS_PER_DEADLINE
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            for channel in self._channels:
                channel.keep_alive()
