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
from prometheus_client.core import GaugeMetricFamily

from access.errors import CannotListen, WrongAddress
from access.files import WatchedCredentials
from access.metrics import ServiceMetrics
from tests.access.certificates import Certificates
from tests.waiting import WAIT_SECONDS


def calls(registry: CollectorRegistry, method: str, outcome: str) -> float | None:
    return registry.get_sample_value("planner_calls_total", {"method": method, "outcome": outcome})


def test_a_stream_that_its_reader_leaves_is_cancelled() -> None:
    metrics = ServiceMetrics("planner")

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
    metrics = ServiceMetrics("planner")

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
    monkeypatch.setattr("access.metrics.time.monotonic", lambda: next(clock))
    metrics = ServiceMetrics("planner")
    with metrics.observe("/package.Service/Get"):
        pass
    assert metrics.registry.get_sample_value("planner_call_seconds_sum", {"method": "Get"}) == 3.5


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = ServiceMetrics("planner"), ServiceMetrics("planner")
    with first.observe("Get"):
        pass
    assert calls(second.registry, "Get", "OK") is None


@pytest.mark.services
def test_scrape_counts_outcomes() -> None:
    metrics = ServiceMetrics("planner")
    with metrics.observe("/package.Service/Get"):
        pass
    with metrics.observe("/package.Service/Get") as fails:
        fails("NOT_FOUND")
    with pytest.raises(asyncio.CancelledError), metrics.observe("/package.Service/Watch"):
        raise asyncio.CancelledError
    address, stop = metrics.serve("127.0.0.1:0")
    try:
        text = scraped(address)
    finally:
        stop()
    assert 'planner_calls_total{method="Get",outcome="OK"} 1.0' in text
    assert 'planner_calls_total{method="Get",outcome="NOT_FOUND"} 1.0' in text
    assert 'planner_calls_total{method="Watch",outcome="CANCELLED"} 1.0' in text
    assert 'planner_call_seconds_count{method="Get"} 2.0' in text


@pytest.mark.services
def test_address_that_cannot_be_had() -> None:
    for text in ("nonsense", "127.0.0.1:http", "127.0.0.1:65536", "::1:0"):
        with pytest.raises(WrongAddress, match="host:port"):
            ServiceMetrics("planner").serve(text)
    address, stop = ServiceMetrics("planner").serve("127.0.0.1:0")
    with pytest.raises(CannotListen, match=address):
        ServiceMetrics("planner").serve(address)
    stop()
    address, stop = ServiceMetrics("planner").serve("[::1]:0")
    assert urlopen(f"http://{address}/metrics", timeout=WAIT_SECONDS).status == 200
    stop()


def test_over_tls_scrapes_need_a_certificate_and_follow_renewed_ones(tmp_path: Path) -> None:
    certificates = Certificates.of(tmp_path)
    files, own = certificates.issue("planner"), certificates.issue("client")
    metrics = ServiceMetrics("planner")
    address, stop = metrics.serve("127.0.0.1:0", WatchedCredentials(files))
    host, _, port = address.rpartition(":")

    def scrape() -> tuple[bytes, bytes | None]:
        """(what was answered, the certificate that was shown)."""
        context = ssl.create_default_context(cafile=str(own.authorities))
        context.load_cert_chain(own.certificate, own.key)
        connection = http.client.HTTPSConnection(host, int(port), timeout=WAIT_SECONDS, context=context)
        connection.connect()
        certificate_der = connection.sock.getpeercert(True)
        connection.request("GET", "/metrics")
        answer = connection.getresponse().read()
        connection.close()
        return answer, certificate_der

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


def gauge(name: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, "A number")
    family.add_metric((), value)
    return family


@pytest.mark.services
async def test_a_scrape_reads_how_the_service_stands_on_its_event_loop() -> None:
    metrics, loop = ServiceMetrics("planner"), asyncio.get_running_loop()
    standing = [1.0]

    async def read() -> list[GaugeMetricFamily]:
        assert asyncio.get_running_loop() is loop
        return [gauge("planner_things", standing[0])]

    metrics.observe_state(read)
    address, stop = metrics.serve("127.0.0.1:0")
    try:
        for number in (1.0, 2.0):
            standing[0] = number
            text = await asyncio.to_thread(scraped, address)
            assert f"planner_things {number}\n" in text
            assert "planner_state_known 1.0\n" in text
    finally:
        stop()


@pytest.mark.services
@pytest.mark.parametrize("fault", ["raises", "hangs"])
async def test_a_service_that_cannot_say_how_it_stands_is_scraped_without(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.metrics.READ_SECONDS", 0.05)
    metrics = ServiceMetrics("planner")
    with metrics.observe("/package.Service/Get"):
        pass

    async def read() -> list[GaugeMetricFamily]:
        if fault == "hangs":
            await asyncio.Event().wait()
        raise OSError("the database is away")

    metrics.observe_state(read)
    address, stop = metrics.serve("127.0.0.1:0")
    try:
        text = await asyncio.to_thread(scraped, address)
    finally:
        stop()
    assert "planner_state_known 0.0\n" in text
    assert 'planner_calls_total{method="Get",outcome="OK"} 1.0' in text


def scraped(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=WAIT_SECONDS) as answer:
        return str(answer.read().decode())
