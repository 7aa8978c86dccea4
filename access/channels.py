"""gRPC over TLS files that change: neither end loads a certificate again by itself.

A server asks for its certificate at each handshake. A client's calls go over a channel made with the newest
certificate; calls that are under way on the channel before it go on there, and it closes once they have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc

from access.addresses import Endpoint
from access.errors import CannotListen
from access.files import Credentials, WatchedCredentials

# After this long a server asks clients to connect again, calls under way excepted, so that a certificate that is no
# longer renewed is noticed.
CONNECTION_AGE_MILLISECONDS = 3_600_000
# A stranger who connects and says nothing is let go; gRPC's own two minutes let thousands of them wait.
HANDSHAKE_SECONDS = 10.0

Options = tuple[tuple[str, Any], ...]
# Notices that the other end is gone without a word, so that calls end, also those that wait for events.
KEEPALIVE: Options = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000))
# Of each server whose clients do. By itself it takes it for an attack where nothing else is sent, and ends the
# connection with all that is under way at the third, as of a session that is idle for a minute.
TAKES_KEEPALIVE: Options = (("grpc.http2.min_ping_interval_without_data_ms", 1_000),)
# Asked at each call, so that a token's file may be replaced too.
TokenSource = Callable[[], str]


def server_options(handshake_seconds: float = HANDSHAKE_SECONDS) -> Options:
    """Of servers over TLS."""
    return (
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MILLISECONDS),
        ("grpc.server_handshake_timeout_ms", int(1000 * handshake_seconds)),
    )


def server_credentials(watched: WatchedCredentials) -> grpc.ServerCredentials:
    """Every client has to show a certificate of the authorities."""
    served = [watched.current()]

    def newest() -> grpc.ServerCertificateConfiguration | None:
        credentials = watched.current()
        if credentials is served[0]:
            return None
        served[0] = credentials
        return _configuration(credentials)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served[0]),
        # None means that nothing has changed; the stubs do not know.
        newest,  # type: ignore[arg-type]
        require_client_authentication=True,
    )


def bind(server: grpc.aio.Server, endpoint: Endpoint, watched: WatchedCredentials | None) -> Endpoint:
    """With the port that it got; in plain text without certificates. Raises CannotListen."""
    try:
        if watched is None:
            port = server.add_insecure_port(str(endpoint))
        else:
            port = server.add_secure_port(str(endpoint), server_credentials(watched))
    except RuntimeError:
        port = 0
    if not port:
        raise CannotListen(
            f"cannot listen on {endpoint}: it is in use or not of this machine; choose another --listen, or port 0"
        )
    return replace(endpoint, port=port)


def open_channel(
    address: str, watched: WatchedCredentials | None, options: Options = (), token: TokenSource | None = None
) -> Any:
    """A grpc.Channel; plain text without certificates, and then without the token."""
    if watched is None:
        return grpc.insecure_channel(address, options=options)
    return RenewedChannel(
        watched, lambda credentials: grpc.secure_channel(address, _client_side(credentials), options=options), token
    )


def open_aio_channel(
    address: str, watched: WatchedCredentials | None, options: Options = (), token: TokenSource | None = None
) -> Any:
    """A grpc.aio.Channel; plain text without certificates, and then without the token."""
    if watched is None:
        return grpc.aio.insecure_channel(address, options=options)
    return RenewedChannel(
        watched, lambda credentials: grpc.aio.secure_channel(address, _client_side(credentials), options=options), token
    )


async def until_disconnected(channel: Any) -> None:
    """Connects, and returns once there is no connection: where it could not be made, or has broken.

    `channel` is one of `open_aio_channel`. The kernel of the other end closes what a process that was killed had open,
    so this tells of its death at once; of a host that is gone, or a cable, it tells nothing.
    """
    connection: grpc.aio.Channel = channel.current() if isinstance(channel, RenewedChannel) else channel
    while True:
        state = connection.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return
        await connection.wait_for_state_change(state)
        if state is grpc.ChannelConnectivity.READY:
            return


class RenewedChannel:
    """What a stub needs of a grpc.Channel or grpc.aio.Channel: its methods, and an end."""

    def __init__(
        self, watched: WatchedCredentials, connect: Callable[[Credentials], Any], token: TokenSource | None = None
    ) -> None:
        self._watched = watched
        self._connect = connect
        self._token = token
        self._lock = threading.Lock()
        self._made_with = watched.current()
        self._newest = connect(self._made_with)
        self._methods: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def unary_unary(self, method: str, *coding: Any, **options: Any) -> Callable[..., Any]:
        return self._method("unary_unary", method, coding, options)

    def unary_stream(self, method: str, *coding: Any, **options: Any) -> Callable[..., Any]:
        return self._method("unary_stream", method, coding, options)

    def stream_unary(self, method: str, *coding: Any, **options: Any) -> Callable[..., Any]:
        return self._method("stream_unary", method, coding, options)

    def stream_stream(self, method: str, *coding: Any, **options: Any) -> Callable[..., Any]:
        return self._method("stream_stream", method, coding, options)

    def current(self) -> Any:
        """The channel that the next call takes."""
        with self._lock:
            self._renew()
            return self._newest

    def close(self, grace: float | None = None) -> Any:
        """To be awaited where the channel is asynchronous."""
        return self._newest.close() if isinstance(self._newest, grpc.Channel) else self._newest.close(grace)

    def _method(self, kind: str, method: str, coding: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self._renew()
                stub = self._methods.get((kind, method))
                if stub is None:
                    stub = self._methods[kind, method] = getattr(self._newest, kind)(method, *coding, **options)
            if self._token is not None:
                more["metadata"] = (*(more.get("metadata") or ()), ("authorization", f"Bearer {self._token()}"))
            return stub(*arguments, **more)

        return call

    def _renew(self) -> None:
        credentials = self._watched.current()
        if credentials is not self._made_with:
            self._made_with, self._newest = credentials, self._connect(credentials)
            self._methods.clear()


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key_pem, credentials.certificate_pem)], root_certificates=credentials.authorities_pem
    )


def _client_side(credentials: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(credentials.authorities_pem, credentials.key_pem, credentials.certificate_pem)
