"""Pipelines for the 14 profiles that PipeDream published (Narayanan et al., SOSP 2019).

    python -m benchmarks.pipedream_profiles PROFILER [name ...]

PROFILER is the folder `profiler` of a checkout of msr-fiddle/pipedream; its `graph.txt` files are read. Each is solved
twice as `planner-cli solve` does it: with copies of stages, as a training profile, and as a straight pipeline, as a
contiguous cost graph. A node takes its forward and backward pass; a device holds its activations for each microbatch in
flight, and weights, gradients and momentum; what crosses a cut goes there and comes back. As in PipeDream's own
optimizer inputs cost nothing, and items of a tuple that nothing reads are left out.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from planner.cost_graphs.limits import Limits
from planner.cost_graphs.solve import Answer, solve_cost_graph, solve_training_profile
from planner.errors import Infeasible
from planner.partition.objective import Objective

DEVICES, MEMORY_BYTES, BYTES_PER_SECOND = 16, 16.0 * (1 << 30), 12.5e9
# Bytes held for each byte of weights: themselves, gradients, momentum.
HELD_PER_WEIGHT_BYTE = 3
_NODE = re.compile(
    r"^(?P<name>node\d+) -- (?P<kind>.*) -- forward_compute_time=(?P<forward>[^,]*), "
    r"backward_compute_time=(?P<backward>[^,]*), activation_size=(?P<activation>.*), parameter_size=(?P<weights>[^,]*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """By node: seconds of both passes, bytes of activations and of weights. `edges` are pairs of nodes."""

    seconds: Sequence[float]
    activation_bytes: Sequence[float]
    weight_bytes: Sequence[float]
    edges: Sequence[tuple[int, int]]


def read_profile(text: str) -> Profile:
    nodes: dict[str, re.Match[str]] = {}
    pairs: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = _NODE.match(line)
        if match:
            nodes[match["name"]] = match
        elif line.strip():
            source, target = line.strip().split(" -- ")
            pairs.append((source, target))
    read = {source for source, _ in pairs}
    unread = {name for name, match in nodes.items() if match["kind"].startswith("__getitem__")} - read
    nodes = {name: match for name, match in nodes.items() if name not in unread}
    pairs = [(source, target) for source, target in pairs if target not in unread]
    index = {name: position for position, name in enumerate(nodes)}
    rows = [_row(match) for match in nodes.values()]
    seconds, activations, weights = zip(*rows, strict=True)
    return Profile(
        seconds=seconds,
        activation_bytes=activations,
        weight_bytes=weights,
        edges=[(index[source], index[target]) for source, target in pairs],
    )


def _row(match: re.Match[str]) -> tuple[float, float, float]:
    if match["kind"].startswith("Input"):
        return 0.0, 0.0, 0.0
    # A node with several outputs lists the bytes of each.
    activation = sum(map(float, re.findall(r"[\d.]+", match["activation"])))
    return (float(match["forward"]) + float(match["backward"])) / 1000, activation, float(match["weights"])


def with_copies(profile: Profile) -> dict[str, Any]:
    """In Piper's format, one alternative a node."""
    nodes = [
        {
            "id": node,
            "TMPCs": {
                "1": [
                    {
                        "id": "plain",
                        "timePerSample": seconds,
                        "parameterSize": weights,
                        "memoryUsageA": activation,
                        "memoryUsageB": HELD_PER_WEIGHT_BYTE * weights,
                        "syncTimeFw": {},
                        "syncTimeBw": {},
                    }
                ]
            },
        }
        for node, (seconds, activation, weights) in enumerate(
            zip(profile.seconds, profile.activation_bytes, profile.weight_bytes, strict=True)
        )
    ]
    edges = [
        {"sourceId": source, "destId": target, "communicationCost": profile.activation_bytes[source]}
        for source, target in profile.edges
    ]
    return {
        "maxDevices": DEVICES,
        "maxMemoryPerDevice": MEMORY_BYTES,
        "bandwidth": BYTES_PER_SECOND,
        "mbsInBatch": DEVICES,
        "nodes": nodes,
        "edges": edges,
    }


def straight(profile: Profile) -> dict[str, Any]:
    """In the format of Tarnawski et al., with one microbatch in memory."""
    nodes = [
        {
            "id": node,
            "size": activation + HELD_PER_WEIGHT_BYTE * weights,
            "cpuLatency": seconds,
            "fpgaLatency": seconds,
            "supportedOnFpga": 1,
            "isBackwardNode": 0,
        }
        for node, (seconds, activation, weights) in enumerate(
            zip(profile.seconds, profile.activation_bytes, profile.weight_bytes, strict=True)
        )
    ]
    edges = [
        {"sourceId": source, "destId": target, "cost": 2 * profile.activation_bytes[source] / BYTES_PER_SECOND}
        for source, target in profile.edges
    ]
    return {"maxFPGAs": DEVICES, "maxSizePerFPGA": MEMORY_BYTES, "maxCPUs": 0, "nodes": nodes, "edges": edges}


def main() -> None:
    folder, names = Path(sys.argv[1]), set(sys.argv[2:])
    print("| profile | nodes | stages | ms per sample | lower bound | gap | s of CPU |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(folder.rglob("graph.txt")):
        name = path.parent.name
        if names and name not in names:
            continue
        profile = read_profile(path.read_text())
        copies, line = with_copies(profile), straight(profile)
        contiguous = partial(solve_cost_graph, contiguous=True)
        _measure(name, profile, "copied", partial(solve_training_profile, copies, Limits()))
        _measure(name, profile, "straight", partial(contiguous, line, Objective.THROUGHPUT, Limits()))


def _measure(name: str, profile: Profile, kind: str, solve: Callable[[], Answer]) -> None:
    started = time.process_time()
    try:
        answer = solve()
        columns = f"{answer.value * 1e3:.4f} | {answer.lower_bound * 1e3:.4f} | {answer.gap:.2%}"
    except Infeasible as error:
        columns = f"none | none | {error.message[:60]}"
    seconds = time.process_time() - started
    print(f"| {name} | {len(profile.seconds)} | {kind} | {columns} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
