"""Strangers who connect to every port and say hostile things first."""

from __future__ import annotations

import collections
import contextlib
import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.waiting import WAIT_SECONDS

# Their number only sends faster. Each keeps half of its connections open until it has made so many others.
NUM_STRANGERS = 8
KEPT_OPEN = 16

# (family, address) as sockets take them.
Target = tuple[int, str | tuple[str, int]]


def say_hostile_things(targets: Sequence[Target], count: int, seed: int) -> None:
    """`count` first messages, as many to each target as to any other. Raises where a port takes no connection."""
    with ThreadPoolExecutor(NUM_STRANGERS) as pool:
        shares = [len(range(number, count, NUM_STRANGERS)) for number in range(NUM_STRANGERS)]
        seeds = [seed * NUM_STRANGERS + number for number in range(NUM_STRANGERS)]
        list(pool.map(_stranger, [targets] * NUM_STRANGERS, shares, seeds))


def _stranger(targets: Sequence[Target], count: int, seed: int) -> None:
    rng, sockets = random.Random(seed), collections.deque[socket.socket]()
    for number in range(count):
        family, address = targets[number % len(targets)]
        connection = socket.socket(family)
        connection.settimeout(WAIT_SECONDS)
        connection.connect(address)
        sockets.append(connection)
        # Whoever has heard enough may end the connection before all is said.
        with contextlib.suppress(ConnectionError):
            connection.sendall(_message(rng))
        if rng.random() < 0.5:
            sockets.pop().close()
        elif len(sockets) > KEPT_OPEN:
            sockets.popleft().close()
    for connection in sockets:
        connection.close()


def _message(rng: random.Random) -> bytes:
    """Nothing, noise, the beginnings of protocols that are spoken here, and of others."""
    greetings = (b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 33)
    return rng.choice(greetings) + rng.randbytes(rng.choice((0, 1, 16, 33, 48, 57, 1000)))
