"""Which blobs belong to a graph or to a checkpoint."""

from __future__ import annotations

from sqlalchemy import func, select, union
from sqlalchemy.ext.asyncio import AsyncSession

from planner.store.tables import CheckpointFileRow, GraphRow, GraphWeightFileRow

REFERENCES_LOCK = 0x626C6F62


async def lock_references(session: AsyncSession) -> None:
    """No other transaction begins to refer to a blob, or collects one, before this one ends.

    On SQLite there is one that writes in any case.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(REFERENCES_LOCK)))


async def referenced_blobs(session: AsyncSession) -> frozenset[bytes]:
    """The sha256 of every graph, and of every file of weights or of a checkpoint."""
    names = await session.scalars(
        union(select(GraphRow.id), select(GraphWeightFileRow.sha256), select(CheckpointFileRow.sha256))
    )
    return frozenset(map(bytes.fromhex, names))


async def is_referenced(session: AsyncSession, sha256: bytes) -> bool:
    name = sha256.hex()
    graphs = select(GraphRow.id).where(GraphRow.id == name)
    files = select(GraphWeightFileRow.sha256).where(GraphWeightFileRow.sha256 == name)
    saved = select(CheckpointFileRow.sha256).where(CheckpointFileRow.sha256 == name)
    return (await session.scalars(union(graphs, files, saved))).first() is not None
