"""What a scrape sees."""

from __future__ import annotations

import asyncio
from urllib.request import urlopen

import pytest

from planner.api.metrics import CallMetrics
from planner.errors import InvalidArgument, Unavailable


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


def test_address_that_cannot_be_had() -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        CallMetrics().serve("nonsense")
    address, stop = CallMetrics().serve("127.0.0.1:0")
    with pytest.raises(Unavailable, match=address):
        CallMetrics().serve(address)
    stop()
