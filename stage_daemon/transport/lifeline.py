"""What each end of an edge between workers keeps of its peer: signs of life, and the one failure that ends the edge.

Signs of life have a connection of their own, so that neither a long forward nor a payload on its way holds them up, and
no thread but the pulse's ever looks at them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from stage_daemon.errors import Cancelled, DaemonError
from stage_daemon.transport.channel import FailureCallback
from stage_daemon.transport.edge import End
from stage_daemon.transport.sockets import Connection

_BEAT = b"."
_READ_BYTES = 4096


class Lifeline:
    """`wake` ends whatever wait this end is in; it is called when the end has failed or was closed."""

    def __init__(
        self,
        end: End,
        deadline_seconds: float,
        on_failure: FailureCallback,
        connection: Connection,
        wake: Callable[[], None],
    ) -> None:
        self.end = end
        self.deadline_seconds = deadline_seconds
        # What this end does that a silent or lost peer keeps it from.
        self.action = "waiting for a receipt" if end.is_source else "receiving"
        # END was sent: a peer that took it all may leave first, and who waits for its receipts judges whether it did.
        self.is_ending = False
        # END was received: nothing can be lost any more.
        self.is_over = False
        self._on_failure = on_failure
        self._connection = connection
        self._wakes = [wake]
        self._lock = threading.Lock()
        self._failure: DaemonError | None = None
        self._closed = False
        self._seen_at = time.monotonic()
        self._expecting_since: float | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def also_wake(self, wake: Callable[[], None]) -> None:
        """Before the pulse beats."""
        self._wakes.append(wake)

    def raise_if_down(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Cancelled(f"{self.end.edge}: this end was closed")

    def fail(self, error: DaemonError) -> None:
        """The first failure stays; after `close`, or once all is over, none counts."""
        with self._lock:
            if self._failure is not None or self._closed or self.is_over:
                return
            self._failure = error
        self._wake()
        self._on_failure(error)

    def raise_failed(self, error: DaemonError) -> NoReturn:
        """Fails this end, and raises what it failed of: this error, or an earlier one."""
        self.fail(error)
        self.raise_if_down()
        raise error

    def raise_lost(self, action: str, cause: object) -> NoReturn:
        """The connection broke; where this end was down already, that is why."""
        self.raise_if_down()
        self.raise_failed(self.end.lost(action, str(cause)))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._wake()

    def tell(self) -> None:
        """Gives a sign of life; where so many wait unread that no more fits, one more says nothing."""
        with contextlib.suppress(OSError):
            self._connection.send(_BEAT, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def hear(self) -> bool:
        """Takes the signs that have come. False once the peer has closed its end, which fails this one."""
        try:
            signs = self._connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError as error:
            return self._lost(str(error))
        if not signs:
            return self._lost("it closed the connection")
        self._seen_at = time.monotonic()
        return True

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """A wait that nothing ends but what it is for: where it lasts longer than the deadline, `check` fails this end,
        whatever signs the peer gives."""
        self._expecting_since = time.monotonic()
        try:
            yield
        finally:
            self._expecting_since = None

    def check(self) -> None:
        """Fails this end if the peer has been silent, or what it has announced has not come, for longer than the
        deadline. Call `hear` before."""
        since = self._expecting_since
        oldest = self._seen_at if since is None else min(self._seen_at, since)
        if time.monotonic() - oldest > self.deadline_seconds:
            self.fail(self.end.timed_out(self.action, self.deadline_seconds))

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()

    def _lost(self, cause: str) -> bool:
        if not self.is_ending:
            self.fail(self.end.lost(self.action, cause))
        return False
