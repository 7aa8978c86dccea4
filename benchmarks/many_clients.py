"""What 200 clients wait for their reads while plans are made: percentiles, on SQLite and on PostgreSQL.

Run from the repository's root: `.venv/bin/python -m benchmarks.many_clients [SECONDS [PAUSE]]`. A server process plans
deep graphs, one after the other on both of its workers, while 200 connections of this process each read a graph, a list
of plans or a plan, and pause for so many seconds. Beside it the same reads by one client, and by 200 with no plans, for
20 s at most. Beneath it what memory the server, without its workers, has after each tenth of the time.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from benchmarks.deep_graph import deep_graph
from planner.client import PlannerClient
from planner.cost.inventory import Device, Inventory
from planner.plan.options import BalancedMode, OptimalMode, PlanOptions
from protos.v1 import planner_pb2, planner_pb2_grpc
from tests.contract.postgresql import postgresql
from tests.faults.planners import running_planners

CLIENTS = 200
NUM_NODES = 20_000
READ_NODES = 200
LISTED_PLANS = 20
LIMIT_MS = 250.0
FEW_PAUSE_SECONDS = 0.01
MOST_SECONDS_ALONE = 20.0
NUM_MEMORY_FIGURES = 10


def main() -> None:
    numbers = [float(text) for text in sys.argv[1:]]
    seconds, pause_seconds = (*numbers, *(20.0, 5.0)[len(numbers) :])
    print(f"{'':<12}{'':<26}{'reads':>7}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'max ms':>9}{'plans':>7}")
    with tempfile.TemporaryDirectory() as folder:
        _measure("SQLite", f"sqlite+aiosqlite:///{folder}/planner.db", Path(folder) / "sqlite", seconds, pause_seconds)
    with tempfile.TemporaryDirectory() as folder, _database() as url:
        _measure("PostgreSQL", url, Path(folder) / "postgresql", seconds, pause_seconds)


@contextmanager
def _database() -> Iterator[str]:
    server = postgresql()
    name = f"clients_{time.time_ns()}"
    server.execute(f'CREATE DATABASE "{name}"')
    try:
        yield server.url(name)
    finally:
        server.execute(f'DROP DATABASE "{name}"')


def _measure(database: str, url: str, folder: Path, seconds: float, pause_seconds: float) -> None:
    folder.mkdir()
    inventory = Inventory(
        devices=tuple(
            Device(id=f"gpu{index}", kind="h100", host=f"node{index // 8}", memory_bytes=(40 + index) << 30)
            for index in range(16)
        )
    )
    with running_planners(1, folder, url) as [planner], PlannerClient(planner.address, timeout_seconds=300) as client:
        deep, small = (client.submit(deep_graph(count)) for count in (NUM_NODES, READ_NODES))
        plans = [
            client.create_plan(small.id, PlanOptions(mode=BalancedMode(num_stages=4)), inventory=inventory)
            for _ in range(LISTED_PLANS)
        ]
        ask = _Asking(planner.address, small.id, tuple(plan.id for plan in plans))
        for count, pause in ((1, FEW_PAUSE_SECONDS), (CLIENTS, pause_seconds)):
            alone = asyncio.run(ask.by(count, pause, min(seconds, MOST_SECONDS_ALONE)))
            _report(database, f"{count} alone", alone)
        # More than can be done meanwhile.
        operations = [
            client.start_plan(deep.id, PlanOptions(mode=OptimalMode()), inventory=inventory)
            for _ in range(max(4, round(seconds)))
        ]
        with ThreadPoolExecutor(1) as pool:
            memory = pool.submit(_memory, planner.process_id, seconds)
            reads = asyncio.run(ask.by(CLIENTS, pause_seconds, seconds))
        num_done = sum(operation.refresh().has_ended for operation in operations)
        _report(database, f"{CLIENTS} while it plans", reads, num_done)
        print(f"{database:<12}resident MiB: {', '.join(str(size >> 20) for size in memory.result())}", flush=True)
        for operation in operations:
            operation.cancel()


@dataclass(frozen=True, slots=True)
class _Asking:
    address: str
    graph_id: str
    plan_ids: tuple[str, ...]

    async def by(self, num_clients: int, pause_seconds: float, seconds: float) -> list[float]:
        """Seconds of each read."""
        ends_at = time.monotonic() + seconds
        # They come evenly, rather than all at once.
        clients = (
            self._by_one(index, pause_seconds * index / num_clients, pause_seconds, ends_at)
            for index in range(num_clients)
        )
        return [one for latencies in await asyncio.gather(*clients) for one in latencies]

    async def _by_one(self, index: int, starts_after: float, pause_seconds: float, ends_at: float) -> list[float]:
        latencies: list[float] = []
        async with grpc.aio.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: planner_pb2_grpc.PlannerServiceAsyncStub = planner_pb2_grpc.PlannerServiceStub(channel)
            await channel.channel_ready()
            await asyncio.sleep(starts_after)
            plan_ids = itertools.cycle(self.plan_ids)
            calls = (
                lambda: stub.GetGraph(planner_pb2.GetGraphRequest(graph_id=self.graph_id)),
                lambda: stub.ListPlans(planner_pb2.ListPlansRequest(page_size=LISTED_PLANS)),
                lambda: stub.GetPlan(planner_pb2.GetPlanRequest(plan_id=next(plan_ids))),
            )
            while time.monotonic() < ends_at:
                started = time.perf_counter()
                await calls[(index + len(latencies)) % len(calls)]()
                latencies.append(time.perf_counter() - started)
                await asyncio.sleep(pause_seconds)
        return latencies


def _memory(process_id: int, seconds: float) -> list[int]:
    process, sizes = psutil.Process(process_id), []
    for _ in range(NUM_MEMORY_FIGURES):
        time.sleep(seconds / NUM_MEMORY_FIGURES)
        sizes.append(process.memory_info().rss)
    return sizes


def _report(database: str, what: str, seconds: list[float], num_plans: int = 0) -> None:
    percentiles = [one * 1e3 for one in statistics.quantiles(seconds, n=100)]
    figures = "".join(f"{one:>9.1f}" for one in (percentiles[49], percentiles[94], percentiles[98], max(seconds) * 1e3))
    verdict = "" if percentiles[98] <= LIMIT_MS else f"   above {LIMIT_MS:g} ms"
    print(f"{database:<12}{what:<26}{len(seconds):>7}{figures}{num_plans:>7}{verdict}", flush=True)


if __name__ == "__main__":
    main()
