"""Blobs that belong to no graph, collected once nobody has asked for them for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from planner.api.threads import in_thread
from planner.errors import Conflict
from planner.store.blob_references import is_referenced, lock_references, referenced_blobs
from planner.store.blobs import DATABASES, BlobStore
from planner.store.database import Database
from planner.store.quotas import forget_upload, uploads_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """`num_young` blobs belong to no graph either, and were uploaded or asked for lately."""

    num_blobs: int = 0
    size_bytes: int = 0
    num_referenced: int = 0
    num_young: int = 0


class BlobCollection:
    """Deletes what no graph refers to and nobody uploaded or asked for within `grace`, never anything else.

    What a graph begins to refer to meanwhile stays: whoever adds the reference looks for the blob in a transaction that
    waits for this one, or this one for that.
    """

    def __init__(self, database: Database, blobs: BlobStore, grace: timedelta) -> None:
        self._database = database
        self._blobs = blobs
        self._grace = grace
        self._turn = asyncio.Lock()

    async def run(self, *, dry_run: bool = False) -> Collected:
        """With `dry_run` only counts. Raises Conflict where another database uses the blobs."""
        async with self._turn:
            users = await in_thread(self._blobs.databases)
            if len(users) > 1:
                raise Conflict(
                    f"{len(users)} databases use these blobs, and each knows its own graphs alone; nothing is "
                    f"collected. Of those that are gone, delete the files in the folder {DATABASES} of the blob store: "
                    f"{', '.join(users)}"
                )
            return await self._collect(datetime.now(UTC) - self._grace, dry_run)

    async def _collect(self, before: datetime, dry_run: bool) -> Collected:
        names = frozenset(await in_thread(self._blobs.names))
        async with self._database.reading() as session:
            unreferenced = names - await referenced_blobs(session)
        num_blobs = size_bytes = 0
        for sha256 in sorted(unreferenced):
            freed = await (self._size_if_old(sha256, before) if dry_run else self._delete(sha256, before))
            num_blobs += freed is not None
            size_bytes += freed or 0
        if not dry_run:
            size_bytes += await in_thread(self._blobs.drop_partial, before)
            await self._forget_uploads(before)
        return Collected(
            num_blobs=num_blobs,
            size_bytes=size_bytes,
            num_referenced=len(names) - len(unreferenced),
            num_young=len(unreferenced) - num_blobs,
        )

    async def _delete(self, sha256: bytes, before: datetime) -> int | None:
        """The bytes that it had; None where it stays."""
        if await self._size_if_old(sha256, before) is None:
            return None
        async with self._database.session() as session:
            await lock_references(session)
            if await is_referenced(session, sha256):
                return None
            # Once more: it may have been asked for while this waited.
            size_bytes = await self._size_if_old(sha256, before)
            if size_bytes is not None:
                await in_thread(self._blobs.delete, sha256)
                await forget_upload(session, sha256)
            return size_bytes

    async def _forget_uploads(self, before: datetime) -> None:
        """Those that were begun and of which nothing is here: they count no longer."""
        async with self._database.session() as session:
            for sha256 in await uploads_before(session, before):
                if not await in_thread(self._blobs.committed_bytes, sha256):
                    await forget_upload(session, sha256)

    async def _size_if_old(self, sha256: bytes, before: datetime) -> int | None:
        used_at = await in_thread(self._blobs.used_at, sha256)
        if used_at is None or used_at >= before:
            return None
        return await in_thread(self._blobs.size_bytes, sha256)
