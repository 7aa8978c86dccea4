"""One writer per blob at a time, and any number of blobs at a time."""

from __future__ import annotations

import asyncio

import pytest

from planner.api.upload_locks import UploadLocks
from planner.errors import ResourceExhausted


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_writers_of_one_blob_take_turns_in_order() -> None:
    locks = UploadLocks(2)
    story: list[str] = []

    async def write(name: str) -> None:
        async with locks.hold(b"blob"):
            story.append(f"{name} begins")
            await settle()
            story.append(f"{name} ends")

    await asyncio.gather(*(write(name) for name in "abc"))
    assert story == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


async def test_another_blob_does_not_wait() -> None:
    locks = UploadLocks(2)
    async with locks.hold(b"blob"), asyncio.timeout(60), locks.hold(b"other"):
        pass


async def test_one_that_leaves_the_queue_or_fails_lets_the_next_in() -> None:
    locks = UploadLocks(2)

    async def write() -> None:
        async with locks.hold(b"blob"):
            raise RuntimeError

    async with locks.hold(b"blob"):
        waiting = asyncio.create_task(write())
        failing = asyncio.create_task(write())
        await settle()
        waiting.cancel()
        await settle()
        assert not failing.done()
    with pytest.raises(RuntimeError):
        await failing
    async with asyncio.timeout(60), locks.hold(b"blob"):
        pass


async def test_a_lock_stays_one_while_anybody_waits_for_it_and_then_is_gone() -> None:
    locks = UploadLocks(2)
    inside = 0

    async def write() -> None:
        nonlocal inside
        async with locks.hold(b"blob"):
            inside += 1
            assert inside == 1
            await settle()
            inside -= 1

    first = asyncio.create_task(write())
    second = asyncio.create_task(write())
    await first
    await asyncio.gather(second, write(), write())
    assert not locks._locks
    assert not locks._users
    assert not locks._uploads


async def test_a_caller_has_only_so_many_at_once() -> None:
    locks = UploadLocks(2)
    async with locks.hold(b"a", "alice"), locks.hold(b"b", "alice"):
        with pytest.raises(
            ResourceExhausted, match="alice has 2 uploads at once, and one caller may have 2"
        ) as refused:
            async with locks.hold(b"c", "alice"):
                pass
        assert refused.value.metadata["retry_after_seconds"] == "5.0"
        async with locks.hold(b"c", "bob"), locks.hold(b"d"), locks.hold(b"e"), locks.hold(b"f"):
            pass
    async with locks.hold(b"c", "alice"):
        pass
    assert not locks._uploads
