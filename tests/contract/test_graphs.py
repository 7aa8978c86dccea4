"""Graphs: taken, refused with a reason, given weights, found again."""

from __future__ import annotations

import asyncio

import pytest

from protos.v1 import graph_pb2, planner_pb2, planner_pb2_grpc
from protos.v1.planner_pb2_grpc import PlannerServiceStub
from tests.contract.calls import WAIT_SECONDS, create_graph, every_page, refused, upload, weights_message
from tests.contract.conftest import StartServer, on_both, open_channel
from tests.contract.graphs import chain_bytes, chain_weights, many_nodes, sha256

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


async def create(planner: PlannerServiceStub, **fields: object) -> planner_pb2.GraphRecord:
    return await planner.CreateGraph(planner_pb2.CreateGraphRequest(**fields), timeout=WAIT_SECONDS)


async def get(planner: PlannerServiceStub, graph_id: str) -> planner_pb2.GraphRecord:
    return await planner.GetGraph(planner_pb2.GetGraphRequest(graph_id=graph_id), timeout=WAIT_SECONDS)


async def attach(planner: PlannerServiceStub, graph_id: str, *files: bytes) -> planner_pb2.GraphRecord:
    request = planner_pb2.AttachWeightsRequest(graph_id=graph_id, weights=weights_message(*files))
    return await planner.AttachWeights(request, timeout=WAIT_SECONDS)


async def test_graph_without_weights(planner: PlannerServiceStub, name: str) -> None:
    content = chain_bytes(num_layers=4, width=8, name=name)
    record = await create_graph(planner, content)
    assert record.id == sha256(content).hex()
    assert (record.name, record.size_bytes, record.num_nodes, record.num_states) == (name, len(content), 4, 4)
    assert record.state_bytes == 4 * 8 * 8 * 4
    assert not record.deployable
    assert "weights" in record.not_deployable_reason
    assert not record.HasField("weights")
    assert await get(planner, record.id) == record


async def test_ids_that_are_none(planner: PlannerServiceStub, name: str) -> None:
    record = await create_graph(planner, chain_bytes(name=name))
    with refused("INVALID_ARGUMENT"):
        await get(planner, record.id[:5])
    with refused("INVALID_ARGUMENT"):
        await get(planner, "%%%%%%%%")
    with refused("NOT_FOUND"):
        await get(planner, "0" * 64)


async def test_graph_with_weights_in_one_call(planner: PlannerServiceStub, name: str) -> None:
    weights = chain_weights()
    await upload(planner, weights)
    digest = await upload(planner, chain_bytes(name=name))
    record = await create(planner, sha256=digest, weights=weights_message(weights), name="mine")
    assert record.deployable
    assert record.not_deployable_reason == ""
    assert record.weights == weights_message(weights)
    assert record.name == "mine"


async def test_weights_later_and_others_later_still(planner: PlannerServiceStub, name: str) -> None:
    record = await create_graph(planner, chain_bytes(name=name))
    for fill in (0, 1, 1):
        weights = chain_weights(fill=fill)
        await upload(planner, weights)
        attached = await attach(planner, record.id[:12], weights)
        assert attached.deployable
        assert attached.weights == weights_message(weights)


async def test_weights_that_do_not_fit(planner: PlannerServiceStub, name: str) -> None:
    record = await create_graph(planner, chain_bytes(num_layers=4, width=8, name=name))
    with refused("NOT_FOUND") as refusal:
        await attach(planner, record.id, chain_weights(name=name))
    assert "upload" in refusal.message
    files = {"layers.3.weight": chain_weights(num_layers=3), "layers.0.weight": chain_weights(width=9)}
    for tensor, weights in files.items():
        await upload(planner, weights)
        with pytest.raises(Exception, match=tensor):
            await attach(planner, record.id, weights)
    with refused("INVALID_ARGUMENT"):
        await attach(planner, record.id)
    assert not (await get(planner, record.id)).deployable


@pytest.mark.parametrize("weights", [b"", b"\xff" * 8, chain_weights()[:-1], b"\x02" + bytes(7) + b"[]", bytes(4096)])
async def test_broken_weights(planner: PlannerServiceStub, weights: bytes) -> None:
    record = await create_graph(planner, chain_bytes())
    await upload(planner, weights)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|NOT_FOUND"):
        await attach(planner, record.id, weights)
    await create_graph(planner, chain_bytes(num_layers=1))


@pytest.mark.parametrize("content", [b"", b"\x00garbage", b"\xff" * 1000, chain_bytes()[:-3], b'{"nodes": []}'])
async def test_bytes_that_are_no_graph(planner: PlannerServiceStub, content: bytes) -> None:
    digest = await upload(planner, content)
    with refused("INVALID_GRAPH"):
        await create(planner, sha256=digest)
    await create_graph(planner, chain_bytes())


async def test_operator_that_is_not_allowed(planner: PlannerServiceStub) -> None:
    message = graph_pb2.Graph.FromString(chain_bytes())
    message.operators[0].name = "aten::from_file"
    digest = await upload(planner, message.SerializeToString())
    with refused("INVALID_GRAPH") as refusal:
        await create(planner, sha256=digest)
    assert "aten::from_file" in refusal.message


async def test_graph_that_was_not_uploaded(planner: PlannerServiceStub) -> None:
    with refused("NOT_FOUND"):
        await create(planner, sha256=bytes(32))
    with refused("INVALID_ARGUMENT"):
        await create(planner, sha256=b"short")


