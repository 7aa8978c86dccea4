"""What each end of a framed channel keeps: one lock, one failure, and when the peer was last told of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stage_daemon.errors import Cancelled, DaemonError
from stage_daemon.transport.channel import FailureCallback
from stage_daemon.transport.edge import End
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut

# A sign of life goes out only if none did for this part of a deadline.
QUIET_PART = 0.1


class Lifeline:
    """Guards one end. `changed` is the lock of everything in that end, and wakes whoever waits on it."""

    def __init__(self, end: End, deadline_seconds: float, on_failure: FailureCallback) -> None:
        self.end = end
        self.deadline_seconds = deadline_seconds
        self.changed = threading.Condition()
        self.is_over = False
        self._on_failure = on_failure
        self._failure: DaemonError | None = None
        self._closed = False
        self._peer_seen = False
        self._told_at = 0.0

    def raise_if_down(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Cancelled(f"{self.end.edge}: this end was closed")

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Call with `changed` held. False once the timeout has passed. Raises what took this end down."""
        done = self.changed.wait_for(
            lambda: self._failure is not None or self._closed or condition(), timeout=timeout_seconds
        )
        self.raise_if_down()
        return done

    def told_peer(self) -> None:
        self._told_at = time.monotonic()

    def should_tell_peer(self) -> bool:
        """Call with `changed` held."""
        if self._failure is not None or self._closed or self.is_over:
            return False
        return time.monotonic() - self._told_at >= QUIET_PART * self.deadline_seconds

    def saw_peer(self) -> None:
        with self.changed:
            self._peer_seen = True
            self.changed.notify_all()

    def wait_for_peer(self, timeout_seconds: float) -> None:
        """Returns once the peer has given its first sign of life."""
        with self.changed:
            if not self.wait_until(lambda: self._peer_seen, timeout_seconds):
                raise self.end.timed_out("connecting", timeout_seconds)

    def fail(self, error: DaemonError) -> None:
        """The first failure stays; after `close`, or once all is over, none counts."""
        with self.changed:
            if self._failure is not None or self._closed or self.is_over:
                return
            self._failure = error
            self.changed.notify_all()
        self._on_failure(error)

    def guard(self, action: str, work: Callable[[], None]) -> None:
        """Runs `work`, turning what it raises into this end's failure."""
        try:
            work()
        except WaitTimedOut:
            self.fail(self.end.timed_out(action, self.deadline_seconds))
        except PeerGone as error:
            self.fail(self.end.lost(action, str(error)))
        except DaemonError as error:
            self.fail(error)
        except Exception as error:
            self.fail(self.end.mismatch(action, f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
