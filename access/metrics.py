"""Numbers for Prometheus: calls by method and outcome, how long they took, and how a service stands at each scrape."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from access.addresses import Endpoint, parse_endpoint
from access.errors import CannotListen
from access.files import Credentials, TlsFiles, WatchedCredentials

log = structlog.get_logger(__name__)

# A service that cannot say how it stands for so long is scraped without.
READ_SECONDS = 5.0


class ServiceMetrics:
    """One service's numbers, whose names begin with `service`; what else it counts registers at `registry`."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self._calls = Counter(f"{service}_calls", "gRPC calls answered", ("method", "outcome"), registry=self.registry)
        self._seconds = Histogram(f"{service}_call_seconds", "Until the answer", ("method",), registry=self.registry)

    def observe_state(self, read: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        """From now on each scrape has what `read` gives then; it is called on the event loop that runs now."""
        self.registry.register(_StateCollector(self._service, read, asyncio.get_running_loop()))

    @contextmanager
    def observe(self, method: str) -> Iterator[Callable[[str], None]]:
        """Counts a call; yields what takes the reason of one that fails."""
        name = method.rpartition("/")[2]

        def count(outcome: str, seconds: float) -> None:
            self._calls.labels(name, outcome).inc()
            self._seconds.labels(name).observe(seconds)

        with observed(count) as fails:
            yield fails

    def serve(self, address: str, credentials: WatchedCredentials | None = None) -> tuple[str, Callable[[], None]]:
        """Answers scrapes at "host:port"; returns the address with the port that it got, and what stops it.

        With credentials over mutual TLS, with the files' newest certificate for each connection. Raises WrongAddress,
        CannotListen where the address cannot be had.
        """
        endpoint = parse_endpoint(address)
        try:
            server = _MetricsServer(endpoint, credentials)
        except OSError as error:
            raise CannotListen(f"cannot serve metrics on {address}: {error}") from None
        server.set_app(make_wsgi_app(self.registry))
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return str(replace(endpoint, port=server.server_port)), stop


@contextmanager
def observed(count: Callable[[str, float], None]) -> Iterator[Callable[[str], None]]:
    """Counts an outcome and seconds: OK, CANCELLED, or the reason that is told to what this yields."""
    outcome = ["OK"]
    start = time.monotonic()
    try:
        yield lambda reason: outcome.__setitem__(0, reason)
    except (GeneratorExit, asyncio.CancelledError):
        outcome[0] = "CANCELLED"
        raise
    finally:
        count(outcome[0], time.monotonic() - start)


class _StateCollector(Collector):
    def __init__(
        self, service: str, read: Callable[[], Awaitable[Iterable[Metric]]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._service = service
        self._read = read
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Called in a thread of the server that answers scrapes."""
        known = GaugeMetricFamily(f"{self._service}_state_known", "1 where how it stands could be read for this scrape")
        reading = asyncio.run_coroutine_threadsafe(self._in_time(), self._loop)
        metrics: tuple[Metric, ...] = ()
        try:
            metrics = tuple(reading.result())
        except Exception as error:
            # A database that is away, say: what is counted in memory is scraped all the same.
            log.warning("a scrape goes without how the service stands", error=f"{type(error).__name__}: {error}")
        known.add_metric((), float(bool(metrics)))
        yield known
        yield from metrics

    async def _in_time(self) -> Iterable[Metric]:
        async with asyncio.timeout(READ_SECONDS):
            return await self._read()


class _Handler(WSGIRequestHandler):
    # Of each wait, the handshake's too: the thread of one that says nothing ends.
    timeout = 10.0

    def log_message(self, format: str, *values: object) -> None:
        """Scrapes are no news."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """The handshake is left to the connection's own thread, so that a silent caller holds up no other."""

    daemon_threads = True

    def __init__(self, endpoint: Endpoint, credentials: WatchedCredentials | None) -> None:
        self._credentials = credentials
        if ":" in endpoint.host:
            self.address_family = socket.AF_INET6
        super().__init__((endpoint.host, endpoint.port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self._credentials is not None:
            context = _context(self._credentials.current(), self._credentials.files)
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller who fails at TLS, or leaves, is nobody's trouble but his own."""


@lru_cache(maxsize=1)
def _context(credentials: Credentials, files: TlsFiles) -> ssl.SSLContext:
    """`credentials` tells when the files have changed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=credentials.authorities_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    if files.revoked is not None:
        context.load_verify_locations(files.revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context
