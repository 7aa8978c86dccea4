"""Blocking calls from the event loop, safe to cancel: a cancelled caller waits until the thread is done."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# A slow disk, or digests of what had arrived of large blobs before a restart, may keep them all for minutes.
_OF_UPLOADS = ThreadPoolExecutor(8, thread_name_prefix="upload")

# Python's own is five milliseconds. The loop lets the lock go whenever it waits or hands bytes to a library, several
# times for one call, and has to get it back each time.
TURN_SECONDS = 0.0005


@contextmanager
def short_turns() -> Iterator[None]:
    """For the block: a thread that computes gives Python's lock back after this long where another asks for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def in_thread(call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    return await _once_done(asyncio.to_thread(call, *args, **kwargs))


async def in_upload_thread(
    call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """As `in_thread`, of threads that nothing else waits for."""
    work = partial(contextvars.copy_context().run, call, *args, **kwargs)
    return await _once_done(asyncio.get_running_loop().run_in_executor(_OF_UPLOADS, work))


async def _once_done(work: Awaitable[Result]) -> Result:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
