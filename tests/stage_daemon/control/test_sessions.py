"""Results reach their own session, in order; a client that is gone or does not read harms nobody else."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from stage_daemon.control import sessions as sessions_module
from stage_daemon.control.sessions import CallersSessions, Session, Sessions
from stage_daemon.errors import Conflict, DaemonError, Released, ResourceExhausted, ResultsNotRead
from tests.waiting import WAIT_SECONDS

STOPPED = Released("deployment dep-1 was stopped")


async def read_all(session: Session, end: type[DaemonError] = Released) -> list[bytes]:
    """What comes before the session ends with an error of this type."""
    tokens: list[bytes] = []
    try:
        async for result in session.results():
            tokens.append(result)
    except end:
        return tokens
    raise AssertionError("the session ended without an error")


async def test_each_session_gets_its_own_results_in_order() -> None:
    sessions = Sessions("dep-1")
    first, second = sessions.open(1), sessions.open(2)
    for sequence in range(5):
        sessions.deliver(1, b"a%d" % sequence)
        sessions.deliver(2, b"b%d" % sequence)
    sessions.end_all(STOPPED)
    assert await read_all(first) == [b"a%d" % sequence for sequence in range(5)]
    assert await read_all(second) == [b"b%d" % sequence for sequence in range(5)]


async def test_a_reader_that_waits_is_woken() -> None:
    sessions = Sessions("dep-1")
    reading = asyncio.create_task(read_all(sessions.open(1)))
    await asyncio.sleep(0)
    sessions.deliver(1, b"result")
    await asyncio.sleep(0)
    sessions.end_all(STOPPED)
    assert await asyncio.wait_for(reading, WAIT_SECONDS) == [b"result"]


async def test_results_for_a_client_that_left_are_dropped() -> None:
    sessions = Sessions("dep-1")
    left = sessions.open(1)
    sessions.close(left)
    sessions.deliver(1, b"late")
    assert not sessions.is_open(1)
    sessions.open(1)
    sessions.close(left)
    assert sessions.is_open(1)


async def test_a_client_that_does_not_read_loses_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_WAITING_RESULTS", 3)
    sessions = Sessions("dep-1")
    slow, other = sessions.open(1), sessions.open(2)
    for _ in range(4):
        sessions.deliver(1, b"unread")
    sessions.deliver(2, b"read")
    assert await read_all(slow, ResultsNotRead) == [b"unread"] * 3
    assert await anext(other.results()) == b"read"


async def test_what_was_read_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session may run for ever: only what waits is bounded, by number and by bytes."""
    monkeypatch.setattr(sessions_module, "MAX_WAITING_RESULTS", 3)
    monkeypatch.setattr(sessions_module, "MAX_WAITING_BYTES", 10)
    sessions = Sessions("dep-1")
    results = sessions.open(1).results()
    for _ in range(20):
        for result in (b"four", b"six..."):
            sessions.deliver(1, result)
        assert [await anext(results), await anext(results)] == [b"four", b"six..."]
    assert sessions.is_open(1)


async def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_WAITING_BYTES", 10)
    sessions = Sessions("dep-1")
    slow = sessions.open(1)
    for result in (b"four", b"six...", b"!"):
        sessions.deliver(1, result)
    assert not sessions.is_open(1)
    assert await read_all(slow, ResultsNotRead) == [b"four", b"six..."]


async def test_the_first_error_is_the_one_that_is_told() -> None:
    session = Session(1)
    session.end(STOPPED)
    session.end(ResultsNotRead("too late"))
    assert await read_all(session, Released) == []


async def test_one_result_passes_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_WAITING_BYTES", 2)
    session = Session(1)
    assert session.put(b"larger than the bound")
    assert not session.put(b"x")


async def test_a_session_id_is_taken_once_and_not_after_the_end() -> None:
    sessions = Sessions("dep-1")
    sessions.open(7)
    with pytest.raises(Conflict, match="session 7 of dep-1 is open already"):
        sessions.open(7)
    sessions.end_all(STOPPED)
    with pytest.raises(Released):
        sessions.open(8)


def test_a_caller_s_sessions_count_once_each_over_all_deployments() -> None:
    callers = CallersSessions(2)
    owners = [("alice", "dep-1", 1), ("alice", "dep-2", 1), ("alice", "dep-1", 1), ("bob", "dep-1", 1)]
    unknown = [("", "dep-1", session_id) for session_id in range(3)]
    with ExitStack() as streams:
        for caller, deployment_id, session_id in (*owners, *unknown):
            streams.enter_context(callers.hold(caller, deployment_id, session_id))
        refused = pytest.raises(ResourceExhausted, match=r"alice has 2 sessions .* may have 2 .*: close some")
        with refused as refusal, callers.hold("alice", "dep-1", 2):
            pass
        assert refusal.value.metadata["retry_after_seconds"] == "5.0"
    with callers.hold("alice", "dep-3", 1), callers.hold("alice", "dep-3", 2):
        pass
    assert not callers._streams


def test_half_of_a_caller_s_sessions_may_be_idle() -> None:
    callers = CallersSessions(5)
    with ExitStack() as streams:
        may_idle = [streams.enter_context(callers.hold("alice", "dep-1", session_id)) for session_id in range(5)]
        assert may_idle == [True, True, False, False, False]
        assert streams.enter_context(callers.hold("bob", "dep-1", 0))
    with CallersSessions(1).hold("alice", "dep-1", 1) as only_one:
        assert not only_one
    with CallersSessions(1).hold("", "dep-1", 1) as unknown:
        assert unknown
