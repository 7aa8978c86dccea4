"""What a scrape sees."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from access.files import WatchedCredentials
from planner.api.metrics import CallMetrics
from planner.errors import InvalidArgument, Unavailable
from tests.access.certificates import Certificates
from tests.waiting import WAIT_SECONDS


def calls(registry: CollectorRegistry, method: str, outcome: str) -> float | None:
    return registry.get_sample_value("planner_calls_total", {"method": method, "outcome": outcome})


def test_a_stream_that_its_reader_leaves_is_cancelled() -> None:
    metrics = CallMetrics()

    def answers() -> Iterator[int]:
        with metrics.observe("/package.Service/Watch"):
            yield 1
            yield 2

    reader = answers()
    next(reader)
    reader.close()
    assert calls(metrics.registry, "Watch", "CANCELLED") == 1
    assert calls(metrics.registry, "Watch", "OK") is None


def test_an_error_that_passes_through_counts_as_what_it_was_told_to_be() -> None:
    metrics = CallMetrics()

    def fail() -> None:
        with metrics.observe("Bare") as fails:
            fails("INTERNAL")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert calls(metrics.registry, "Bare", "INTERNAL") == 1
    assert metrics.registry.get_sample_value("planner_call_seconds_count", {"method": "Bare"}) == 1


def test_seconds_are_those_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.5])
    monkeypatch.setattr("planner.api.metrics.time.monotonic", lambda: next(clock))
    metrics = CallMetrics()
    with metrics.observe("/package.Service/Get"):
        pass
    assert metrics.registry.get_sample_value("planner_call_seconds_sum", {"method": "Get"}) == 3.5


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = CallMetrics(), CallMetrics()
    with first.observe("Get"):
        pass
    assert calls(second.registry, "Get", "OK") is None


@pytest.mark.services
def test_scrape_counts_outcomes() -> None:
    metrics = CallMetrics()
    with metrics.observe("/package.Service/Get"):
        pass
    with metrics.observe("/package.Service/Get") as fails:
        fails("NOT_FOUND")
    with pytest.raises(asyncio.CancelledError), metrics.observe("/package.Service/Watch"):
        raise asyncio.CancelledError
    address, stop = metrics.serve("127.0.0.1:0")
    try:
        with urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        stop()
    assert 'planner_calls_total{method="Get",outcome="OK"} 1.0' in text
    assert 'planner_calls_total{method="Get",outcome="NOT_FOUND"} 1.0' in text
    assert 'planner_calls_total{method="Watch",outcome="CANCELLED"} 1.0' in text
    assert 'planner_call_seconds_count{method="Get"} 2.0' in text


@pytest.mark.services
def test_address_that_cannot_be_had() -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        CallMetrics().serve("nonsense")
    with pytest.raises(InvalidArgument, match="host:port"):
        CallMetrics().serve("127.0.0.1:http")
    with pytest.raises(InvalidArgument, match="host:port"):
        CallMetrics().serve(":80")
    address, stop = CallMetrics().serve("127.0.0.1:0")
    with pytest.raises(Unavailable, match=address):
        CallMetrics().serve(address)
    stop()
    address, stop = CallMetrics().serve("[::1]:0")
    assert urlopen(f"http://{address}/metrics", timeout=WAIT_SECONDS).status == 200
    stop()


def test_over_tls_scrapes_need_a_certificate_and_follow_renewed_ones(tmp_path: Path) -> None:
    certificates = Certificates.of(tmp_path)
    files, own = certificates.issue("planner"), certificates.issue("client")
    metrics = CallMetrics()
    address, stop = metrics.serve("127.0.0.1:0", WatchedCredentials(files))
    host, _, port = address.rpartition(":")

    def scrape() -> tuple[bytes, bytes | None]:
        """(what was answered, the certificate that was shown)."""
        context = ssl.create_default_context(cafile=str(own.authorities))
        context.load_cert_chain(own.certificate, own.key)
        connection = http.client.HTTPSConnection(host, int(port), timeout=WAIT_SECONDS, context=context)
        connection.connect()
        shown = connection.sock.getpeercert(True)
        connection.request("GET", "/metrics")
        answer = connection.getresponse().read()
        connection.close()
        return answer, shown

    try:
        with socket.create_connection((host, int(port))) as silent:
            answer, before = scrape()
            assert b"planner_calls" in answer
            certificates.issue("planner")
            assert scrape()[1] not in (None, before)
            silent.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            silent.settimeout(WAIT_SECONDS)
            assert b"planner_calls" not in silent.recv(1000)
        context = ssl.create_default_context(cafile=str(own.authorities))
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|EOF|broken pipe"):
            urlopen(f"https://{address}/metrics", timeout=WAIT_SECONDS, context=context)
    finally:
        stop()
