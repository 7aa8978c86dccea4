"""How quickly a server answers other calls while it plans: percentiles of ListPlans and GetGraph, idle and planning.

Run from the repository's root: `.venv/bin/python -m benchmarks.answer_while_planning`. A server process of its own
plans deep graphs; this process asks it small questions all the while.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.deep_graph import deep_graph
from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster
from planner.cost.inventory import Device, Inventory
from planner.plan.options import OptimalMode, PlanOptions

NUM_NODES = 20_000
PLANS = 3
IDLE_CALLS = 1000


def main() -> None:
    inventory = Inventory(
        devices=tuple(
            Device(id=f"gpu{index}", kind="h100", host=f"node{index // 8}", memory_bytes=(40 + index) << 30)
            for index in range(16)
        )
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(data_dir=Path(folder), memory_bytes=()) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        graph = client.submit(deep_graph(NUM_NODES))
        print(f"{'':<12}{'calls':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
        _report("idle", [_ask(client, graph.id) for _ in range(IDLE_CALLS)])
        operations = [
            client.start_plan(graph.id, PlanOptions(mode=OptimalMode()), inventory=inventory) for _ in range(PLANS)
        ]
        seconds = []
        while not all(operation.refresh().has_ended for operation in operations):
            seconds += [_ask(client, graph.id) for _ in range(20)]
        _report("planning", seconds)


def _ask(client: PlannerClient, graph_id: str) -> float:
    started = time.perf_counter()
    client.get_graph(graph_id)
    next(client.list_plans(page_size=1), None)
    return (time.perf_counter() - started) / 2


def _report(name: str, seconds: list[float]) -> None:
    percentiles = statistics.quantiles(seconds, n=100)
    figures = f"{percentiles[49] * 1e3:>9.2f}{percentiles[98] * 1e3:>9.2f}{max(seconds) * 1e3:>9.2f}"
    print(f"{name:<12}{len(seconds):>8}{figures}", flush=True)


if __name__ == "__main__":
    main()
