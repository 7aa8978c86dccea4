"""The store through which the workers of one generation find each other.

It lives in the supervisor, so that no worker's death takes it along; each generation gets its own.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

WAIT_SECONDS = 60.0


def import_store() -> None:
    """Takes a second or two, which the first rendezvous need not wait for. Blocks: call it in a thread."""
    importlib.import_module("torch.distributed")


class Rendezvous:
    """`port` is where workers reach the store, on the host that it was opened on."""

    def __init__(self, store: TCPStore, port: int) -> None:
        self._store: TCPStore | None = store
        self.port = port

    @classmethod
    async def open(cls, host: str) -> Rendezvous:
        """Takes a free port. Imports torch, in a thread, where that was not done yet."""
        return await asyncio.to_thread(cls._open, host)

    @classmethod
    def _open(cls, host: str) -> Rendezvous:
        from torch._C._distributed_c10d import TCPStore

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        port = int(listener.getsockname()[1])
        # The store takes the descriptor over: bound here, it listens on this host's interface only.
        store = TCPStore(
            _reachable(host),
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=WAIT_SECONDS),
            master_listen_fd=listener.detach(),
        )
        return cls(store, port)

    def close(self) -> None:
        """Idempotent. Ends the store's server thread."""
        self._store = None


def _reachable(host: str) -> str:
    """The address at which this process reaches what it bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
