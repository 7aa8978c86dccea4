"""How long tests wait for what has to happen, and what they do where a short deadline is their subject."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from stage_daemon.errors import DaemonError

# Long enough on a machine with ten times more to do than it can: only a failure is concluded from its passing.
WAIT_SECONDS = 120.0
# The second is for a machine that has too much to do to connect, or to give a sign of life, within the first.
SHORT_DEADLINES_SECONDS = (1.5, 12.0)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s for: {what}"
        time.sleep(0.02)


async def wait_for_async(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        if await condition():
            return
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s for: {what}"
        await asyncio.sleep(0.02)


def is_gone(process_id: int) -> bool:
    """Ended, or a zombie that only waits to be counted."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def with_short_deadline(scenario: Callable[[float], None]) -> None:
    """Calls the scenario with a short deadline in seconds, and again with a longer one where its preparations, whose
    errors it lets through, took more than that."""
    first, second = SHORT_DEADLINES_SECONDS
    with suppress(DaemonError, TimeoutError):
        return scenario(first)
    return scenario(second)


async def with_short_deadline_async(scenario: Callable[[float], Awaitable[None]]) -> None:
    """As with_short_deadline."""
    first, second = SHORT_DEADLINES_SECONDS
    with suppress(DaemonError, TimeoutError):
        return await scenario(first)
    return await scenario(second)
