"""Places the published cost graphs with `planner-cli solve` and sets what it finds beside the best known values.

Run from the repository's root: `.venv/bin/python -m benchmarks.place_instances [--effort 1]`. Each is solved in a
process of its own; what it writes is costed again here. The contiguous and latency optima are proven ones; free values
are the best known, with the bounds that a constraint solver proved in minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.cost_graphs.cost_graph import CostGraph, read_cost_graph
from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.cost_graphs.single_pass.seconds import single_pass_seconds

INSTANCES = Path(__file__).parent / "instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`bound` is the best that was known; equal to `value` where that is optimal."""

    folder: str
    name: str
    kind: str
    value: float
    bound: float


def _throughput(name: str, contiguous: float, free: float, bound: float) -> tuple[Known, Known]:
    return (
        Known(folder="throughput", name=name, kind="contiguous", value=contiguous, bound=contiguous),
        Known(folder="throughput", name=name, kind="free", value=free, bound=bound),
    )


def _latency(name: str, value: float) -> Known:
    return Known(folder="latency", name=name, kind="latency", value=value, bound=value)


KNOWN = (
    *_throughput("LayerGraphs_bert24_inference", 17.789906, 17.714719, 15.536),
    *_throughput("LayerGraphs_bert24_training", 41.745812, 39.789539, 39.789538),
    *_throughput("LayerGraphs_gnmt_inference", 32.910658, 31.687311, 31.687300),
    *_throughput("LayerGraphs_resnet50_inference", 33.774666, 33.406924, 33.100768),
    *_throughput("OperatorGraphs_bert_l-3_inference", 27.918568, 21.908376, 21.908376),
    *_throughput("OperatorGraphs_bert_l-3_training", 65.303093, 54.207399, 54.207399),
    _latency("LayerGraphs_bert24_inference", 100.2185),
    _latency("LayerGraphs_gnmt_inference", 225.6479),
    _latency("OperatorGraphs_bert_l-3_inference", 408.4744),
)
FLAGS = {"contiguous": ["--contiguous"], "free": [], "latency": ["--objective", "latency"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--kind", choices=sorted(FLAGS))
    arguments = parser.parse_args()
    columns = f"{'known':>12}{'found':>12}{'above':>9}{'known bound':>13}{'bound':>12}{'gap':>8}{'s':>7}"
    print(f"{'instance':<36}{'kind':<11}{columns}")
    for instance in KNOWN:
        if arguments.kind in (None, instance.kind):
            _measure(instance, arguments.effort)


def _measure(instance: Known, effort: float) -> None:
    path = INSTANCES / instance.folder / f"{instance.name}.json"
    graph = read_cost_graph(json.loads(path.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "placed.json"
        flags = [*FLAGS[instance.kind], "--effort", str(effort), "--out", str(out), "-o", "json"]
        command = [sys.executable, "-m", "planner.cli", "solve", str(path), *flags]
        solution = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        cost = _cost(graph, instance.kind, json.loads(out.read_text()))
    above = cost / instance.value - 1
    figures = f"{instance.value:>12.6f}{cost:>12.6f}{above:>+9.4%}{instance.bound:>13.6f}"
    print(
        f"{instance.name:<36}{instance.kind:<11}{figures}{solution['lower_bound']:>12.6f}{solution['gap']:>8.2%}"
        f"{solution['seconds']:>7.1f}",
        flush=True,
    )


def _cost(graph: CostGraph, kind: str, placed: dict[str, str]) -> float:
    """The objective of a placement that was read back, after checking that it is one."""
    hosts = int(graph.problem.class_devices[0])
    devices = [
        int(name.removeprefix("fpga")) + hosts if name.startswith("fpga") else int(name.removeprefix("cpu"))
        for name in (placed[str(node_id)] for node_id in graph.node_ids)
    ]
    limits = graph.problem.class_bytes[graph.problem.class_of_device]
    assert (device_bytes(graph.problem, devices) <= limits).all()
    assert np.isfinite(graph.problem.seconds[graph.problem.class_of_device[devices], range(len(devices))]).all()
    if kind != "latency":
        return float(device_loads(graph.problem, devices).max())
    seconds = single_pass_seconds(graph.problem, devices)
    assert seconds is not None
    return seconds


if __name__ == "__main__":
    main()
