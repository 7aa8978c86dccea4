"""Numbers for Prometheus: calls by method and outcome, and how long they took."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app

from access.files import Credentials, TlsFiles, WatchedCredentials
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

        With credentials over mutual TLS, with the files' newest certificate for each connection.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidArgument(f"metrics address {address!r}: needs host:port")
        try:
            server = _MetricsServer((host, int(port)), credentials)
        except OSError as error:
            raise Unavailable(f"cannot serve metrics on {address}: {error}") from None
        server.set_app(make_wsgi_app(self.registry))
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return f"{host}:{server.server_port}", stop


class _Handler(WSGIRequestHandler):
    # Of each wait, the handshake's too: the thread of one that says nothing ends.
    timeout = 10.0

    def log_message(self, format: str, *values: object) -> None:
        """Scrapes are no news."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """The handshake is left to the connection's own thread, so that a silent caller holds up no other."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], credentials: WatchedCredentials | None) -> None:
        self._credentials = credentials
        host, port = address
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host.strip("[]"), port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self._credentials is not None:
            context = _context(self._credentials.current(), self._credentials.files)
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller who fails at TLS, or leaves, is nobody's trouble but his own."""


@lru_cache(maxsize=1)
def _context(found: Credentials, files: TlsFiles) -> ssl.SSLContext:
    """`found` tells when the files have changed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=found.authorities_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    return context
