"""Blocking calls from the event loop: what they give, and that whoever is cancelled waits for the thread."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from planner.api.threads import TURN_SECONDS, in_thread, short_turns


async def test_results_and_errors_come_back_from_another_thread() -> None:
    def divide(left: int, *, by: int) -> tuple[float, int]:
        return left / by, threading.get_ident()

    result, thread = await in_thread(divide, 6, by=4)
    assert result == 1.5
    assert thread != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(divide, 1, by=0)


async def test_a_cancelled_caller_waits_until_the_thread_is_done() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(60)
        done.set()

    caller = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 60)
    caller.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    waiting = not caller.done()
    go_on.set()
    assert waiting
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


def test_turns_are_short_for_the_block() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        assert before > TURN_SECONDS
    assert sys.getswitchinterval() == before
