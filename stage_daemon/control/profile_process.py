"""A process that profiles, as its supervisor sees it. It may crash on any node and take nothing with it."""

from __future__ import annotations

import asyncio
import signal
import socket
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from access.files import TlsFiles
from stage_daemon.control.frame_connection import FrameConnection
from stage_daemon.control.worker_process import preload_forkserver, start_with
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.worker.frames import Frame, FrameKind
from stage_daemon.worker.profile import entry

_CONTEXT = get_context("forkserver")


class ProfileProcess:
    """Made by `start`. One reader at a time."""

    def __init__(self, process: BaseProcess, connection: FrameConnection) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    async def start(
        cls,
        device: str,
        request: bytes,
        first: int,
        tls: TlsFiles | None = None,
        operators: tuple[CustomOperator, ...] = (),
        *,
        kind: FrameKind = FrameKind.PROFILE,
    ) -> ProfileProcess:
        """Begins with the distinct node `first`. `request` is a serialized ProfileRequest; as KEEP_BUSY it has the
        process run the graph until it is ended."""
        preload_forkserver()
        ours, theirs = socket.socketpair()
        name = "profile" if kind is FrameKind.PROFILE else "neighbour"
        process = _CONTEXT.Process(target=entry.run, args=(theirs, device, tls, operators), name=name, daemon=True)
        await start_with(process, ours, theirs)
        started = cls(process, FrameConnection(ours))
        try:
            await started._connection.write(Frame(kind=kind, sequence=first, body=request))
        except ConnectionError:
            # It is gone already, which the reader hears.
            pass
        except asyncio.CancelledError:
            await started.end()
            raise
        return started

    async def next_frame(self) -> Frame | None:
        """None once the process has ended."""
        return await self._connection.read()

    def kill(self) -> None:
        """Idempotent until `end`; `next_frame` then gives None."""
        self._process.kill()

    async def end(self) -> int:
        """Kills it if it still runs, and returns its exit code, negative for a signal."""
        self.kill()
        self._connection.close()
        await asyncio.to_thread(self._process.join)
        exit_code = self._process.exitcode or 0
        self._process.close()
        return exit_code


def ending(exit_code: int) -> str:
    """In words."""
    if exit_code < 0:
        return f"its process was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"its process exited with code {exit_code}"
