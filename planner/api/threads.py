"""Blocking calls from the event loop, safe to cancel: a cancelled caller waits until the thread is done."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# A slow disk, or digests of what had arrived of large blobs before a restart, may keep them all for minutes.
_OF_UPLOADS = ThreadPoolExecutor(8, thread_name_prefix="upload")


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
