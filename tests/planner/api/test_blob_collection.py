"""Which blobs are collected and which never are, on both databases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession

from planner.api import blob_collection
from planner.api.blob_calls import BlobCalls
from planner.api.blob_collection import BlobCollection, Collected
from planner.api.computing import Computing
from planner.api.graph_calls import GraphCalls
from planner.api.housekeeping import Housekeeping
from planner.errors import Conflict, NotFound
from planner.graph.checkpoint import CheckpointRecord, SavedFile, TrainingProgress
from planner.graph.ir import WeightFile
from planner.settings import Settings
from planner.store.blob_references import lock_references
from planner.store.checkpoints import add_checkpoint, delete_checkpoint
from planner.store.graphs import add_graph, delete_graph
from planner.store.quotas import charge_upload, uploads_before
from planner.wire.graph import graph_to_bytes
from protos.v1 import planner_pb2
from tests.contract.databases import KINDS
from tests.contract.graphs import relu_chain
from tests.planner.api.conftest import Planner, open_planner
from tests.planner.store.records import graph
from tests.waiting import eventually

pytestmark = pytest.mark.services
HOUR = timedelta(hours=1)


@pytest_asyncio.fixture(params=KINDS)
async def planner(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> AsyncIterator[Planner]:
    async with open_planner(request.param, settings, tmp_path) as planner:
        yield planner


def collection(planner: Planner) -> BlobCollection:
    return BlobCollection(planner.database, planner.blobs, HOUR)


def make_old(planner: Planner, sha256: bytes) -> bytes:
    long_ago = (datetime.now(UTC) - 2 * HOUR).timestamp()
    name = sha256.hex()
    os.utime(Path(planner.settings.blobs.removeprefix("file://")) / name[:2] / name, (long_ago, long_ago))
    return sha256


def old(planner: Planner, content: bytes) -> bytes:
    return make_old(planner, planner.blobs.put(content))


async def add(planner: Planner, sha256: bytes, *weights: bytes) -> None:
    files = tuple(WeightFile(sha256=weight, size_bytes=1) for weight in weights)
    async with planner.database.session() as session:
        await add_graph(session, graph(sha256.hex(), weights=files))


async def save(planner: Planner, graph_id: str, sha256: bytes) -> None:
    record = CheckpointRecord(
        id="ckpt-1",
        run="run",
        graph_id=graph_id,
        optimizer="sgd",
        progress=TrainingProgress(num_steps=1, seed=""),
        files=(SavedFile(sha256=sha256, size_bytes=5, is_model=True),),
        created_at=datetime.now(UTC),
    )
    async with planner.database.session() as session:
        await add_checkpoint(session, record, ())


async def test_what_belongs_to_nothing_goes_once_nobody_asked_for_it_for_a_while(planner: Planner) -> None:
    contents = (b"graph", b"weights", b"saved", b"forgotten")
    of_graph, weights, saved, forgotten = (old(planner, content) for content in contents)
    young = planner.blobs.put(b"young")
    await add(planner, of_graph, weights)
    await save(planner, of_graph.hex(), saved)
    collected = Collected(num_blobs=1, size_bytes=len(b"forgotten"), num_referenced=3, num_young=1)
    assert await collection(planner).run(dry_run=True) == collected
    assert forgotten in planner.blobs.names()
    assert await collection(planner).run() == collected
    assert planner.blobs.names() == tuple(sorted((of_graph, weights, saved, young)))
    # What was uploaded while others were collected may belong to a checkpoint by now.
    assert await collection(planner)._delete(saved, datetime.now(UTC)) is None
    async with planner.database.session() as session:
        await delete_checkpoint(session, "ckpt-1")
        await delete_graph(session, of_graph.hex())
    assert (await collection(planner).run()).num_blobs == 3
    assert planner.blobs.names() == (young,)


@pytest.mark.parametrize("ask", [lambda planner: planner.blobs.put(b"blob"), None], ids=["written", "uploaded"])
async def test_who_is_about_to_refer_to_a_blob_finds_it_there(planner: Planner, ask: Callable[[Planner], Any]) -> None:
    blob = old(planner, b"blob")
    if ask is None:
        calls = BlobCalls()
        calls._blobs = planner.blobs
        assert (await calls.GetUpload(planner_pb2.GetUploadRequest(sha256=blob), None)).complete
    else:
        ask(planner)
    assert await collection(planner).run() == Collected(num_young=1)


async def test_uploads_that_were_given_up_are_dropped(planner: Planner) -> None:
    staging = planner.settings.staging_dir
    partial, lock = staging / f"{b'x'.hex() * 32}.partial", staging / "lock"
    for path in (partial, lock):
        path.write_bytes(b"begun")
    assert await collection(planner).run() == Collected()
    for path in (partial, lock):
        os.utime(path, (0, 0))
    await collection(planner).run(dry_run=True)
    assert partial.exists()
    assert await collection(planner).run() == Collected(size_bytes=5)
    assert [path.name for path in staging.iterdir()] == ["lock"]


async def test_what_was_collected_counts_no_longer_as_its_caller_s(planner: Planner) -> None:
    stays, goes = old(planner, b"graph"), old(planner, b"forgotten")
    given_up, under_way = b"x" * 32, b"y" * 32
    (planner.settings.staging_dir / f"{under_way.hex()}.partial").write_bytes(b"begun")
    await add(planner, stays)
    async with planner.database.session() as session:
        for sha256 in (stays, goes, given_up, under_way):
            await charge_upload(session, "alice", sha256, 1, 4, datetime.now(UTC) - 2 * HOUR)
    await collection(planner).run(dry_run=True)
    await collection(planner).run()
    async with planner.database.reading() as session:
        assert await uploads_before(session, datetime.now(UTC)) == {stays, under_way}


async def test_a_reference_that_is_being_added_is_waited_for(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    blob, asks = old(planner, b"graph"), asyncio.Event()

    async def lock(session: AsyncSession) -> None:
        asks.set()
        await lock_references(session)

    monkeypatch.setattr(blob_collection, "lock_references", lock)
    async with planner.database.session() as session:
        await lock_references(session)
        await add_graph(session, graph(blob.hex()))
        collecting = asyncio.create_task(collection(planner).run())
        await asks.wait()
        await asyncio.wait({collecting}, timeout=0.2)
        assert not collecting.done()
    assert await collecting == Collected(num_young=1)
    assert planner.blobs.names() == (blob,)


class CollectsMeanwhile(Computing):
    """After a graph was examined, and before it is written down."""

    def __init__(self, planner: Planner) -> None:
        super().__init__(1)
        self._planner = planner

    async def run(self, *arguments: Any) -> Any:
        facts = await super().run(*arguments)
        for sha256 in self._planner.blobs.names():
            make_old(self._planner, sha256)
        await collection(self._planner).run()
        return facts


async def test_a_graph_whose_blob_was_collected_meanwhile_is_refused(planner: Planner) -> None:
    calls = GraphCalls()
    calls._settings, calls._database, calls._blobs = planner.settings, planner.database, planner.blobs
    calls._checks = CollectsMeanwhile(planner)
    sha256 = planner.blobs.put(graph_to_bytes(relu_chain(1)))
    with pytest.raises(NotFound, match="collected meanwhile; submit again"):
        await calls.CreateGraph(planner_pb2.CreateGraphRequest(sha256=sha256), None)


async def test_blobs_that_two_databases_use_are_not_collected(planner: Planner) -> None:
    blob = old(planner, b"another's graph")
    for database_id in ("mine", "mine", "theirs"):
        planner.blobs.use_for(database_id)
    with pytest.raises(Conflict, match=r"2 databases use these blobs.*: mine, theirs"):
        await collection(planner).run()
    assert planner.blobs.names() == (blob,)


async def test_housekeeping_collects(planner: Planner) -> None:
    old(planner, b"forgotten")
    housekeeping = Housekeeping(planner.database, 30.0, collection(planner))
    housekeeping.start()

    async def is_collected() -> bool:
        return not planner.blobs.names()

    await eventually(is_collected, "the blob to be collected")
    await housekeeping.close()
