"""Checkpoints in the database: which files have which tensors. The bytes are blobs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Row, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import NotFound
from planner.graph.checkpoint import CheckpointRecord, SavedFile, SavedTensor, TrainingProgress
from planner.graph.ir import Dtype
from planner.store.many_rows import ROWS_AT_ONCE, TableRow, add_rows
from planner.store.owners import forget_owners
from planner.store.paging import PageRequest
from planner.store.tables import CheckpointFileRow, CheckpointRow, CheckpointTensorRow

_TENSOR_COLUMNS = (
    CheckpointTensorRow.name,
    CheckpointTensorRow.optimizer_tensor,
    CheckpointTensorRow.dtype,
    CheckpointTensorRow.dims,
    CheckpointTensorRow.file_sha256,
    CheckpointTensorRow.offset_bytes,
    CheckpointTensorRow.length_bytes,
    CheckpointTensorRow.sha256,
)


async def add_checkpoint(session: AsyncSession, record: CheckpointRecord, tensors: Iterable[SavedTensor]) -> None:
    progress = record.progress
    session.add(
        CheckpointRow(
            id=record.id,
            run=record.run,
            graph_id=record.graph_id,
            optimizer=record.optimizer,
            num_steps=progress.num_steps,
            seed=progress.seed,
            loss_scale=progress.loss_scale,
            num_grown=progress.num_grown,
            learning_rate=progress.learning_rate,
            created_at=record.created_at,
        )
    )
    await session.flush()
    session.add_all(
        CheckpointFileRow(
            checkpoint_id=record.id,
            position=position,
            sha256=file.sha256.hex(),
            size_bytes=file.size_bytes,
            is_model=file.is_model,
        )
        for position, file in enumerate(record.files)
    )
    await session.flush()
    await add_rows(session, itertools.starmap(partial(_tensor_row, record.id), enumerate(tensors)))


async def checkpoint_tensors(session: AsyncSession, checkpoint_id: str) -> AsyncIterator[SavedTensor]:
    """In the order in which they were added. Raises NotFound where the checkpoint is deleted meanwhile."""
    query = select(*_TENSOR_COLUMNS).where(CheckpointTensorRow.checkpoint_id == checkpoint_id)
    query = query.order_by(CheckpointTensorRow.position).limit(ROWS_AT_ONCE)
    num_read, rows = 0, (await session.execute(query)).all()
    # Pages rather than a cursor on the server, which takes several statements where there are few tensors.
    while rows:
        for row in rows:
            yield _tensor(row)
        num_read += len(rows)
        if len(rows) < ROWS_AT_ONCE:
            break
        rows = (await session.execute(query.where(CheckpointTensorRow.position >= num_read))).all()
    # Between two pages it may go.
    if num_read >= ROWS_AT_ONCE and not await session.scalar(
        select(CheckpointRow.id).where(CheckpointRow.id == checkpoint_id)
    ):
        raise _not_there(checkpoint_id)


async def get_checkpoint_record(session: AsyncSession, checkpoint_id: str) -> CheckpointRecord:
    return (await _records(session, [await _row(session, checkpoint_id)]))[0]


async def list_checkpoints(
    session: AsyncSession, page: PageRequest, *, run: str = "", graph_id: str = ""
) -> tuple[tuple[CheckpointRecord, ...], str]:
    """Newest first; empty filters let everything through."""
    query = select(CheckpointRow)
    if run:
        query = query.where(CheckpointRow.run == run)
    if graph_id:
        query = query.where(CheckpointRow.graph_id == graph_id)
    rows = (await session.scalars(page.select(query, CheckpointRow.created_at, CheckpointRow.id))).all()
    return page.cut(await _records(session, rows))


async def delete_checkpoint(session: AsyncSession, checkpoint_id: str) -> None:
    """Its files stay as blobs."""
    row = await _row(session, checkpoint_id)
    await session.execute(delete(CheckpointRow).where(CheckpointRow.id == row.id))
    await forget_owners(session, "checkpoint", checkpoint_id)


async def _row(session: AsyncSession, checkpoint_id: str) -> CheckpointRow:
    row = await session.get(CheckpointRow, checkpoint_id)
    if row is None:
        raise _not_there(checkpoint_id)
    return row


def _not_there(checkpoint_id: str) -> NotFound:
    return NotFound(f"no checkpoint has the id {checkpoint_id[:80]!r}; a newer one may have taken its place: list them")


async def _records(session: AsyncSession, rows: Sequence[CheckpointRow]) -> list[CheckpointRecord]:
    query = select(CheckpointFileRow).where(CheckpointFileRow.checkpoint_id.in_([row.id for row in rows]))
    files: dict[str, list[SavedFile]] = {row.id: [] for row in rows}
    for file in await session.scalars(query.order_by(CheckpointFileRow.position)):
        files[file.checkpoint_id].append(
            SavedFile(sha256=bytes.fromhex(file.sha256), size_bytes=file.size_bytes, is_model=file.is_model)
        )
    return [
        CheckpointRecord(
            id=row.id,
            run=row.run,
            graph_id=row.graph_id,
            optimizer=row.optimizer,
            progress=TrainingProgress(
                num_steps=row.num_steps,
                seed=row.seed,
                loss_scale=row.loss_scale,
                num_grown=row.num_grown,
                learning_rate=row.learning_rate,
            ),
            files=tuple(files[row.id]),
            created_at=row.created_at,
        )
        for row in rows
    ]


def _tensor_row(checkpoint_id: str, position: int, tensor: SavedTensor) -> TableRow:
    columns = {
        "checkpoint_id": checkpoint_id,
        "position": position,
        "name": tensor.name,
        "optimizer_tensor": tensor.optimizer_tensor,
        "dtype": tensor.dtype.value,
        "dims": list(tensor.dims),
        "file_sha256": tensor.file_sha256.hex(),
        "offset_bytes": tensor.offset_bytes,
        "length_bytes": tensor.length_bytes,
        "sha256": tensor.sha256.hex(),
    }
    return CheckpointTensorRow, columns


def _tensor(row: Row[Any]) -> SavedTensor:
    return SavedTensor(
        name=row.name,
        optimizer_tensor=row.optimizer_tensor,
        dtype=Dtype(row.dtype),
        dims=tuple(row.dims),
        file_sha256=bytes.fromhex(row.file_sha256),
        offset_bytes=row.offset_bytes,
        length_bytes=row.length_bytes,
        sha256=bytes.fromhex(row.sha256),
    )
