"""Checkpoints, on both databases; through the API in tests/contract/test_checkpoints.py."""

from __future__ import annotations

import pytest

from planner.errors import NotFound
from planner.graph.checkpoint import CheckpointRecord, SavedFile, SavedTensor, TrainingProgress
from planner.graph.ir import Dtype
from planner.store import checkpoints, many_rows
from planner.store.checkpoints import (
    add_checkpoint,
    checkpoint_tensors,
    delete_checkpoint,
    get_checkpoint_record,
)
from planner.store.database import Database
from planner.store.graphs import add_graph
from tests.planner.store.records import GRAPH_ID, MOST, NOW, graph

pytestmark = pytest.mark.services
FILE = bytes(range(32))
RECORD = CheckpointRecord(
    id="ckpt-1",
    run="run",
    graph_id=GRAPH_ID,
    optimizer="adamw",
    progress=TrainingProgress(num_steps=3, seed="seed"),
    files=(SavedFile(sha256=FILE, size_bytes=MOST, is_model=True),),
    created_at=NOW,
)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checkpoints, many_rows):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)


def tensors(count: int) -> list[SavedTensor]:
    """Named so that their order is none of their names'."""
    return [
        SavedTensor(
            name=f"größe.{-index}",
            optimizer_tensor="exp_avg" if index % 2 else "",
            dtype=Dtype.BFLOAT16,
            dims=(index, 2),
            file_sha256=FILE,
            offset_bytes=index,
            length_bytes=MOST - index,
            sha256=bytes([index]) * 32,
        )
        for index in range(count)
    ]


async def fill(database: Database, count: int) -> None:
    async with database.session() as session:
        await add_graph(session, graph())
        await add_checkpoint(session, RECORD, iter(tensors(count)))


@pytest.mark.parametrize("count", [0, 3, 4, 5, 8, 11])
async def test_tensors_are_kept_in_order_and_exactly_in_pages(database: Database, count: int) -> None:
    await fill(database, count)
    async with database.reading() as session:
        assert await get_checkpoint_record(session, "ckpt-1") == RECORD
        assert [tensor async for tensor in checkpoint_tensors(session, "ckpt-1")] == tensors(count)


async def test_one_that_is_deleted_while_it_is_read_is_not_taken_for_a_shorter_one(database: Database) -> None:
    await fill(database, 7)
    async with database.reading() as session:
        reading = checkpoint_tensors(session, "ckpt-1")
        for _ in range(4):
            await anext(reading)
        async with database.session() as other:
            await delete_checkpoint(other, "ckpt-1")
        with pytest.raises(NotFound, match="no checkpoint has the id 'ckpt-1'"):
            await anext(reading)
