"""The store through which the workers of one generation find each other.

It lives in the supervisor, so that no worker's death takes it along; each generation gets its own.
"""

from __future__ import annotations

import asyncio

from access.tickets import purpose_key
from stage_daemon.errors import Unavailable
from stage_daemon.transport.store_server import StoreServer


class Rendezvous:
    """`port` is where workers reach the store, on the host that it was opened on."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self.port = server.port

    @classmethod
    async def open(cls, host: str, secret: bytes) -> Rendezvous:
        """Takes a free port, for workers that know the deployment's secret. Raises Unavailable."""
        try:
            return cls(await asyncio.to_thread(StoreServer, host, purpose_key(secret, "rendezvous")))
        except OSError as error:
            raise Unavailable(f"no rendezvous can be opened on {host}: {error}") from None

    def close(self) -> None:
        """Idempotent. Ends the store's thread."""
        self._server.close()