async def test_name_that_cannot_be_shown(planner: PlannerServiceStub) -> None:
    digest = await upload(planner, chain_bytes())
    for name in ("x" * 201, "a\nb", "a\0b"):
        with refused("INVALID_ARGUMENT"):
            await create(planner, sha256=digest, name=name)


@on_both
async def test_a_second_name_is_given_and_the_first_finds_the_graph_too(planner: PlannerServiceStub, name: str) -> None:
    content = chain_bytes(name=name)
    first = await create_graph(planner, content, name=f"{name}-a")
    second = await create_graph(planner, content, name=f"{name}-b")
    assert (second.id, second.name, second.created_at) == (first.id, f"{name}-b", first.created_at)
    assert (await create_graph(planner, content)).name == f"{name}-b"
    for searched_name, expected in ((f"{name}-a", [second]), (f"{name}-b", [second]), (name, [])):
        request = planner_pb2.ListGraphsRequest(name=searched_name)
        assert list((await planner.ListGraphs(request, timeout=WAIT_SECONDS)).graphs) == expected
    request = planner_pb2.ListGraphsRequest(name=f"{name}-a", created_since=first.created_at)
    assert len((await planner.ListGraphs(request, timeout=WAIT_SECONDS)).graphs) == 1
    request.created_since.seconds += 1
    assert len((await planner.ListGraphs(request, timeout=WAIT_SECONDS)).graphs) == 0
    request.created_since.seconds = 1 << 60
    with refused("INVALID_ARGUMENT"):
        await planner.ListGraphs(request, timeout=WAIT_SECONDS)


@on_both
async def test_request_id(planner: PlannerServiceStub, name: str) -> None:
    digest, other = await upload(planner, chain_bytes()), await upload(planner, chain_bytes(num_layers=2))
    answers = await asyncio.gather(*(create(planner, sha256=digest, request_id=name) for _ in range(4)))
    assert all(answer == answers[0] for answer in answers)
    assert await create(planner, sha256=digest, request_id=name) == answers[0]
    with refused("REQUEST_ID_REUSED"):
        await create(planner, sha256=other, request_id=name)


@on_both
async def test_pages_are_stable_under_new_graphs(planner: PlannerServiceStub, name: str) -> None:
    contents = [chain_bytes(num_layers=index + 1, name=name) for index in range(5)]
    ids = [(await create_graph(planner, content)).id for content in contents]
    first = await planner.ListGraphs(planner_pb2.ListGraphsRequest(page_size=2), timeout=WAIT_SECONDS)
    new = await create_graph(planner, chain_bytes(num_layers=6, name=name))
    rest = planner_pb2.ListGraphsRequest(page_token=first.next_page_token)
    pages = [first, *await every_page(planner.ListGraphs, rest, 2)]
    listed = [record.id for page in pages for record in page.graphs]
    assert listed[:5] == ids[::-1]
    assert len(set(listed)) == len(listed)
    assert new.id not in listed


async def test_token_of_another_list(planner: PlannerServiceStub, name: str) -> None:
    for index in range(2):
        await create_graph(planner, chain_bytes(num_layers=index + 1, name=name))
    page = await planner.ListGraphs(planner_pb2.ListGraphsRequest(page_size=1), timeout=WAIT_SECONDS)
    with refused("INVALID_ARGUMENT"):
        await planner.ListPlans(planner_pb2.ListPlansRequest(page_token=page.next_page_token), timeout=WAIT_SECONDS)
    with refused("INVALID_ARGUMENT"):
        await planner.ListGraphs(planner_pb2.ListGraphsRequest(page_token="nonsense"), timeout=WAIT_SECONDS)


@on_sqlite
async def test_a_million_nodes_are_refused(planner: PlannerServiceStub) -> None:
    digest = await upload(planner, many_nodes(1_000_000))
    with refused("INVALID_GRAPH") as refusal:
        await create(planner, sha256=digest)
    assert "1000002 nodes" in refusal.message
    await create_graph(planner, chain_bytes())


@on_sqlite
async def test_other_calls_go_on_beside_a_large_graph(planner: PlannerServiceStub) -> None:
    digest = await upload(planner, many_nodes(30_000))
    creation = asyncio.ensure_future(create(planner, sha256=digest))
    answered = 0
    while not creation.done():
        await planner.ListGraphs(planner_pb2.ListGraphsRequest(page_size=1), timeout=WAIT_SECONDS)
        answered += 1
    assert answered > 5
    assert (await creation).num_nodes == 30_002


async def test_more_nodes_than_the_server_takes(start_server: StartServer) -> None:
    server = await start_server(max_graph_nodes=1000)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        digest = await upload(planner, many_nodes(1000))
        with refused("INVALID_GRAPH") as refusal:
            await create(planner, sha256=digest)
        assert "1002" in refusal.message


async def test_graph_that_takes_too_long(start_server: StartServer) -> None:
    server = await start_server(check_timeout_seconds=0.001)
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        digest = await upload(planner, many_nodes(10_000))
        with refused("TIMEOUT"):
            await create(planner, sha256=digest)
        await get_nothing(planner)


async def get_nothing(planner: PlannerServiceStub) -> None:
    with refused("NOT_FOUND"):
        await get(planner, "0" * 64)
