"""Scenarios whose subject is a short deadline, on machines of any speed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from stage_daemon.errors import DaemonError

# The second is for a machine that has too much to do to connect, or to give a sign of life, within the first.
SHORT_DEADLINES_SECONDS = (1.5, 12.0)


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
