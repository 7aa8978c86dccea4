"""Graphs and the weights that belong to them, on both databases."""

from __future__ import annotations

import asyncio

import pytest

from planner.errors import Conflict, InvalidArgument, NotFound
from planner.graph.ir import WeightFile
from planner.store.database import Database
from planner.store.deployment_records import DeploymentState
from planner.store.graphs import GraphRecord, add_graph, attach_weights, get_graph, list_graphs
from planner.store.paging import parse_page
from tests.planner.store.records import GRAPH_ID, MOST, append, deployment, event, fill, graph, later

pytestmark = pytest.mark.services
# Not in the order of their digests: positions keep the order given.
TWO = (WeightFile(sha256=b"\xff" * 32, size_bytes=MOST), WeightFile(sha256=b"\x01" * 32, size_bytes=0))
OTHERS = (WeightFile(sha256=b"\x77" * 32, size_bytes=8),)


async def get(database: Database, graph_id: str = GRAPH_ID) -> GraphRecord:
    async with database.session() as session:
        return await get_graph(session, graph_id)


async def attach(database: Database, weights: tuple[WeightFile, ...], reason: str = "") -> None:
    async with database.session() as session:
        await attach_weights(session, GRAPH_ID, weights, reason)


async def test_a_graph_is_kept_as_it_was_added(database: Database) -> None:
    record = graph(weights=TWO, not_deployable_reason="")
    await fill(database, record, graph("0" * 64))
    assert await get(database) == record
    assert record.sha256 == bytes.fromhex(GRAPH_ID)


async def test_the_first_record_stays_and_takes_only_weights_and_a_name(database: Database) -> None:
    await fill(database, graph(), graph(name="another", created_at=later(1), not_deployable_reason="other"))
    assert await get(database) == graph(name="another")
    await fill(database, graph(weights=TWO, not_deployable_reason=""))
    assert await get(database) == graph(weights=TWO, not_deployable_reason="")
    await fill(database, graph())
    assert (await get(database)).weights == TWO


async def test_a_graph_is_found_by_each_name_that_it_was_given(database: Database) -> None:
    await fill(database, graph(name="first"), graph("0" * 64, name="first", created_at=later(1)))
    await fill(database, graph(name="second"))
    async with database.session() as session:
        await add_graph(session, graph(name="its own"), rename=False)

    async def listed(name: str) -> list[tuple[str, str]]:
        async with database.reading() as session:
            page, _ = await list_graphs(session, parse_page("graphs", 0, ""), name=name)
        return [(record.id, record.name) for record in page]

    assert await listed("first") == [("0" * 64, "first"), (GRAPH_ID, "second")]
    assert await listed("second") == [(GRAPH_ID, "second")]
    assert await listed("its own") == []
    assert len(await listed("")) == 2


async def test_other_weights_take_the_place_of_those_before(database: Database) -> None:
    await fill(database, graph(weights=TWO))
    for weights in (OTHERS, OTHERS, TWO[::-1], TWO):
        await attach(database, weights, f"{len(weights)} files")
        record = await get(database)
        assert (record.weights, record.not_deployable_reason) == (weights, f"{len(weights)} files")


async def test_weights_in_use_are_not_replaced(database: Database) -> None:
    await fill(database, graph(weights=TWO), deployment())
    await attach(database, TWO)
    for state in DeploymentState:
        if not state.ended:
            await append(database, "dep-1", event(state))
            with pytest.raises(Conflict, match="is deployed"):
                await attach(database, OTHERS)
    assert (await get(database)).weights == TWO
    await append(database, "dep-1", event(DeploymentState.STOPPED))
    await attach(database, OTHERS)
    assert (await get(database)).weights == OTHERS


async def test_a_deployment_of_another_graph_keeps_nobodys_weights(database: Database) -> None:
    await fill(database, graph(weights=TWO), graph("0" * 64), deployment(graph_id="0" * 64))
    await attach(database, OTHERS)
    assert (await get(database)).weights == OTHERS


async def test_weights_attached_at_the_same_time_end_as_one_of_them(database: Database) -> None:
    await fill(database, graph())
    choices = [TWO, OTHERS, TWO[::-1], TWO[:1]]
    await asyncio.gather(*(attach(database, weights, str(index)) for index, weights in enumerate(choices)))
    record = await get(database)
    assert record.weights == choices[int(record.not_deployable_reason)]


@pytest.mark.parametrize("graph_id", ["", "abcde", "ABCDEF", "abcdeg", "abcde%", "abcde_", "a" * 65, "abcdef\n"])
async def test_what_is_no_id_is_refused(database: Database, graph_id: str) -> None:
    with pytest.raises(InvalidArgument, match="6 to 64 hexadecimal digits"):
        await get(database, graph_id)


async def test_a_list_shows_the_weights_of_each(database: Database) -> None:
    records = [graph(f"{index:064x}", created_at=later(index), weights=TWO[:index]) for index in range(3)]
    await fill(database, *records)
    async with database.session() as session:
        page, _ = await list_graphs(session, parse_page("graphs", 0, ""))
    assert page == tuple(records[::-1])


async def test_a_graph_that_a_transaction_gave_up_is_not_there(database: Database) -> None:
    async def add_and_fail() -> None:
        async with database.session() as session:
            await add_graph(session, graph(weights=TWO))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await add_and_fail()
    with pytest.raises(NotFound):
        await get(database)


async def test_weights_of_a_graph_that_was_deleted_meanwhile_are_refused(database: Database) -> None:
    with pytest.raises(NotFound, match=f"no graph has the id {GRAPH_ID}"):
        await attach(database, TWO)
