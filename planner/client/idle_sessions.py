"""Sessions that a run has left open for the next one with the same workers.

Opening one takes two calls to daemons, two threads and two connections to workers: as much CPU as fifty near-empty
microbatches.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque

from planner.client.session import Session

# Whom a daemon refuses a session, because its caller has too many, is told to ask again after as long.
IDLE_SECONDS = 5.0
# Of runs at the same time.
_MOST_IDLE = 4

# Since when it has been idle, and the session.
_Idle = tuple[float, Session]


class IdleSessions:
    """Of one route. Threads may share it. What is idle for too long is closed by a thread that is there meanwhile."""

    def __init__(self) -> None:
        # The longest idle is the first.
        self._idle: deque[_Idle] = deque()
        self._changed = threading.Condition()
        self._is_watched = False
        self._is_closed = False
        # Where the process ends before they have been idle for too long.
        weakref.finalize(self, _close_all, self._idle)

    def take(self, ticket: str) -> Session | None:
        """One that a daemon would let in today too, and that can go on; None where there is none."""
        while True:
            with self._changed:
                if not self._idle:
                    return None
                _, session = self._idle.pop()
            if session.ticket == ticket and session.can_idle():
                session.begin_run()
                return session
            session.close(is_over=True)

    def give_back(self, session: Session) -> None:
        """After a run. Closes it where it cannot stay open."""
        if not self._keep(session):
            session.close(is_over=True)

    def close(self) -> None:
        """Those that are idle, and from now on each when its run is over."""
        with self._changed:
            self._is_closed = True
            idle = deque(self._idle)
            self._idle.clear()
            self._changed.notify_all()
        _close_all(idle)

    def _keep(self, session: Session) -> bool:
        if not session.can_idle():
            return False
        with self._changed:
            if self._is_closed or len(self._idle) == _MOST_IDLE:
                return False
            self._idle.append((time.monotonic(), session))
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="idle-sessions", daemon=True).start()
        return True

    def _watch(self) -> None:
        """Nobody wakes it when a session is taken or given back."""
        while (overdue := self._next_overdue()) is not None:
            overdue.close(is_over=True)

    def _next_overdue(self) -> Session | None:
        """Waits for it; None once no session is idle."""
        with self._changed:
            while self._idle:
                since, session = self._idle[0]
                remaining_seconds = since + IDLE_SECONDS - time.monotonic()
                if remaining_seconds <= 0:
                    self._idle.popleft()
                    return session
                self._changed.wait(remaining_seconds)
            self._is_watched = False
            return None


def _close_all(idle: deque[_Idle]) -> None:
    while True:
        try:
            _, session = idle.pop()
        except IndexError:
            # Whoever watches them may have taken the last.
            return
        session.close(is_over=True)
