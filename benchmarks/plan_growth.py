"""Plans ever deeper transformer-like graphs and prints seconds and memory, to show how planning grows with the nodes.

Run from the repository's root: `.venv/bin/python -m benchmarks.plan_growth [--devices 64] [--equal] [NODES ...]`. Each
size runs in a process of its own, so that peak memory is that size's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

from benchmarks.deep_graph import deep_graph
from planner.cost.inventory import Device, Inventory
from planner.plan.options import OptimalMode, PlanOptions
from planner.planning import make_plan
from planner.wire.graph import graph_from_bytes, graph_to_bytes

SIZES = (12_500, 25_000, 50_000, 100_000)
KINDS = ("h100", "a100", "l40s", "h200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--inline", action="store_true", help="in this process, for a profiler")
    arguments = parser.parse_args()
    print(f"{'nodes':>8}{'read s':>8}{'plan s':>8}{'cpu s':>8}{'growth':>8}{'MiB':>8}{'stages':>8}{'gap':>9}")
    before = None
    for nodes in arguments.nodes:
        if arguments.inline:
            measurement = measure(nodes, arguments.devices, arguments.equal)
        else:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                measurement = pool.apply(measure, (nodes, arguments.devices, arguments.equal))
        read, plan, cpu, mebibytes, stages, gap = measurement
        growth = f"{cpu / before:>8.2f}" if before else f"{'':>8}"
        print(
            f"{nodes:>8}{read:>8.2f}{plan:>8.2f}{cpu:>8.2f}{growth}{mebibytes:>8.0f}{stages:>8}{gap:>9.2%}", flush=True
        )
        before = cpu


def measure(num_nodes: int, num_devices: int, equal: bool) -> tuple[float, float, float, float, int, float]:
    data = graph_to_bytes(deep_graph(num_nodes))
    started = time.perf_counter(), time.process_time()
    graph = graph_from_bytes(data)
    read_seconds = time.perf_counter() - started[0]
    plan = make_plan(graph, "0" * 64, _inventory(num_devices, equal), PlanOptions(mode=OptimalMode()))
    seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    gap = 1 - (plan.lower_bound_seconds or 0.0) / plan.bottleneck_seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return read_seconds, seconds, cpu, peak, len(plan.stages), gap


def _inventory(num_devices: int, equal: bool) -> Inventory:
    """Unequal: four kinds in turn, memory of many sizes."""
    return Inventory(
        devices=tuple(
            Device(
                id=f"gpu{index}",
                kind="h100" if equal else KINDS[index % len(KINDS)],
                host=f"node{index // 8}",
                memory_bytes=(80 if equal else 24 + 3 * (7 * index % 23)) << 30,
            )
            for index in range(num_devices)
        )
    )


if __name__ == "__main__":
    main()
