"""Whole frames between an event loop and a worker, of any size, whoever stops waiting for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from stage_daemon.control.frame_connection import FrameConnection
from stage_daemon.worker.frames import Frame, FrameKind, read_frame, write_frame

WAIT_SECONDS = 60.0
# More than any socketpair holds.
LARGE_BYTES = 1 << 24


class Ends:
    def __init__(self) -> None:
        ours, self.worker = socket.socketpair()
        self.loop = FrameConnection(ours)

    async def read_by_worker(self) -> Frame | None:
        return await asyncio.wait_for(asyncio.to_thread(read_frame, self.worker), WAIT_SECONDS)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    yield ends
    ends.loop.close()
    ends.worker.close()


def frame(number: int, num_bytes: int = 3) -> Frame:
    return Frame(kind=FrameKind.INPUT, session_id=7, sequence=number, body=number.to_bytes(1, "big") * num_bytes)


async def begun(ends: Ends, number: int, num_bytes: int = 3) -> asyncio.Task[None]:
    """A writer that has come as far as it can: the worker reads nothing."""
    writer = asyncio.create_task(ends.loop.write(frame(number, num_bytes)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return writer


@pytest.mark.parametrize("num_bytes", [0, 1, 1 << 16, (1 << 16) + 1, LARGE_BYTES])
async def test_frames_come_as_they_were_written(ends: Ends, num_bytes: int) -> None:
    frames = [frame(1), frame(2, num_bytes), frame(3)]
    writers = [asyncio.create_task(ends.loop.write(each)) for each in frames]
    assert [await ends.read_by_worker() for _ in frames] == frames
    await asyncio.gather(*writers)
    writing = asyncio.create_task(asyncio.to_thread(lambda: [write_frame(ends.worker, each) for each in frames]))
    assert [await asyncio.wait_for(ends.loop.read(), WAIT_SECONDS) for _ in frames] == frames
    await writing


async def test_a_frame_in_parts_is_one(ends: Ends) -> None:
    write_frame(ends.worker, frame(1), [b"ab", memoryview(b""), memoryview(b"c")])
    assert await ends.loop.read() == Frame(kind=FrameKind.INPUT, session_id=7, sequence=1, body=b"\1\1\1abc")


async def test_a_writer_that_leaves_does_not_cut_its_frame(ends: Ends) -> None:
    large = await begun(ends, 1, LARGE_BYTES)
    behind = await begun(ends, 2)
    large.cancel()
    assert await ends.read_by_worker() == frame(1, LARGE_BYTES)
    assert await ends.read_by_worker() == frame(2)
    await asyncio.wait_for(behind, WAIT_SECONDS)
    assert large.cancelled()


async def test_a_writer_that_leaves_before_its_turn_is_left_out(ends: Ends) -> None:
    large = await begun(ends, 1, LARGE_BYTES)
    asked: list[int] = []
    second = asyncio.create_task(ends.loop.write(frame(2), lambda: asked.append(2)))
    third = asyncio.create_task(ends.loop.write(frame(3), lambda: asked.append(3)))
    await asyncio.sleep(0)
    second.cancel()
    assert [await ends.read_by_worker(), await ends.read_by_worker()] == [frame(1, LARGE_BYTES), frame(3)]
    await asyncio.wait_for(asyncio.gather(large, third), WAIT_SECONDS)
    assert asked == [3]


async def test_who_waits_hears_that_the_worker_is_gone(ends: Ends) -> None:
    writers = [await begun(ends, 1, LARGE_BYTES), await begun(ends, 2)]
    ends.worker.close()
    for writer in writers:
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(writer, WAIT_SECONDS)
    with pytest.raises(ConnectionError):
        await ends.loop.write(frame(3))
    assert await ends.loop.read() is None


async def test_half_a_frame_is_none(ends: Ends) -> None:
    ends.worker.sendall(frame(1, 100).head() + bytes(50))
    ends.worker.close()
    assert await asyncio.wait_for(ends.loop.read(), WAIT_SECONDS) is None


async def test_who_waits_hears_that_it_is_closed(ends: Ends) -> None:
    writers = [await begun(ends, 1, LARGE_BYTES), await begun(ends, 2)]
    ends.loop.close()
    for writer in writers:
        with pytest.raises(ConnectionError, match="closed"):
            await asyncio.wait_for(writer, WAIT_SECONDS)


async def test_whoever_gets_its_descriptor_next_hears_of_its_own(ends: Ends) -> None:
    writer = await begun(ends, 1, LARGE_BYTES)
    ends.loop.close()
    sockets = socket.socketpair()
    writable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_writer(sockets[0], writable.set)
    with pytest.raises(ConnectionError):
        await writer
    await asyncio.wait_for(writable.wait(), WAIT_SECONDS)
    loop.remove_writer(sockets[0])
    for each in sockets:
        each.close()
