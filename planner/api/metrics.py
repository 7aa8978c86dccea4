"""Numbers for Prometheus: calls by method and outcome, and how long they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from access.files import WatchedCredentials
from planner.errors import InvalidArgument, Unavailable


class CallMetrics:
    """`outcome` is OK, CANCELLED or the reason of the error that a call was answered with."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter("planner_calls", "gRPC calls answered", ("method", "outcome"), registry=self.registry)
        self._seconds = Histogram("planner_call_seconds", "Until the answer", ("method",), registry=self.registry)

    @contextmanager
    def observe(self, method: str) -> Iterator[Callable[[str], None]]:
        """Yields what takes the outcome of a call that fails."""
        outcome = ["OK"]
        start = time.monotonic()
        try:
            yield lambda reason: outcome.__setitem__(0, reason)
        except (GeneratorExit, asyncio.CancelledError):
            outcome[0] = "CANCELLED"
            raise
        finally:
            name = method.rpartition("/")[2]
            self._calls.labels(name, outcome[0]).inc()
            self._seconds.labels(name).observe(time.monotonic() - start)

    def serve(self, address: str, credentials: WatchedCredentials | None = None) -> tuple[str, Callable[[], None]]:
        """Answers scrapes at "host:port"; returns the address with the port that it got, and what stops it.

        With credentials over mutual TLS, with the files as they are now: the next start takes those that replace them.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidArgument(f"metrics address {address!r}: needs host:port")
        try:
            server, thread = start_http_server(int(port), host, self.registry, **_secured(credentials))
        except OSError as error:
            raise Unavailable(f"cannot serve metrics on {address}: {error}") from None

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return f"{host}:{server.server_port}", stop


def _secured(credentials: WatchedCredentials | None) -> dict[str, Any]:
    if credentials is None:
        return {}
    files = credentials.files
    return {
        "certfile": str(files.certificate),
        "keyfile": str(files.key),
        "client_cafile": str(files.authorities),
        "client_auth_required": True,
    }
