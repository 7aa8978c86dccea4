"""The store at which workers meet: on a free port of one interface, for those who know the secret."""

from __future__ import annotations

import pytest

from access.tickets import purpose_key
from stage_daemon.control.rendezvous import Rendezvous
from stage_daemon.errors import Unavailable
from stage_daemon.transport.pipe import PeerGone
from stage_daemon.transport.store import MeetingStore
from tests.waiting import WAIT_SECONDS

KEY = purpose_key(b"secret", "rendezvous")


def reach(rendezvous: Rendezvous, host: str = "127.0.0.1") -> MeetingStore:
    return MeetingStore(host, rendezvous.port, KEY, WAIT_SECONDS)


async def test_workers_meet_there_and_each_store_is_its_own() -> None:
    one, other = await Rendezvous.open("127.0.0.1", b"secret"), await Rendezvous.open("127.0.0.1", b"secret")
    assert one.port != other.port
    first, second = reach(one), reach(one)
    first.set("key", "value")
    assert second.get("key") == b"value"
    assert not reach(other).check(["key"])
    one.close()
    one.close()
    other.close()


async def test_it_listens_on_the_interface_that_it_was_opened_on_only() -> None:
    rendezvous = await Rendezvous.open("127.0.0.1", b"secret")
    with pytest.raises(PeerGone):
        reach(rendezvous, "127.0.0.2")
    rendezvous.close()


async def test_a_host_that_is_not_here() -> None:
    with pytest.raises(Unavailable, match=r"no rendezvous can be opened on 192\.0\.2\.1"):
        await Rendezvous.open("192.0.2.1", b"secret")
