"""Mode optimal on networks that are no chains, and real clusters: its value, the bound that it proves, and CPU seconds.

From the repository's root: `.venv/bin/python -m benchmarks.nets_on_clusters [NET ...] [--devices 16 32]
[--hosts wholes] [--objective latency] [--free]`. Nets: transformer, experts, translator (an encoder and a decoder),
unet. After a colon, memory as a multiple of what segments in the order of the inventory need: `experts:1.1`. Hosts have
8 devices: of one kind (`wholes`), of two (`halves`), of any (`mixed`); `sizes` are hosts of 2, 4 or 8 devices of one
kind, and devices of any kind over equal links are `flat`. What is drawn is drawn by the number of devices. A training
step has 8 microbatches. Free, a device may run several stages.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from benchmarks.chains_on_clusters import AMPLE, BETWEEN_BYTES_PER_SECOND, WITHIN_BYTES_PER_SECOND
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective, Training
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Labels, PartitionProblem
from planner.partition.request import Request
from planner.partition.score import score

FLOPS_PER_SECOND, MEMORY_BYTES_PER_SECOND, LAUNCH_SECONDS = 100e12, 1e12, 4e-6
TOKENS, WIDTH, BYTES = 4096, 4096, 2
HOST_SIZE, KINDS = 8, (1.0, 1.6, 2.5, 4.0)
NETS = ("transformer", "experts", "translator", "unet")
HOSTS = ("wholes", "halves", "mixed", "sizes", "flat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=[*NETS, *(f"{net}:1.1" for net in NETS)])
    parser.add_argument("--devices", nargs="*", type=int, default=[16, 32, 64])
    parser.add_argument("--hosts", nargs="*", choices=HOSTS, default=["wholes", "halves"])
    parser.add_argument("--objective", choices=[objective.value for objective in Objective], default="throughput")
    parser.add_argument("--free", action="store_true")
    arguments = parser.parse_args()
    objective = Objective(arguments.objective)
    print(f"{'net':<16}{'devices':>8}{'hosts':>8}{'nodes':>7}{'value ms':>12}{'gap':>9}{'cpu s':>8}")
    gaps = []
    for net in arguments.nets:
        name, _, factor = net.partition(":")
        for devices in arguments.devices:
            for hosts in arguments.hosts:
                problem = problem_of(name, devices, hosts, float(factor or 0))
                if objective is Objective.STEP_TIME:
                    problem = trained(problem)
                started = time.process_time()
                plan = optimal(problem, Request(mode="optimal", objective=objective, free=arguments.free))
                seconds = time.process_time() - started
                value = score(problem, plan, objective).value
                gaps.append(1 - (plan.lower_bound_seconds or 0.0) / value)
                print(
                    f"{net:<16}{devices:>8}{hosts:>8}{problem.num_nodes:>7}{value * 1e3:>12.5f}{gaps[-1]:>9.3%}"
                    f"{seconds:>8.2f}",
                    flush=True,
                )
    print(f"median {np.median(gaps):.3%}, 95th percentile {np.percentile(gaps, 95):.3%}")


def problem_of(net: str, devices: int, hosts: str, memory: float) -> PartitionProblem:
    depth = {16: 12, 32: 24}.get(devices, 12 if devices < 16 else 40)
    layers = {"transformer": _transformer, "experts": _experts, "translator": _translator, "unet": _unet}
    return layers[net](depth).problem(devices, hosts, memory)


def trained(problem: PartitionProblem) -> PartitionProblem:
    """With all weights, by Adam, and gradients of all values."""
    return replace(
        problem,
        training=Training(),
        node_has_gradient=np.ones(problem.num_nodes, dtype=np.bool_),
        value_gradient_bytes=problem.value_bytes,
        state_gradient_bytes=problem.state_bytes,
        state_optimizer_bytes=4 * problem.state_bytes,
    )


def hosts_and_kinds(devices: int, hosts: str) -> tuple[np.ndarray, np.ndarray]:
    """By device."""
    draw, host = np.random.default_rng(devices), np.arange(devices) // HOST_SIZE
    match hosts:
        case "wholes":
            return host, host % len(KINDS)
        case "halves":
            return host, (host + np.arange(devices) % HOST_SIZE // (HOST_SIZE // 2)) % len(KINDS)
        case "sizes":
            sizes = draw.choice([2, 4, 8], devices)
            host = np.repeat(np.arange(devices), sizes)[:devices]
            return host, draw.integers(0, len(KINDS), devices)[host]
        case _:
            return host if hosts == "mixed" else np.zeros_like(host), draw.integers(0, len(KINDS), devices)


class Net:
    """Operators one after the other; each makes one value. Value 0 is what the caller gives."""

    def __init__(self, input_bytes: int) -> None:
        self._sizes, self._seconds, self._states = [input_bytes], list[float](), list[int]()
        self._reads: list[tuple[int, ...]] = []

    def add(self, *reads: int, flops: float = 0.0, size: int, state: int = 0) -> int:
        """The index of the value that it makes."""
        touched = size + state + sum(self._sizes[read] for read in reads)
        self._seconds.append(max(flops / FLOPS_PER_SECOND, touched / MEMORY_BYTES_PER_SECOND) + LAUNCH_SECONDS)
        self._reads.append(tuple(dict.fromkeys(reads)))
        self._sizes.append(size)
        self._states.append(state)
        return len(self._sizes) - 1

    def linear(self, read: int, width: int, out: int, tokens: int = TOKENS) -> int:
        flops, state = 2.0 * tokens * width * out, width * out * BYTES
        return self.add(read, flops=flops, size=tokens * out * BYTES, state=state)

    def problem(self, devices: int, hosts: str, memory: float) -> PartitionProblem:
        """`memory` 0 is ample."""
        n, none = len(self._seconds), np.zeros(0, dtype=np.int64)
        host, kind = hosts_and_kinds(devices, hosts)
        speeds = np.array(KINDS)[kind]
        sizes, states = np.array(self._sizes), np.array(self._states)
        reads = [(value, node) for node, values in enumerate(self._reads) for value in values]
        bytes_of_device = np.full(devices, AMPLE, dtype=np.int64)
        rate = np.where(host[:, None] == host[None, :], WITHIN_BYTES_PER_SECOND, BETWEEN_BYTES_PER_SECOND)
        per_byte, latency = 1 / rate, np.where(rate == WITHIN_BYTES_PER_SECOND, 2e-6, 2e-5)
        np.fill_diagonal(per_byte, 0.0)
        np.fill_diagonal(latency, 0.0)
        users = np.flatnonzero(states)
        problem = PartitionProblem(
            compute_seconds=np.array(self._seconds)[None, :] / speeds[:, None],
            flops=np.ones(n),
            value_bytes=sizes,
            value_producer=np.arange(-1, n),
            value_root=np.arange(n + 1),
            value_returned=np.arange(n + 1) == n,
            root_bytes=sizes,
            root_producer=np.arange(-1, n),
            read_value=np.array([value for value, _ in reads]),
            read_node=np.array([node for _, node in reads]),
            state_bytes=states[users],
            use_state=np.arange(users.size),
            use_node=users,
            use_is_return=np.zeros(users.size, dtype=np.bool_),
            returned_state=none,
            shown_root=none,
            shown_node=none,
            cut_allowed=np.ones(n + 1, dtype=np.bool_),
            node_group=np.full(n, -1, dtype=np.int64),
            is_embedding=np.zeros(n, dtype=np.bool_),
            device_memory_bytes=bytes_of_device,
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
        return replace(problem, device_memory_bytes=_room(problem, np.sqrt(speeds), memory)) if memory else problem


def _room(problem: PartitionProblem, shares: np.ndarray, factor: float) -> np.ndarray:
    """By device, in proportion to its share: `factor` times the least that segments in this order fit into."""
    n, segments = problem.num_nodes, Segments(problem)
    peaks = np.full((n, n), np.inf)
    for start in range(n):
        peaks[start, start:] = segments.row(start, n).peak_bytes
    low, high = 0.0, float(peaks[0, -1] / shares.min())
    for _ in range(40):
        middle, at = (low + high) / 2, 0
        for share in shares:
            fits = np.flatnonzero(peaks[at, at:] <= share * middle) if at < n else ()
            at += int(fits[-1]) + 1 if len(fits) else 0
        low, high = (low, middle) if at == n else (middle, high)
    return (shares * high * factor).astype(np.int64)


_ROW = TOKENS * WIDTH * BYTES


def _attention(net: Net, stream: int, source: int, mask: int) -> int:
    """What joins the stream; keys and values are made from `source`."""
    query = net.linear(stream, WIDTH, WIDTH)
    key, value = net.linear(source, WIDTH, WIDTH // 4), net.linear(source, WIDTH, WIDTH // 4)
    query = net.add(query, mask, size=_ROW)
    key = net.add(key, mask, size=_ROW // 4)
    read = net.add(query, key, value, flops=4.0 * TOKENS * WIDTH * 1024, size=_ROW)
    return net.linear(read, WIDTH, WIDTH)


def _norm(net: Net, stream: int) -> int:
    return net.add(stream, size=_ROW, state=WIDTH * BYTES)


def _feed_forward(net: Net, normed: int, inner: int = 11008, tokens: int = TOKENS) -> int:
    gate, up = net.linear(normed, WIDTH, inner, tokens), net.linear(normed, WIDTH, inner, tokens)
    gate = net.add(gate, size=tokens * inner * BYTES)
    both = net.add(gate, up, size=tokens * inner * BYTES)
    return net.linear(both, inner, WIDTH, tokens)


def _embedded(net: Net, vocabulary: int = 32_000) -> tuple[int, int]:
    """The stream, and the table of positions that every layer reads."""
    stream = net.add(0, size=_ROW, state=vocabulary * WIDTH * BYTES)
    return stream, net.add(0, size=TOKENS * 128 * BYTES)


def _transformer(depth: int) -> Net:
    net = Net(TOKENS * 8)
    stream, mask = _embedded(net)
    for _ in range(depth):
        normed = _norm(net, stream)
        stream = net.add(stream, _attention(net, normed, normed, mask), size=_ROW)
        stream = net.add(stream, _feed_forward(net, _norm(net, stream)), size=_ROW)
    net.linear(_norm(net, stream), WIDTH, 32_000)
    return net


def _experts(depth: int, experts: int = 8) -> Net:
    """Each expert takes its share of the tokens."""
    net = Net(TOKENS * 8)
    stream, mask = _embedded(net)
    share = TOKENS * 2 // experts
    for _ in range(depth // 2):
        normed = _norm(net, stream)
        stream = net.add(stream, _attention(net, normed, normed, mask), size=_ROW)
        normed = _norm(net, stream)
        router = net.linear(normed, WIDTH, experts)
        mixed = stream
        for _ in range(experts):
            own = net.add(normed, router, size=share * WIDTH * BYTES)
            mixed = net.add(mixed, _feed_forward(net, own, tokens=share), router, size=_ROW)
        stream = mixed
    net.linear(_norm(net, stream), WIDTH, 32_000)
    return net


def _translator(depth: int) -> Net:
    net = Net(TOKENS * 8)
    stream, mask = _embedded(net)
    for _ in range(depth // 2):
        normed = _norm(net, stream)
        stream = net.add(stream, _attention(net, normed, normed, mask), size=_ROW)
        stream = net.add(stream, _feed_forward(net, _norm(net, stream)), size=_ROW)
    source = _norm(net, stream)
    stream = net.add(0, size=_ROW, state=32_000 * WIDTH * BYTES)
    for _ in range(depth // 2):
        normed = _norm(net, stream)
        stream = net.add(stream, _attention(net, normed, normed, mask), size=_ROW)
        stream = net.add(stream, _attention(net, _norm(net, stream), source, mask), size=_ROW)
        stream = net.add(stream, _feed_forward(net, _norm(net, stream)), size=_ROW)
    net.linear(_norm(net, stream), WIDTH, 32_000)
    return net


def _unet(depth: int) -> Net:
    """Blocks of two convolutions at four levels; each level's features skip over the deeper ones."""
    net = Net(TOKENS * 8)
    time_step = net.add(0, size=4096 * BYTES, state=4096 * BYTES)
    per_level = max(1, depth // 8)

    def block(stream: int, level: int, width: int) -> int:
        pixels, out = 65536 >> 2 * level, 320 << min(level, 2)
        size, step = pixels * out * BYTES, net.linear(time_step, 4096, out, 1)
        first = net.add(stream, flops=18.0 * pixels * width * out, size=size, state=9 * width * out * BYTES)
        first = net.add(first, step, size=size)
        second = net.add(first, flops=18.0 * pixels * out * out, size=size, state=9 * out * out * BYTES)
        skip = stream if width == out else net.linear(stream, width, out, pixels)
        return net.add(second, skip, size=size)

    stream, width, skips = net.add(0, size=65536 * 320 * BYTES, state=4096), 320, list[tuple[int, int]]()
    for level in range(4):
        out = 320 << min(level, 2)
        for _ in range(per_level):
            stream, width = block(stream, level, width), out
            skips.append((stream, out))
        if level < 3:
            stream = net.add(stream, size=(65536 >> 2 * level + 2) * width * BYTES)
    for level in reversed(range(4)):
        out = 320 << min(level, 2)
        for _ in range(per_level):
            skipped, skipped_width = skips.pop()
            joined = net.add(stream, skipped, size=(65536 >> 2 * level) * (width + skipped_width) * BYTES)
            stream, width = block(joined, level, width + skipped_width), out
        if level:
            stream = net.add(stream, size=(65536 >> 2 * level - 2) * width * BYTES)
    net.add(stream, flops=18.0 * 65536 * width * 4, size=65536 * 4 * BYTES, state=9 * width * 4 * BYTES)
    return net


if __name__ == "__main__":
    main()
