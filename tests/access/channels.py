"""Channels whose client asks all the time whether the server is still there."""

from __future__ import annotations

import grpc

# No more than half as often as a server has to take it, so that what is late makes none too early.
PING_SECONDS = 2.0
# A server that does not expect them takes two.
NUM_PINGS = 5


def asking_channel(address: str) -> grpc.aio.Channel:
    """As often as PING_SECONDS, where the SDK asks three times a minute."""
    options = (
        ("grpc.keepalive_time_ms", int(1000 * PING_SECONDS)),
        ("grpc.http2.max_pings_without_data", 0),
    )
    return grpc.aio.insecure_channel(address, options=options)
