"""The store at which workers meet: on a free port of one interface."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import DistError, TCPStore

from stage_daemon.control.rendezvous import Rendezvous, _reachable, import_store

pytestmark = pytest.mark.services


async def test_workers_meet_there_and_each_store_is_its_own() -> None:
    import_store()
    one, other = await Rendezvous.open("127.0.0.1"), await Rendezvous.open("127.0.0.1")
    assert one.port != other.port
    first, second = (TCPStore("127.0.0.1", one.port, is_master=False) for _ in range(2))
    first.set("key", "value")
    assert second.get("key") == b"value"
    elsewhere = TCPStore("127.0.0.1", other.port, is_master=False)
    assert not elsewhere.check(["key"])
    one.close()
    one.close()
    other.close()


async def test_it_listens_on_the_interface_that_it_was_opened_on_only() -> None:
    rendezvous = await Rendezvous.open("127.0.0.1")
    with pytest.raises(DistError):
        TCPStore("127.0.0.2", rendezvous.port, is_master=False, timeout=timedelta(seconds=0.5))
    rendezvous.close()


@pytest.mark.parametrize(
    ("host", "reached_at"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("node7", "node7")]
)
def test_what_listens_everywhere_is_reached_at_the_loopback(host: str, reached_at: str) -> None:
    assert _reachable(host) == reached_at
