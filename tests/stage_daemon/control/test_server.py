"""Addresses: where a daemon listens and what it tells others."""

from __future__ import annotations

from access.addresses import Endpoint
from stage_daemon.control.server import advertised


def test_what_others_are_told() -> None:
    everywhere = Endpoint(host="0.0.0.0", port=5)
    here = Endpoint(host="127.0.0.1", port=5)
    assert str(advertised("", here)) == "127.0.0.1:5"
    assert str(advertised("node7", everywhere)) == "node7:5"
    assert str(advertised("node7:0", everywhere)) == "node7:5"
    assert str(advertised("gateway:99", everywhere)) == "gateway:99"
    assert advertised("", everywhere).host not in ("0.0.0.0", "")
