"""Addresses: where a daemon listens and what it tells others."""

from __future__ import annotations

import pytest

from stage_daemon.control.server import Endpoint, advertised, parse_endpoint
from stage_daemon.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:80", "::1", 80), ("node7:9", "node7", 9)]
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host=host, port=port)
    assert str(endpoint) == text


@pytest.mark.parametrize("text", ["node:http", "node:70000", "node:-1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write host:port"):
        parse_endpoint(text)


def test_what_others_are_told() -> None:
    everywhere = Endpoint(host="0.0.0.0", port=0)
    here = Endpoint(host="127.0.0.1", port=0)
    assert str(advertised("", here, 5)) == "127.0.0.1:5"
    assert str(advertised("node7", everywhere, 5)) == "node7:5"
    assert str(advertised("gateway:99", everywhere, 5)) == "gateway:99"
    assert advertised("", everywhere, 5).host not in ("0.0.0.0", "")
