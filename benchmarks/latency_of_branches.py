"""Plans graphs of branches for a lone batch, with one stage on each device and with any (`free`).

Run from the repository's root: `.venv/bin/python -m benchmarks.latency_of_branches`. Value and proven bound in seconds,
the gap between them, and CPU seconds. A graph is a row of joints with branches between them: chains of one to four
nodes ("inception"), or sixteen single nodes ("experts"). Nodes take about a second each on the fastest device.
"""

from __future__ import annotations

import random
import time
from typing import Any

from planner.cli.instance_file import parse_instance
from planner.partition.objective import Objective
from planner.plan.options import OptimalMode, PlanOptions
from planner.planning import make_plan

SPEEDS = {"2 equal": (1.0, 1.0), "4 equal": (1.0,) * 4, "4 mixed": (1.0, 1.5, 2.0, 4.0)}
# Of each message, in seconds; half of it latency, half by its size.
MESSAGES = (0.02, 0.3, 2.0)


def branches(num_joints: int, width: int, depth: int, speeds: tuple[float, ...], message: float) -> dict[str, Any]:
    """An instance file as `solve` reads it. Every node makes one tensor of the same size."""
    choice = random.Random(1)
    nodes: list[dict[str, Any]] = []

    def add(inputs: list[str]) -> str:
        seconds = choice.uniform(0.5, 2.0)
        times = {f"k{index}": seconds * speed for index, speed in enumerate(speeds)}
        nodes.append({"id": f"n{len(nodes)}", "seconds": times, "inputs": inputs, "output_bytes": 1024})
        return f"n{len(nodes) - 1}"

    joint = add([])
    for _ in range(num_joints):
        ends = []
        for _ in range(width):
            end = joint
            for _ in range(choice.randint(1, depth)):
                end = add([end])
            ends.append(end)
        joint = add(ends)
    return {
        "devices": [{"id": f"d{index}", "kind": f"k{index}", "memory": "1GiB"} for index in range(len(speeds))],
        "default_link": {"bytes_per_second": 1024 / (message / 2), "latency_seconds": message / 2},
        "nodes": nodes,
    }


def main() -> None:
    print(f"{'graph':<11}{'devices':<9}{'message':>8}{'free':>6}{'value':>10}{'bound':>10}{'gap':>8}{'CPU s':>8}")
    for name, shape in (("inception", (6, 4, 4)), ("experts", (6, 16, 1))):
        for devices, speeds in SPEEDS.items():
            for message in MESSAGES:
                for free in (False, True):
                    _measure(f"{name:<11}{devices:<9}{message:>8}", branches(*shape, speeds, message), free=free)


def _measure(title: str, document: dict[str, Any], *, free: bool) -> None:
    instance = parse_instance(document)
    started = time.process_time()
    options = PlanOptions(mode=OptimalMode(free=free), objective=Objective.LATENCY)
    plan = make_plan(instance.graph, "", instance.inventory, options)
    value, bound = plan.latency_seconds, plan.lower_bound_seconds or 0.0
    cpu_seconds = time.process_time() - started
    print(f"{title}{free!s:>6}{value:>10.3f}{bound:>10.3f}{1 - bound / value:>8.1%}{cpu_seconds:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
