"""How long tests wait for what has to happen in another task, thread or process that tells nobody."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Long enough on a machine with ten times more to do than it can: only a failure is concluded from its passing.
WAIT_SECONDS = 120.0
# From one look to the next.
PAUSE_SECONDS = 0.02


def wait_for(condition: Callable[[], object], what: str = "the condition to hold") -> None:
    """Returns once the condition holds; fails with the name of what was waited for."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        _go_on_until(deadline, what)
        time.sleep(PAUSE_SECONDS)


async def eventually(condition: Callable[[], object | Awaitable[object]], what: str = "the condition to hold") -> None:
    """As wait_for, for one that may be awaited."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        _go_on_until(deadline, what)
        await asyncio.sleep(PAUSE_SECONDS)


async def leave(call: asyncio.Task[Any]) -> None:
    """As a client that gives its call up: returns once the call has ended."""
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


def is_gone(process_id: int) -> bool:
    """Ended, or a zombie that only waits to be counted."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _go_on_until(deadline: float, what: str) -> None:
    assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:.0f} s for: {what}"
