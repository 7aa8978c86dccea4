"""One writer per blob at a time, and of one caller so many at once.

An upload of a blob that is arriving already waits for that stream to end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from planner.store.quotas import RETRY_SECONDS, over_quota


class UploadLocks:
    """On this planner: others of its database count for themselves."""

    def __init__(self, most_per_caller: int) -> None:
        self._most_per_caller = most_per_caller
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._users: Counter[bytes] = Counter()
        self._uploads: Counter[str] = Counter()

    @asynccontextmanager
    async def hold(self, sha256: bytes, caller: str = "") -> AsyncIterator[None]:
        """Raises ResourceExhausted where a caller who is known has as many already, those that wait included."""
        if caller and self._uploads[caller] >= self._most_per_caller:
            raise over_quota(
                caller,
                f"{self._uploads[caller]} uploads at once",
                str(self._most_per_caller),
                "PLANNER_MAX_UPLOADS_PER_CALLER",
                "send the others once these have ended",
                retry_after_seconds=RETRY_SECONDS,
            )
        lock = self._locks.setdefault(sha256, asyncio.Lock())
        self._users[sha256] += 1
        self._uploads[caller] += 1
        try:
            async with lock:
                yield
        finally:
            self._uploads[caller] -= 1
            if not self._uploads[caller]:
                del self._uploads[caller]
            self._users[sha256] -= 1
            if not self._users[sha256]:
                del self._users[sha256], self._locks[sha256]
