"""What one caller may have at once, counted in the transaction that adds to it.

Callers are known over TLS. Where nobody is known the caller's name is empty, and nothing is counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner.errors import ResourceExhausted
from planner.partition.describe import describe_bytes
from planner.store.deployments import count_active
from planner.store.operations import count_open
from planner.store.tables import UploadRow

# Of what passes by itself: when the caller may ask again.
RETRY_SECONDS = 5.0
_LOCK = 0x71756F74


def over_quota(caller: str, usage: str, most: str, setting: str, remedy: str, **facts: object) -> ResourceExhausted:
    """`usage` is what the caller has of it, `setting` the name of the limit's setting in the environment."""
    return ResourceExhausted(
        f"{caller} has {usage}, and one caller may have {most} ({setting}): {remedy}",
        found=usage,
        most=most,
        setting=setting,
        **facts,
    )


async def check_plans(session: AsyncSession, caller: str, most: int) -> None:
    """Raises ResourceExhausted where the caller may not ask for another."""
    if not caller:
        return
    await _take_turn(session, caller)
    num_open = await count_open(session, caller)
    if num_open >= most:
        raise over_quota(
            caller,
            f"{num_open} plans that are waiting or being computed",
            str(most),
            "PLANNER_MAX_PENDING_PLANS_PER_CALLER",
            "wait for some of them, or cancel some",
            retry_after_seconds=RETRY_SECONDS,
        )


async def check_deployments(session: AsyncSession, caller: str, most: int) -> None:
    """Raises ResourceExhausted where the caller may not begin another."""
    if not caller:
        return
    await _take_turn(session, caller)
    num_active = await count_active(session, caller)
    if num_active >= most:
        raise over_quota(
            caller,
            f"{num_active} deployments that have not ended",
            str(most),
            "PLANNER_MAX_DEPLOYMENTS_PER_CALLER",
            "stop one of them",
        )


async def charge_upload(
    session: AsyncSession, caller: str, sha256: bytes, size_bytes: int, most_bytes: int, now: datetime
) -> None:
    """The blob counts as the caller's until it is collected. Raises ResourceExhausted where that is too much."""
    if not caller:
        return
    await _take_turn(session, caller)
    others = select(func.coalesce(func.sum(UploadRow.size_bytes), 0)).where(
        UploadRow.principal == caller, UploadRow.sha256 != sha256.hex()
    )
    taken_bytes = int((await session.execute(others)).scalar_one())
    if taken_bytes + size_bytes > most_bytes:
        raise over_quota(
            caller,
            f"uploads of {describe_bytes(taken_bytes)} beside this one of {describe_bytes(size_bytes)}",
            describe_bytes(most_bytes),
            "PLANNER_MAX_UPLOADED_BYTES_PER_CALLER",
            "delete graphs and checkpoints that are no longer needed; they count until their blobs are collected "
            "(PLANNER_BLOB_GRACE_HOURS)",
        )
    await session.merge(UploadRow(principal=caller, sha256=sha256.hex(), size_bytes=size_bytes, begun_at=now))


async def forget_upload(session: AsyncSession, sha256: bytes, keep_of: str = "") -> None:
    """The blob counts as nobody's any more, or as `keep_of`'s alone."""
    await session.execute(delete(UploadRow).where(UploadRow.sha256 == sha256.hex(), UploadRow.principal != keep_of))


async def uploads_before(session: AsyncSession, before: datetime) -> frozenset[bytes]:
    """The sha256 of what counts and was last begun before that moment."""
    names: Iterable[str] = await session.scalars(select(UploadRow.sha256).where(UploadRow.begun_at < before))
    return frozenset(map(bytes.fromhex, names))


async def _take_turn(session: AsyncSession, caller: str) -> None:
    """No other transaction counts what the caller has before this one ends.

    On SQLite there is one that writes in any case.
    """
    if session.get_bind().dialect.name == "postgresql":
        number = zlib.crc32(caller.encode()) >> 1
        await session.execute(select(func.pg_advisory_xact_lock(_LOCK, number)))
