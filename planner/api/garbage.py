"""When Python looks through all objects for garbage in circles: now and then, while they are few.

Python does it whenever their number has grown by a quarter, and no thread runs meanwhile: beside a message with
hundreds of thousands of entries a tenth of a second and more, several times. What is in no circle is freed without it,
and circles of young objects are found by collections that look at those alone, take a few milliseconds and stay.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PERIOD_SECONDS = 10.0
# A collection takes a quarter of a microsecond to half a one for each.
MOST_OBJECTS = 50_000
# Five minutes, longer than any message takes: where there are always more, garbage would pile up.
MOST_POSTPONED = 30
# Young collections until one of all objects, by Python itself.
NEVER = 1 << 30


@asynccontextmanager
async def rare_collections() -> AsyncIterator[None]:
    """For the block. What is there when it begins stays, and is never looked through."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*before[:2], NEVER)
    collecting = asyncio.create_task(_collect_now_and_then())
    try:
        yield
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})
        gc.set_threshold(*before)
        gc.unfreeze()


async def _collect_now_and_then() -> None:
    num_postponed = 0
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        is_busy = len(gc.get_objects(generation=2)) > MOST_OBJECTS
        if is_busy and num_postponed < MOST_POSTPONED:
            num_postponed += 1
        else:
            gc.collect()
            num_postponed = 0
