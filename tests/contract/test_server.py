"""What every server does whatever is asked of it: health, reflection, errors that nobody foresaw, its schema."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from planner.api.rules import WORDS_BYTES
from planner.api.server import PlannerServer
from planner.errors import Conflict, Unavailable
from planner.settings import Settings
from planner.store.database import Database
from protos.v1 import planner_pb2, planner_pb2_grpc
from tests.access.channels import NUM_PINGS, PING_SECONDS, asking_channel
from tests.contract.calls import WAIT_SECONDS, create_graph, refused
from tests.contract.conftest import SharedServer, StartServer, on_both, open_channel
from tests.contract.graphs import chain_bytes
from tests.planner.store.test_database import schema_differences

pytestmark = [pytest.mark.services, pytest.mark.asyncio(loop_scope="session")]
SERVICES = ["partition_planner.v1.PlannerService", "partition_planner.v1.DaemonRegistryService"]


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health(channel: grpc.aio.Channel, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.slow
async def test_a_stream_in_which_nothing_happens_stays(server: PlannerServer) -> None:
    async with asking_channel(server.address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watching.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watching.read(), NUM_PINGS * PING_SECONDS)


async def test_reflection(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
    names = [service.name async for answer in call for service in answer.list_services_response.service]
    assert set(SERVICES) < set(names)


@on_both
async def test_schema_is_the_tables(shared: SharedServer) -> None:
    database = Database(shared.settings.database)
    async with database.session() as session:
        assert await (await session.connection()).run_sync(schema_differences) == []
    await database.close()


@on_both
async def test_error_that_nobody_foresaw(start_server: StartServer, own_settings: Settings) -> None:
    server = await start_server()
    database = Database(own_settings.database)
    async with database.session() as session:
        await (await session.connection()).exec_driver_sql("DROP TABLE graph_weight_files")
    await database.close()
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        with refused("INTERNAL") as refusal:
            await create_graph(planner, chain_bytes())
        assert refusal.code is grpc.StatusCode.INTERNAL
        assert refusal.metadata["incident_id"] in refusal.message
        assert "graph_weight_files" not in refusal.message
        await planner.ListPlans(planner_pb2.ListPlansRequest(), timeout=WAIT_SECONDS)


async def test_message_above_the_limit(start_server: StartServer) -> None:
    server = await start_server(max_message_bytes=1000)
    async with grpc.aio.insecure_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await planner.GetGraph(planner_pb2.GetGraphRequest(graph_id="a" * 1001), timeout=WAIT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "method", ["PlannerService/GetGraph", "DaemonRegistryService/Heartbeat", "PlannerService/Deploy"]
)
async def test_a_message_is_refused_before_it_is_parsed(channel: grpc.aio.Channel, method: str) -> None:
    """Of nothing but unknown fields, which take many times their bytes once they are parsed."""
    for content, says in (
        (b"\xa0\x06\x01" * WORDS_BYTES, "at most 1,048,576 are taken"),
        (b"\xff", "cannot be parsed"),
    ):
        with refused("INVALID_ARGUMENT") as refusal:
            await channel.unary_unary(f"/partition_planner.v1.{method}")(content, timeout=WAIT_SECONDS)
        assert says in refusal.message
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    with refused("INVALID_ARGUMENT"):
        await health(bytes(WORDS_BYTES + 1), timeout=WAIT_SECONDS)


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_second_server_on_the_database_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    """Each has a folder of its own."""
    first = await start_server()
    with pytest.raises(
        Conflict, match=r"another planner-server uses the database .*planner\.db; on SQLite there is one"
    ):
        await start_server(data_dir=tmp_path / "other")
    await first.stop(0.0)
    await start_server(data_dir=tmp_path / "other")


async def test_two_servers_in_one_folder(start_server: StartServer) -> None:
    await start_server()
    with pytest.raises(Conflict, match="--data-dir"):
        await start_server()


async def test_port_that_is_taken(server: PlannerServer, start_server: StartServer) -> None:
    with pytest.raises(Unavailable, match=server.address):
        await start_server(listen=server.address)


async def test_metrics_are_served_while_the_server_runs(
    start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await start_server(metrics_listen="127.0.0.1:0")
    address = re.search(r"address='(127\.0\.0\.1:\d+)'", capsys.readouterr().out)
    assert address is not None
    async with open_channel(server.address) as channel:
        planner = planner_pb2_grpc.PlannerServiceStub(channel)
        await planner.ListPlans(planner_pb2.ListPlansRequest(), timeout=WAIT_SECONDS)
    scrape = partial(urlopen, f"http://{address[1]}/metrics", timeout=WAIT_SECONDS)
    counted = b'planner_calls_total{method="ListPlans",outcome="OK"} 1.0'
    async with asyncio.timeout(WAIT_SECONDS):
        while counted not in (await asyncio.to_thread(scrape)).read():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await server.stop(0)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(scrape)
