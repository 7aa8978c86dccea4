"""When Python looks through all objects for garbage in circles."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from planner.api import garbage
from planner.api.garbage import rare_collections
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def frozen_tests() -> Iterator[None]:
    """The subject looks through all that was frozen once it ends, which here are the modules of the whole suite."""
    gc.freeze()
    yield
    gc.freeze()


class Circle:
    def __init__(self) -> None:
        self.itself = self


def old_circle() -> weakref.ref[Circle]:
    """Garbage that no collection of young objects finds."""
    circle = Circle()
    for generation in (0, 1):
        gc.collect(generation)
    return weakref.ref(circle)


async def test_no_collection_of_all_objects_interrupts_a_large_message() -> None:
    async with rare_collections():
        before = gc.get_stats()[2]["collections"]
        entries = [[index] for index in range(300_000)]
        assert gc.get_stats()[2]["collections"] == before
        assert gc.get_stats()[0]["collections"] > 0
    assert entries


async def test_old_garbage_is_collected_while_objects_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(garbage, "MOST_OBJECTS", 10_000)
    monkeypatch.setattr(garbage, "MOST_POSTPONED", 1 << 40)
    async with rare_collections():
        entries = [[index] for index in range(20_000)]
        gc.collect(1)
        circle = old_circle()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert circle() is not None
        del entries
        await eventually(lambda: circle() is None, "the circle to be found")


async def test_where_objects_are_always_many_garbage_is_collected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(garbage, "MOST_OBJECTS", -1)
    monkeypatch.setattr(garbage, "MOST_POSTPONED", 3)
    async with rare_collections():
        circle = old_circle()
        await eventually(lambda: circle() is None, "the circle to be found")


async def test_afterwards_all_is_as_it_was() -> None:
    before = gc.get_threshold()
    async with rare_collections():
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
