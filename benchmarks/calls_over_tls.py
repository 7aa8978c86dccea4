"""What mutual TLS and tokens cost a call, and whether one fails while certificates are replaced.

    .venv/bin/python -m benchmarks.calls_over_tls [--seconds 20] [--every 0.5]

Client and server are in one process, so that the CPU seconds are those of both; the ratio is to plain text in the same
run. Reads are ListInventories of an empty SQLite database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import structlog

from access.channels import open_aio_channel
from access.files import TlsFiles, WatchedCredentials
from planner.api.access_service import create_token
from planner.api.server import PlannerServer
from planner.settings import Settings
from planner.store.database import Database
from protos.v1 import planner_pb2, planner_pb2_grpc
from tests.access.certificates import Certificates

NUM_CALLS = 300
NUM_ROUNDS = 4
REQUEST = planner_pb2.ListInventoriesRequest()


@contextlib.asynccontextmanager
async def serving(folder: Path, own: TlsFiles | None, served: TlsFiles | None, *, tokens: bool) -> AsyncIterator[Any]:
    """A stub of a planner of its own."""
    files = {} if served is None else {"tls_certificate": served.certificate, "tls_key": served.key}
    settings = Settings(
        listen="127.0.0.1:0",
        data_dir=folder,
        access="tokens" if tokens else "off",
        tls_ca=served.authorities if served else None,
        **files,
    )
    server = await PlannerServer.start(settings)
    secret = ""
    if tokens:
        database = Database(settings.database)
        secret, _ = await create_token(database, "bench", ("submit",), timedelta(days=1))
        await database.close()
    watched = WatchedCredentials(own) if own else None
    channel = open_aio_channel(server.address, watched, token=(lambda: secret) if tokens else None)
    yield planner_pb2_grpc.PlannerServiceStub(channel)
    await channel.close()
    await server.stop(0)


async def cpu_seconds(stub: Any) -> float:
    """Of one call, both ends."""
    for _ in range(NUM_CALLS // 10):
        await stub.ListInventories(REQUEST)
    start = time.process_time()
    for _ in range(NUM_CALLS):
        await stub.ListInventories(REQUEST)
    return (time.process_time() - start) / NUM_CALLS


async def rotate(certificates: Certificates, stub: Any, seconds: float, every_seconds: float) -> str:
    num_calls = num_failed = num_rotations = 0
    until, next_rotation = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        if time.monotonic() > next_rotation:
            for role in ("planner", "client"):
                certificates.issue(role)
            num_rotations += 1
            next_rotation = time.monotonic() + every_seconds
        num_calls += 1
        try:
            await stub.ListInventories(REQUEST)
        except grpc.aio.AioRpcError:
            num_failed += 1
    return f"{num_rotations} renewals of both ends' certificates, {num_calls} calls, {num_failed} failed"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=0.5)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    async with contextlib.AsyncExitStack() as servers:
        folder = Path(servers.enter_context(tempfile.TemporaryDirectory()))
        certificates = Certificates.of(folder / "authority")
        served, own = certificates.issue("planner"), certificates.issue("client")
        stubs = {
            "plain text": await servers.enter_async_context(serving(folder / "plain", None, None, tokens=False)),
            "mutual TLS": await servers.enter_async_context(serving(folder / "tls", own, served, tokens=False)),
            "and a token": await servers.enter_async_context(serving(folder / "tokens", own, served, tokens=True)),
        }
        least: dict[str, float] = {}
        for _ in range(NUM_ROUNDS):
            for name, stub in stubs.items():
                least[name] = min(least.get(name, float("inf")), await cpu_seconds(stub))
        for name, seconds in least.items():
            print(
                f"{name}: {1e6 * seconds:.0f} us of CPU, {seconds / least['plain text']:.2f} times plain text",
                flush=True,
            )
        print(await rotate(certificates, stubs["and a token"], arguments.seconds, arguments.every), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
