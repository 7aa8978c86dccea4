"""The one thread that gives and takes a worker's signs of life, whatever its stages are busy with."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence

from stage_daemon.transport.lifeline import Lifeline

# Chances to give a sign of life within one deadline.
_BEATS_PER_DEADLINE = 5


class Pulse:
    """A peer that closes its connection, as any death does, is noticed at once; a silent one at its deadline."""

    def __init__(self, lifelines: Sequence[Lifeline], deadline_seconds: float) -> None:
        self._lifelines = {lifeline.fileno(): lifeline for lifeline in lifelines}
        self._interval_seconds = deadline_seconds / _BEATS_PER_DEADLINE
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        if self._lifelines:
            self._thread.start()

    def stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        poller = select.poll()
        for number in self._lifelines:
            poller.register(number, select.POLLIN)
        while not self._stopped:
            for lifeline in self._lifelines.values():
                lifeline.tell()
            self._listen(poller, time.monotonic() + self._interval_seconds)
            for lifeline in self._lifelines.values():
                lifeline.check()

    def _listen(self, poller: select.poll, until: float) -> None:
        while (remaining := until - time.monotonic()) > 0:
            for number, _ in poller.poll(1e3 * remaining):
                if not self._lifelines[number].hear():
                    poller.unregister(number)
                    del self._lifelines[number]
