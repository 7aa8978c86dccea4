"""Addresses: read, written, refused."""

from __future__ import annotations

import pytest

from access.addresses import Endpoint, check_targets, parse_endpoint
from access.errors import WrongAddress


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:80", "::1", 80), ("node7:65535", "node7", 65535), (":9", "", 9)],
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host=host, port=port)
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node",
        "node:",
        "node:http",
        "node:65536",
        "node:-1",
        "node:" + "9" * 5000,
        "node:\N{SUPERSCRIPT TWO}",
        "::1:80",
        "[::1]",
        "[node]:1",
        "a b:1",
        "http://node:1",
        "me@node:1",
        "node:1 ",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(WrongAddress, match="needs host:port, as 127") as caught:
        parse_endpoint(text)
    assert caught.value.message.startswith(f"address {text[:80]!r}: ")


@pytest.mark.parametrize(("text", "host"), [("node", "node"), ("[::1]", "::1"), ("127.0.0.1", "127.0.0.1")])
def test_a_port_may_be_left_out_where_there_is_another(text: str, host: str) -> None:
    assert parse_endpoint(text, 7) == Endpoint(host=host, port=7)
    assert parse_endpoint(f"{text}:8", 7).port == 8


@pytest.mark.parametrize("text", ["a:1", "a:1,[::1]:2", "dns:///planner:50051", "unix:/run/planner", "unix:x,b:1"])
def test_servers_to_connect_to(text: str) -> None:
    check_targets(text)


@pytest.mark.parametrize("text", ["", "a", "a:1,", "a:1,b", ":1", "a:0", "unix:", "dns:///a", "ipv4:1.2.3.4:1"])
def test_what_nobody_can_connect_to_is_refused(text: str) -> None:
    with pytest.raises(WrongAddress):
        check_targets(text)
