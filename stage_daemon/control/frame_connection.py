"""The event loop's end of the socketpair to a worker: whole frames, whoever stops waiting for them."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from access.buffers import drop_sent
from stage_daemon.worker.frames import HEAD, Frame, FrameKind

# What is read at once: several small frames, or a piece of a large one.
_READ_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Waiting:
    frame: Frame
    before: Callable[[], None]
    written: asyncio.Future[None]


class FrameConnection:
    """Use it from one event loop, with one reader. The worker's end blocks: see worker.frames."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        # Read, and not taken yet.
        self._content = bytearray()
        # While `_writing` runs, the first is under way.
        self._waiting: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, frame: Frame, before: Callable[[], None] = lambda: None) -> None:
        """Returns once the kernel has it all; frames go in the order of the calls. `before` is called just before.

        When the caller is cancelled, a frame that has begun is finished, and one that has not is left out. Raises
        ConnectionError once the other end is gone.
        """
        if self._writing is None:
            rest = self._begin(frame, before)
            if not rest:
                return
            self._writing = self._loop.create_task(self._finish(rest))
        waiting = _Waiting(frame, before, self._loop.create_future())
        self._waiting.append(waiting)
        await waiting.written

    async def read(self) -> Frame | None:
        """The next frame; None once the other end is gone."""
        try:
            kind, session_id, sequence, length = HEAD.unpack(await self._take(HEAD.size))
            body = await self._take(length)
        except ConnectionError:
            return None
        return Frame(kind=FrameKind(kind), session_id=session_id, sequence=sequence, body=body)

    def close(self) -> None:
        """Nothing is written any more; who waits for that is told. Idempotent."""
        if self._writing is not None:
            self._writing.cancel()
        self._fail(ConnectionResetError("closed"))
        if self._connection.fileno() >= 0:
            # A task that is cancelled would do it later, when the descriptor may be another connection's.
            self._loop.remove_writer(self._connection)
            self._loop.remove_reader(self._connection)
        self._connection.close()

    def _begin(self, frame: Frame, before: Callable[[], None]) -> list[memoryview]:
        """Gives what the kernel does not take at once."""
        before()
        rest = [memoryview(part) for part in (frame.head(), frame.body)]
        try:
            num_sent = self._connection.sendmsg(rest)
        except BlockingIOError:
            return rest
        drop_sent(rest, num_sent)
        return rest

    async def _finish(self, rest: list[memoryview]) -> None:
        """The first that waits, and then those behind it."""
        try:
            while True:
                for part in rest:
                    await self._loop.sock_sendall(self._connection, part)
                waiting = self._waiting.popleft()
                if not waiting.written.done():
                    waiting.written.set_result(None)
                while self._waiting and self._waiting[0].written.cancelled():
                    self._waiting.popleft()
                if not self._waiting:
                    self._writing = None
                    return
                rest = self._begin(self._waiting[0].frame, self._waiting[0].before)
        except OSError as error:
            self._writing = None
            self._fail(ConnectionAbortedError(str(error)))

    def _fail(self, error: ConnectionError) -> None:
        while self._waiting:
            written = self._waiting.popleft().written
            if not written.done():
                written.set_exception(error)

    async def _take(self, num_bytes: int) -> bytes:
        if num_bytes > _READ_BYTES:
            return await self._take_large(num_bytes)
        while len(self._content) < num_bytes:
            self._content += await self._receive(_READ_BYTES)
        content = bytes(self._content[:num_bytes])
        del self._content[:num_bytes]
        return content

    async def _take_large(self, num_bytes: int) -> bytes:
        pieces = [bytes(self._content[:num_bytes])]
        del self._content[:num_bytes]
        num_bytes -= len(pieces[0])
        while num_bytes:
            pieces.append(await self._receive(min(num_bytes, _PIECE_BYTES)))
            num_bytes -= len(pieces[-1])
        return b"".join(pieces)

    async def _receive(self, most_bytes: int) -> bytes:
        content = await self._loop.sock_recv(self._connection, most_bytes)
        if not content:
            raise ConnectionResetError("the other end is gone")
        # Where there is always something to read, others have their turn all the same.
        await asyncio.sleep(0)
        return content
