"""The store at which workers meet: what it keeps, for whom, and that strangers cost nobody anything."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.store import MeetingStore
from stage_daemon.transport.store_server import (
    HELLO_BYTES,
    MAX_NEWCOMERS,
    MAX_VALUE_BYTES,
    NONCE_BYTES,
    REQUEST,
    Operation,
    StoreServer,
)
from tests.random_examples import random_seeds
from tests.waiting import WAIT_SECONDS

KEY = b"key of the deployment"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", KEY)
    yield server
    server.close()


def reach(server: StoreServer, key: bytes = KEY, timeout_seconds: float = WAIT_SECONDS) -> MeetingStore:
    return MeetingStore("127.0.0.1", server.port, key, timeout_seconds)


def stranger(server: StoreServer) -> socket.socket:
    """Has heard the server's nonce."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_SECONDS)
    assert len(connection.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
    return connection


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_it_keeps_what_it_is_given(server: StoreServer) -> None:
    one, other = reach(server), reach(server)
    one.set("empty", b"")
    one.set("large", bytes(MAX_VALUE_BYTES))
    assert (other.get("empty"), other.get("large")) == (b"", bytes(MAX_VALUE_BYTES))
    assert [one.add("count", 2), other.add("count", -3)] == [2, -1]
    assert other.check(["empty", "count"])
    assert not other.check(["empty", "missing"])
    assert [one.delete_key("empty"), one.delete_key("empty")] == [True, False]
    one.close()


def test_who_asks_early_waits_and_holds_up_nobody(server: StoreServer) -> None:
    store, answers = reach(server), list[bytes]()
    waiting = threading.Thread(target=lambda: answers.append(store.get("late")))
    waiting.start()
    assert store.add("others go on", 1) == 1
    reach(server).set("late", b"here")
    waiting.join(WAIT_SECONDS)
    assert answers == [b"here"]


def test_a_wait_ends_at_its_deadline_and_leaves_the_store_usable(server: StoreServer) -> None:
    store = reach(server)
    for seconds in (0.05, 0.0):
        with pytest.raises(WaitTimedOut):
            store.wait(["never"], timedelta(seconds=seconds))
    store.set("never", b"after all")
    assert store.get("never") == b"after all"


def test_a_process_group_of_torch_meets_there(server: StoreServer) -> None:
    received = torch.zeros(4)

    def run(rank: int) -> None:
        store = reach(server)
        group = ProcessGroupGloo(PrefixStore("edge", store), rank, 2, timedelta(seconds=WAIT_SECONDS))
        tensor = torch.ones(4) if rank == 0 else received
        (group.send([tensor], 1, 0) if rank == 0 else group.recv([tensor], 0, 0)).wait()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert torch.equal(received, torch.ones(4))


def test_who_does_not_know_the_key_reads_and_writes_nothing(server: StoreServer) -> None:
    reach(server).set("key", b"value")
    with pytest.raises(PeerGone, match="does not know this worker's deployment"):
        reach(server, b"another key")


def test_a_worker_notices_a_store_that_does_not_know_the_key() -> None:
    """Whoever took the port of a store that has gone learns nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose() -> None:
            connection, _ = listener.accept()
            connection.sendall(bytes(NONCE_BYTES))
            connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
            connection.sendall(bytes(32))

        posing = threading.Thread(target=pose)
        posing.start()
        with pytest.raises(PeerGone, match="is not the deployment's rendezvous"):
            MeetingStore("127.0.0.1", listener.getsockname()[1], KEY, WAIT_SECONDS)
        posing.join(WAIT_SECONDS)


def test_one_that_says_nothing_delays_nobody(server: StoreServer) -> None:
    silent = [stranger(server) for _ in range(MAX_NEWCOMERS)]
    store = reach(server)
    store.set("key", b"value")
    assert closed(silent[0])
    last = stranger(server)
    assert store.get("key") == b"value"
    for connection in (*silent, last):
        connection.close()


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST.pack(99, 0, 0),
        REQUEST.pack(Operation.SET, 1 << 31, 0),
        REQUEST.pack(Operation.SET, 1, MAX_VALUE_BYTES + 1),
        REQUEST.pack(Operation.ADD, 1, 3) + b"k" + b"one",
    ],
)
def test_a_worker_that_asks_for_nonsense_is_let_go(server: StoreServer, request_: bytes) -> None:
    store = reach(server)
    store._connection.sendall(request_)
    assert closed(store._connection)
    reach(server).set("key", b"value")


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(3))
def test_hostile_first_messages_change_nothing(server: StoreServer, seed: int) -> None:
    rng, store = random.Random(seed), reach(server)
    store.set("key", b"value")
    for _ in range(50):
        connection = stranger(server)
        noise = rng.randbytes(rng.choice([0, 1, HELLO_BYTES - 1, HELLO_BYTES, HELLO_BYTES + 1, 500]))
        connection.sendall(noise)
        if len(noise) >= HELLO_BYTES:
            assert closed(connection)
        connection.close()
    assert store.get("key") == b"value"
    assert store.add("count", 1) == 1
