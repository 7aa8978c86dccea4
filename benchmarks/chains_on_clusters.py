"""Mode optimal on pure chains and real clusters: its value, the bound that it proves, and CPU seconds.

Run from the repository's root: `.venv/bin/python -m benchmarks.chains_on_clusters [--mode balanced] [FAMILY ...]`.
Families: kinds (equal links), hosts (of equal devices), mixed (few devices of many kinds in hosts), cluster (hosts of 8
of several kinds). After a colon, memory as a multiple of what segments in the order of the inventory need: `mixed:1.1`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from planner.partition.evaluate import evaluate
from planner.partition.modes.balanced import balanced
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective
from planner.partition.problem import Labels, PartitionProblem
from planner.partition.request import Request

WITHIN_BYTES_PER_SECOND, BETWEEN_BYTES_PER_SECOND = 300e9, 12.5e9
AMPLE = 1 << 50
FAMILIES = (
    *("kinds", "hosts", "mixed", "cluster"),
    *("kinds:1.05", "hosts:1.05", "mixed:1.05", "mixed:1.15", "cluster:1.05", "cluster:1.15"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--mode", choices=("optimal", "balanced"), default="optimal")
    arguments = parser.parse_args()
    print(f"{'family':<12}{'devices':>8}{'nodes':>7}{'value ms':>12}{'gap':>9}{'cpu s':>8}")
    for family in arguments.families:
        name, _, factor = family.partition(":")
        for problem in _GENERATORS[name](float(factor or 0)):
            started = time.process_time()
            if arguments.mode == "optimal":
                plan = optimal(problem, Request(mode="optimal", objective=Objective.THROUGHPUT))
            else:
                plan = balanced(problem)
            seconds = time.process_time() - started
            value = evaluate(problem, plan).bottleneck_seconds
            gap = 1 - (plan.lower_bound_seconds or 0.0) / value
            print(
                f"{family:<12}{problem.num_devices:>8}{problem.num_nodes:>7}{value * 1e3:>12.5f}{gap:>9.3%}"
                f"{seconds:>8.2f}",
                flush=True,
            )


def _kinds(memory: float) -> Iterator[PartitionProblem]:
    for seed, (nodes, devices, kinds) in enumerate(((100, 32, 4), (150, 48, 4), (200, 64, 4), (200, 64, 6))):
        speeds = np.linspace(1.0, 4.0, kinds)[np.arange(devices) % kinds]
        yield chain(seed, nodes, speeds, [0] * devices, memory, within=BETWEEN_BYTES_PER_SECOND)


def _hosts(memory: float) -> Iterator[PartitionProblem]:
    for seed, (nodes, hosts, size) in enumerate(((100, 4, 8), (200, 4, 8), (200, 8, 8), (200, 16, 4))):
        host_of_device = np.repeat(np.arange(hosts), size)
        yield chain(seed, nodes, np.ones(hosts * size), host_of_device, memory)


def _mixed(memory: float) -> Iterator[PartitionProblem]:
    for seed, (nodes, sizes) in enumerate(((32, (4, 4)), (40, (4, 3, 3)))):
        host_of_device = np.repeat(np.arange(len(sizes)), sizes)
        speeds = np.random.default_rng(seed).uniform(1.0, 4.0, host_of_device.size).round(1)
        yield chain(seed, nodes, speeds, host_of_device, memory)


def _cluster(memory: float) -> Iterator[PartitionProblem]:
    for seed, (nodes, kinds) in enumerate(((100, (1, 1, 2, 2)), (200, (1, 2, 3, 4, 1, 2, 3, 4)))):
        host_of_device = np.repeat(np.arange(len(kinds)), 8)
        yield chain(seed, nodes, np.repeat(kinds, 8).astype(np.float64), host_of_device, memory)
    # Half of each host is of another kind.
    host_of_device = np.repeat(np.arange(4), 8)
    yield chain(9, 150, np.tile([1.0, 1.0, 1.0, 1.0, 2.5, 2.5, 2.5, 2.5], 4), host_of_device, memory)


_GENERATORS: dict[str, Callable[[float], Iterator[PartitionProblem]]] = {
    "kinds": _kinds,
    "hosts": _hosts,
    "mixed": _mixed,
    "cluster": _cluster,
}


def chain(
    seed: int,
    num_nodes: int,
    speeds: np.ndarray,
    host_of_device: Sequence[int] | np.ndarray,
    memory: float,
    within: float = WITHIN_BYTES_PER_SECOND,
) -> PartitionProblem:
    """Each node reads what the one before it made and has a state of its own. `memory` 0 is ample."""
    random = np.random.default_rng(seed)
    n, devices = num_nodes, speeds.size
    state_bytes = random.integers(50, 400, n) * 1_000_000
    value_bytes = np.append(random.integers(1, 16, n), 1) * 1_000_000
    room = np.full(devices, AMPLE, dtype=np.int64)
    if memory:
        room = _room(state_bytes, np.sqrt(speeds), memory) + 4 * int(value_bytes.max())
    host = np.asarray(host_of_device)
    rate = np.where(host[:, None] == host[None, :], within, BETWEEN_BYTES_PER_SECOND)
    per_byte, latency = 1 / rate, np.where(rate == WITHIN_BYTES_PER_SECOND, 2e-6, 2e-5)
    np.fill_diagonal(per_byte, 0.0)
    np.fill_diagonal(latency, 0.0)
    seconds = random.uniform(0.5e-3, 3e-3, n)[None, :] / speeds[:, None]
    none = np.zeros(0, dtype=np.int64)
    return PartitionProblem(
        compute_seconds=seconds,
        flops=np.ones(n),
        value_bytes=value_bytes,
        value_producer=np.arange(-1, n),
        value_root=np.arange(n + 1),
        value_returned=np.arange(n + 1) == n,
        root_bytes=value_bytes,
        root_producer=np.arange(-1, n),
        read_value=np.arange(n),
        read_node=np.arange(n),
        state_bytes=state_bytes,
        use_state=np.arange(n),
        use_node=np.arange(n),
        use_is_return=np.zeros(n, dtype=np.bool_),
        returned_state=none,
        shown_root=none,
        shown_node=none,
        cut_allowed=np.ones(n + 1, dtype=np.bool_),
        node_group=np.full(n, -1, dtype=np.int64),
        is_embedding=np.zeros(n, dtype=np.bool_),
        device_memory_bytes=room,
        link_latency_seconds=latency,
        link_seconds_per_byte=per_byte,
        relay=False,
        microbatches_in_flight=1,
        labels=Labels(
            nodes=tuple(f"node{node}" for node in range(n)),
            module_paths=("",) * n,
            devices=tuple(f"device{device}" for device in range(devices)),
            device_kinds=tuple(f"{speed:g}" for speed in speeds),
        ),
    )


def _room(state_bytes: np.ndarray, shares: np.ndarray, factor: float) -> np.ndarray:
    """By device, in proportion to its share: `factor` times the least that segments in this order fit into."""
    before = np.concatenate([[0], np.cumsum(state_bytes)])
    low, high = 0.0, float(state_bytes.sum() / shares.min())
    for _ in range(50):
        middle, at = (low + high) / 2, 0
        for share in shares:
            at = int(np.searchsorted(before, before[at] + share * middle, side="right")) - 1
        low, high = (low, middle) if at == state_bytes.size else (middle, high)
    return (shares * high * factor).astype(np.int64)


if __name__ == "__main__":
    main()
