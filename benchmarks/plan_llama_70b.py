"""Plans the 80-layer, 70 B-parameter Llama onto 16 devices, from the graph to a verified plan, and prints the seconds.

Run from the repository's root: `.venv/bin/python -m benchmarks.plan_llama_70b`. Beside each it prints how long reading
the same graph from its bytes takes in the same run, since shared machines differ from hour to hour.
"""

from __future__ import annotations

import time

import torch
from torch.export import Dim

from benchmarks.export_llama_70b import llama
from planner.client.export import export
from planner.cost.inventory import Device, Inventory
from planner.plan.options import BalancedMode, Mode, OptimalMode, PlanOptions, Routing
from planner.planning import make_plan
from planner.wire.graph import graph_from_bytes, graph_to_bytes

GIBIBYTE = 2**30
INVENTORIES = {
    "16 equal": [("h100", 80)] * 16,
    "2 kinds": [("h100", 80)] * 8 + [("a100", 40)] * 8,
    "16 unequal": [("h100", 40 + 2 * index) for index in range(16)],
    "2 kinds, 16 unequal": [(("h100", "a100")[index % 2], 24 + 3 * index) for index in range(16)],
}


def main() -> None:
    ids = torch.zeros(2, 128, dtype=torch.int64, device="meta")
    shape = {0: Dim("batch", min=1, max=1024), 1: Dim("sequence", min=2, max=4096)}
    kwargs = {"input_ids": ids, "use_cache": False}
    exported = export(llama(80), (), kwargs, dynamic_shapes={"input_ids": shape, "use_cache": None})
    data = graph_to_bytes(exported.graph)
    print(f"{len(exported.graph.nodes):,} nodes")
    print(f"{'devices':<22}{'mode':<10}{'routing':<9}{'plan s':>8}{'read s':>8}{'ratio':>7}{'stages':>8}{'gap':>8}")
    for name, devices in INVENTORIES.items():
        for mode in (BalancedMode(), OptimalMode()):
            for routing in Routing:
                _measure(name, _inventory(devices), mode, routing, data)


def _measure(name: str, inventory: Inventory, mode: Mode, routing: Routing, data: bytes) -> None:
    started = time.perf_counter()
    graph = graph_from_bytes(data)
    read_seconds = time.perf_counter() - started
    started = time.perf_counter()
    plan = make_plan(graph, "0" * 64, inventory, PlanOptions(mode=mode, routing=routing))
    plan_seconds = time.perf_counter() - started
    figures = f"{plan_seconds:>8.2f}{read_seconds:>8.2f}{plan_seconds / read_seconds:>7.1f}"
    print(f"{name:<22}{mode.name:<10}{routing.value:<9}{figures}{len(plan.stages):>8}{plan.gap:>8.2%}", flush=True)


def _inventory(devices: list[tuple[str, int]]) -> Inventory:
    return Inventory(
        devices=tuple(
            Device(id=f"gpu{index}", kind=kind, host="node", memory_bytes=gibibytes * GIBIBYTE)
            for index, (kind, gibibytes) in enumerate(devices)
        )
    )


if __name__ == "__main__":
    main()
