"""Mode optimal on pure chains and real clusters: its value, the bound that it proves, and CPU seconds.

From the repository's root: `.venv/bin/python -m benchmarks.chains_on_clusters [--mode balanced] [--free] [FAMILY ...]`.
Families: kinds (equal links), hosts (of equal devices), mixed (few devices of many kinds in hosts), cluster (hosts of 8
of several kinds). After a colon, memory as a multiple of what segments in the order of the inventory need: `mixed:1.1`.
`random:100:7` draws a hundred problems from the whole space, with seeds from 7 on, and says after each what was drawn.
Free, a device may run several stages.
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
    parser.add_argument("--free", action="store_true")
    arguments = parser.parse_args()
    print(f"{'family':<12}{'devices':>8}{'nodes':>7}{'value ms':>12}{'gap':>9}{'cpu s':>8}")
    for family in arguments.families:
        for description, problem in problems_of(family):
            started = time.process_time()
            if arguments.mode == "optimal":
                request = Request(mode="optimal", objective=Objective.THROUGHPUT, free=arguments.free)
                plan = optimal(problem, request)
            else:
                plan = balanced(problem)
            seconds = time.process_time() - started
            value = evaluate(problem, plan).bottleneck_seconds
            gap = 1 - (plan.lower_bound_seconds or 0.0) / value
            print(
                f"{family:<12}{problem.num_devices:>8}{problem.num_nodes:>7}{value * 1e3:>12.5f}{gap:>9.3%}"
                f"{seconds:>8.2f}  {description}".rstrip(),
                flush=True,
            )


def problems_of(family: str) -> Iterator[tuple[str, PartitionProblem]]:
    name, *numbers = family.split(":")
    if name == "random":
        count, first = (*map(int, numbers), 0)[:2]
        for seed in range(first, first + count):
            yield random_case(seed)
    else:
        for problem in _GENERATORS[name](float(numbers[0] if numbers else 0)):
            yield "", problem


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
    state_bytes = random.integers(50, 400, num_nodes) * 1_000_000
    value_bytes = np.append(random.integers(1, 16, num_nodes), 1) * 1_000_000
    host = np.asarray(host_of_device)
    rate = np.where(host[:, None] == host[None, :], within, BETWEEN_BYTES_PER_SECOND)
    return chain_of(
        random.uniform(0.5e-3, 3e-3, num_nodes)[None, :] / speeds[:, None],
        value_bytes,
        state_bytes,
        _memory(state_bytes, value_bytes, np.sqrt(speeds), memory),
        rate,
        np.where(rate == WITHIN_BYTES_PER_SECOND, 2e-6, 2e-5),
    )


def random_case(seed: int) -> tuple[str, PartitionProblem]:
    """What was drawn, in words, and the problem."""
    random = np.random.default_rng([seed, 2024])
    n, devices, kinds = (int(random.integers(low, high + 1)) for low, high in ((32, 200), (4, 64), (1, 6)))
    size = int(random.choice([4, 8, devices]))
    host = np.arange(devices) // size
    layout = str(random.choice(["whole", "halves", "mixed"]))
    kind_of_host = random.integers(0, kinds, (host.max() + 1, 2))
    kind = {
        "whole": kind_of_host[host, 0],
        "halves": kind_of_host[host, np.arange(devices) % size * 2 // size],
        "mixed": random.integers(0, kinds, devices),
    }[layout]
    speeds = random.uniform(1.0, 4.0, kinds).round(1)
    shares = np.sqrt(speeds) if random.random() < 0.5 else random.choice([1.0, 2.0, 3.0, 5.0], kinds)
    memory = float(random.choice([0, 1.05, 1.1, 1.15, 1.5]))
    within, between = ((300e9, 12.5e9), (300e9, 50e9), (25e9, 3e9))[int(random.integers(3))]
    rate = np.where(host[:, None] == host[None, :], within, between)
    pods = random.random() < 0.2
    if pods:
        rate = np.where(host[:, None] // 2 == host[None, :] // 2, rate, between / 4)
    uneven = [str(name) for name in ("seconds", "values", "states") if random.random() < 0.3]
    factors = {
        name: np.where(random.random(n) < 0.1, 10, 1) if name in uneven else 1
        for name in ("seconds", "values", "states")
    }
    state_bytes = random.integers(50, 400, n) * 1_000_000 * factors["states"]
    value_bytes = np.append(random.integers(1, 16, n) * factors["values"], 1) * 1_000_000
    seconds = random.uniform(0.5e-3, 3e-3, n) * factors["seconds"]
    words = f"{seed}: {kinds} kinds {layout}, hosts of {size}, {'pods, ' if pods else ''}memory {memory:g}"
    problem = chain_of(
        seconds[None, :] / speeds[kind][:, None],
        value_bytes,
        state_bytes,
        _memory(state_bytes, value_bytes, shares[kind], memory),
        rate,
        np.where(rate == within, 2e-6, 2e-5),
    )
    return f"{words}; {within / 1e9:g}/{between / 1e9:g} GB/s; uneven {' '.join(uneven)}", problem


def chain_of(
    seconds: np.ndarray,
    value_bytes: np.ndarray,
    state_bytes: np.ndarray,
    memory_bytes: np.ndarray,
    bytes_per_second: np.ndarray,
    latency: np.ndarray,
) -> PartitionProblem:
    """From `seconds` [devices, nodes] and [devices, devices] links."""
    devices, n = seconds.shape
    per_byte = 1 / bytes_per_second
    np.fill_diagonal(per_byte, 0.0)
    np.fill_diagonal(latency, 0.0)
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
        device_memory_bytes=memory_bytes,
        link_latency_seconds=latency,
        link_seconds_per_byte=per_byte,
        relay=False,
        microbatches_in_flight=1,
        labels=Labels(
            nodes=tuple(f"node{node}" for node in range(n)),
            module_paths=("",) * n,
            devices=tuple(f"device{device}" for device in range(devices)),
            device_kinds=tuple(f"{work:g}" for work in seconds[:, 0]),
        ),
    )


def _memory(state_bytes: np.ndarray, value_bytes: np.ndarray, shares: np.ndarray, factor: float) -> np.ndarray:
    if not factor:
        return np.full(shares.size, AMPLE, dtype=np.int64)
    return _room(state_bytes, shares, factor) + 4 * int(value_bytes.max())


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
