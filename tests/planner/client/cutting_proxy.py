"""A TCP proxy that cuts a connection in its middle: what a broken network looks like to an upload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """Cuts each of the first connections once it has carried that many bytes towards the server.

    One that ends before, as gRPC at times gives a connection up by itself, leaves its bytes to the next.
    """

    def __init__(self, target: str, cut_after_bytes: tuple[int, ...], late_seconds: float = 0.0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._budgets = list(cut_after_bytes)
        self._late_seconds = late_seconds
        self.address = ""
        self.num_cuts = 0
        self.carried_bytes = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        budget = self._budgets.pop(0) if self._budgets else None
        await asyncio.sleep(self._late_seconds)
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._carry(upstream_reader, writer, None))
        is_cut = False
        try:
            is_cut = await self._carry(reader, upstream_writer, budget)
        finally:
            if budget is not None and not is_cut:
                self._budgets.insert(0, budget)
            back.cancel()
            for end in (writer, upstream_writer):
                end.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, budget: int | None) -> bool:
        """Whether it was cut."""
        carried = 0
        while data := await source.read(1 << 16):
            if budget is not None and carried + len(data) > budget:
                self.num_cuts += 1
                return True
            target.write(data)
            await target.drain()
            carried += len(data)
            self.carried_bytes += len(data)
        return False


@contextmanager
def cutting_proxy(target: str, *cut_after_bytes: int) -> Iterator[CuttingProxy]:
    with _running(CuttingProxy(target, cut_after_bytes)) as proxy:
        yield proxy


@contextmanager
def late_proxy(target: str, *, seconds: float) -> Iterator[str]:
    """Takes each connection at once and says nothing on it for so long, as a busy server does."""
    with _running(CuttingProxy(target, (), late_seconds=seconds)) as proxy:
        yield proxy.address


@contextmanager
def _running(proxy: CuttingProxy) -> Iterator[CuttingProxy]:
    """In a thread of its own, since the client under test blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
