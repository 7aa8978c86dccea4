"""Results on their way to clients: each session gets its own, in order, whatever the other sessions do."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from stage_daemon.errors import Conflict, DaemonError, ResourceExhausted, ResultsNotRead
from stage_daemon.worker.frames import MAX_WAITING_BYTES, MAX_WAITING_RESULTS

# Until a caller whose sessions are too many may ask again: others of his end meanwhile.
RETRY_SECONDS = 5.0


class Session:
    """Results of one client, in the order that they were delivered; then the error that ended it, if one did."""

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._error: DaemonError | None = None
        self._wake = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def put(self, result: bytes) -> bool:
        """False where too much waits already."""
        full = len(self._waiting) >= MAX_WAITING_RESULTS or self._waiting_bytes + len(result) > MAX_WAITING_BYTES
        if full and self._waiting:
            return False
        self._waiting.append(result)
        self._waiting_bytes += len(result)
        self._wake.set()
        return True

    def end(self, error: DaemonError) -> None:
        """What waits is still read; then the reader gets the error."""
        self._error = self._error or error
        self._wake.set()

    async def results(self) -> AsyncIterator[bytes]:
        """Serialized ReceiveOutputsResponse messages. One reader."""
        while True:
            while self._waiting:
                result = self._waiting.popleft()
                self._waiting_bytes -= len(result)
                yield result
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()


class Sessions:
    """The open sessions of one deployment."""

    def __init__(self, deployment_id: str) -> None:
        self._deployment_id = deployment_id
        self._open: dict[int, Session] = {}
        self._error: DaemonError | None = None

    def open(self, session_id: int) -> Session:
        if self._error is not None:
            raise self._error
        if session_id in self._open:
            raise Conflict(
                f"session {session_id} of {self._deployment_id} is open already; give each session an id of its own",
                session_id=session_id,
            )
        session = self._open[session_id] = Session(session_id)
        return session

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_waiting_results(self) -> int:
        """That their clients have not read."""
        return sum(session.num_waiting for session in self._open.values())

    @property
    def waiting_bytes(self) -> int:
        return sum(session.waiting_bytes for session in self._open.values())

    def close(self, session: Session) -> None:
        """Its client has left; what still comes for it is dropped."""
        if self._open.get(session.session_id) is session:
            del self._open[session.session_id]

    def is_open(self, session_id: int) -> bool:
        return session_id in self._open

    def deliver(self, session_id: int, result: bytes) -> None:
        """Never waits: a client that does not read loses its session and holds up nobody."""
        session = self._open.get(session_id)
        if session is not None and not session.put(result):
            self.end_unread(session_id)

    def end_unread(self, session_id: int) -> None:
        """Its client does not read, here or at the worker's door."""
        session = self._open.get(session_id)
        if session is None:
            return
        self.close(session)
        session.end(
            ResultsNotRead(
                f"session {session_id}: more than {MAX_WAITING_RESULTS} results or {MAX_WAITING_BYTES} bytes waited to "
                "be read; read results while sending inputs, with fewer microbatches in flight",
                session_id=session_id,
            )
        )

    def end_all(self, error: DaemonError) -> None:
        self._error = error
        for session in self._open.values():
            session.end(error)


class CallersSessions:
    """How many sessions each caller has on this daemon, over all deployments."""

    def __init__(self, most_per_caller: int) -> None:
        self._most_per_caller = most_per_caller
        self._streams: dict[str, Counter[tuple[str, int]]] = {}

    @contextmanager
    def hold(self, caller: str, deployment_id: str, session_id: int) -> Iterator[bool]:
        """For each stream of the session, which counts once; not for a caller whom nobody knows.

        Yields whether the session may stay open while it is idle: half of a caller's sessions are for what runs.
        Raises ResourceExhausted.
        """
        if not caller:
            yield True
            return
        streams, session = self._streams.setdefault(caller, Counter()), (deployment_id, session_id)
        if session not in streams and len(streams) >= self._most_per_caller:
            raise ResourceExhausted(
                f"{caller} has {len(streams)} sessions on this daemon, and one caller may have {self._most_per_caller} "
                "(STAGE_DAEMON_MAX_SESSIONS_PER_CALLER): close some, or send more microbatches in each",
                most=self._most_per_caller,
                retry_after_seconds=RETRY_SECONDS,
            )
        streams[session] += 1
        try:
            yield 2 * len(streams) <= self._most_per_caller
        finally:
            streams[session] -= 1
            if not streams[session]:
                del streams[session]
            if not streams:
                del self._streams[caller]
