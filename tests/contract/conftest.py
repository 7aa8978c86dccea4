"""Real servers for contract tests: on a free port, on SQLite and on PostgreSQL, spoken to over a real channel.

`planner` speaks to a server that all tests of this process share, one for each kind of database: a test gives what it
makes there a `name` of its own. A test that restarts or configures its server, or needs one that knows nothing, asks
for `start_server`: each call starts one more on a database and a folder of the test's own, after the one before has
stopped. All run on one event loop, that of the session.

What reads and writes rows is tested on both kinds of database in tests/planner/store. Here each call runs on SQLite,
and those whose answer a database decides, by its order, its moments or who comes first, on PostgreSQL too: `on_both`.
The others do so in `make test-nightly`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import structlog

from planner.api.server import PlannerServer
from planner.settings import Settings
from protos.v1 import planner_pb2_grpc
from tests.contract.databases import KINDS, empty_database
from tests.nightly import nightly

LEASE_SECONDS = 600.0
on_both = pytest.mark.parametrize("database_kind", KINDS, indirect=True)
StartServer = Callable[..., Awaitable[PlannerServer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedServer:
    server: PlannerServer
    settings: Settings
    channel: grpc.aio.Channel


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """The library's default renders every local variable of a traceback, which takes seconds."""
    structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])


@pytest.fixture
def name() -> str:
    """What no other test calls its graphs, devices and requests."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=[*KINDS[:1], *nightly(KINDS[1:])])
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def share_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Callable[[str], Awaitable[SharedServer]]]:
    """Gives the server for a kind of database, which the first call starts."""
    servers: dict[str, SharedServer] = {}
    async with contextlib.AsyncExitStack() as resources:

        async def share(kind: str) -> SharedServer:
            if kind not in servers:
                folder = tmp_path_factory.mktemp(f"shared-{kind}")
                settings = _settings(resources.enter_context(empty_database(kind, folder)), folder)
                server = await PlannerServer.start(settings)
                resources.push_async_callback(server.stop, 0.0)
                channel = await resources.enter_async_context(open_channel(server.address))
                servers[kind] = SharedServer(server=server, settings=settings, channel=channel)
            return servers[kind]

        yield share


@pytest_asyncio.fixture(loop_scope="session")
async def shared(share_server: Callable[[str], Awaitable[SharedServer]], database_kind: str) -> SharedServer:
    return await share_server(database_kind)


@pytest.fixture
def server(shared: SharedServer) -> PlannerServer:
    return shared.server


@pytest.fixture
def channel(shared: SharedServer) -> grpc.aio.Channel:
    return shared.channel


@pytest.fixture
def planner(channel: grpc.aio.Channel) -> planner_pb2_grpc.PlannerServiceStub:
    return planner_pb2_grpc.PlannerServiceStub(channel)


@pytest.fixture
def own_settings(database_kind: str, tmp_path: Path) -> Iterator[Settings]:
    with empty_database(database_kind, tmp_path) as url:
        yield _settings(url, tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def start_server(own_settings: Settings) -> AsyncIterator[StartServer]:
    async with contextlib.AsyncExitStack() as servers:

        async def start(**changes: object) -> PlannerServer:
            server = await PlannerServer.start(own_settings.model_copy(update=changes))
            servers.push_async_callback(server.stop, 0.0)
            return server

        yield start


def open_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", 1 << 30)])


def _settings(database_url: str, folder: Path) -> Settings:
    return Settings(
        listen="127.0.0.1:0",
        data_dir=folder / "data",
        database_url=database_url,
        stop_grace_seconds=0,
        # No daemon is gone only because the machine is slow.
        lease_seconds=LEASE_SECONDS,
    )
