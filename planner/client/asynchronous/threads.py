"""Calls that block, in threads beside an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

from planner.client.interruption import Interruption, interruptible
from planner.client.lifetime import Lifetime

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

# A call takes a thread until it is answered, and a watch may take hours; threads are made as they are needed.
MAX_CALLS = 1024
_END: Final = object()


class Threads:
    """Shared by a client and all that it gives. Threads that are idle end with it."""

    def __init__(self) -> None:
        self._lifetime = Lifetime("this client")
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="planner-client")

    async def call(
        self, function: Callable[[], _Result], *, discard: Callable[[_Result], object] = lambda result: None
    ) -> _Result:
        """What it returns or raises. A task that is cancelled interrupts it, and goes on once it has ended.

        `discard` takes a result that came too late for anybody to have it.
        """
        return await self._run(function, Interruption(), discard)

    async def iterate(self, function: Callable[[], Iterator[_Item]]) -> AsyncGenerator[_Item]:
        """What its iterator gives, each item as it is asked for. Closed, or cancelled, it closes the iterator."""
        interruption = Interruption()
        iterator: Iterator[_Item] | None = None
        try:
            iterator = items = await self._run(function, interruption)
            while (item := await self._run(lambda: next(items, _END), interruption)) is not _END:
                yield item  # type: ignore[misc]
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                await self._run(close, Interruption())

    async def _run(
        self,
        function: Callable[[], _Result],
        interruption: Interruption,
        discard: Callable[[_Result], object] = lambda result: None,
    ) -> _Result:
        self._lifetime.check()
        submitted = self._pool.submit(copy_context().run, _under, interruption, function)
        ended = asyncio.wrap_future(submitted)
        # Looked at also where a second cancellation leaves nobody who waits for it.
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            if not submitted.cancel():
                interruption.send()
                await asyncio.wait([ended])
                if ended.exception() is None:
                    await asyncio.wrap_future(self._pool.submit(discard, ended.result()))
            raise
        return ended.result()


class FromLoop(Iterator[_Item]):
    """An asynchronous iterable of this event loop, for a thread to iterate over."""

    def __init__(self, items: AsyncIterable[_Item]) -> None:
        self._items = aiter(items)
        self._loop = asyncio.get_running_loop()

    def __next__(self) -> _Item:
        next_item = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        with interruptible(next_item.cancel):
            item = next_item.result()
        if item is _END:
            raise StopIteration
        return item  # type: ignore[no-any-return]

    async def _next(self) -> Any:
        return await anext(self._items, _END)


def _under(interruption: Interruption, function: Callable[[], _Result]) -> _Result:
    with interruption.covering():
        return function()
