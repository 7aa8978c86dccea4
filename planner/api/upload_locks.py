"""One writer per blob at a time: an upload of a blob that is arriving already waits for that stream to end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadLocks:
    def __init__(self) -> None:
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._users: Counter[bytes] = Counter()

    @asynccontextmanager
    async def hold(self, sha256: bytes) -> AsyncIterator[None]:
        lock = self._locks.setdefault(sha256, asyncio.Lock())
        self._users[sha256] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[sha256] -= 1
            if not self._users[sha256]:
                del self._users[sha256], self._locks[sha256]
