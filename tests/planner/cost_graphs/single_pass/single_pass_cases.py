"""Small problems of a single pass, and what they take worked out slowly: blocks by walking paths, times by waiting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem


def build(
    *,
    host: Sequence[float],
    accelerator: Sequence[float],
    sizes: Sequence[float],
    arcs: Sequence[tuple[int, int]],
    costs: Sequence[float],
    devices: int = 2,
    memory: float = math.inf,
    colocation: Sequence[int] | None = None,
) -> PlacementProblem:
    """One host device, and `devices` accelerators of one class; `costs` by producing node."""
    producers = sorted({source for source, _ in arcs})
    tensor_of = {node: tensor for tensor, node in enumerate(producers)}
    count = len(sizes)
    return PlacementProblem(
        seconds=np.array([host, accelerator], dtype=np.float64),
        node_bytes=np.array(sizes, dtype=np.float64),
        tensor_producer=np.array(producers, dtype=np.int64),
        read_tensor=np.array([tensor_of[source] for source, _ in arcs], dtype=np.int64),
        read_node=np.array([target for _, target in arcs], dtype=np.int64),
        transfer_seconds=np.array([[0.0] * len(producers), [costs[node] for node in producers]]),
        is_backward=np.zeros(count, dtype=np.bool_),
        colocation=np.arange(count) if colocation is None else np.array(colocation, dtype=np.int64),
        class_devices=np.array([1, devices]),
        class_bytes=np.array([math.inf, memory]),
        class_is_parallel=np.array([True, False]),
        node_names=tuple(f"node {node}" for node in range(count)),
        class_names=("cpu", "accelerator"),
    )


def random_problem(random: np.random.Generator, num_nodes: int, **changes: object) -> PlacementProblem:
    """Arcs go from lower to higher numbers; some nodes cost a host nothing."""
    arcs = [
        (source, target)
        for source, target in itertools.combinations(range(num_nodes), 2)
        if random.random() < 1.6 / num_nodes + (0.3 if target == source + 1 else 0.0)
    ]
    accelerator = random.integers(0, 4, num_nodes)
    fields: dict[str, object] = {
        "host": np.where(random.random(num_nodes) < 0.3, 0, accelerator * 4 + random.integers(0, 3, num_nodes)),
        "accelerator": accelerator,
        "sizes": random.integers(0, 5, num_nodes),
        "arcs": arcs,
        "costs": random.integers(0, 4, num_nodes) * 0.75,
        "memory": float(random.integers(5, 12)),
        **changes,
    }
    return build(**fields)  # type: ignore[arg-type]


def slow_single_pass(problem: PlacementProblem, devices: Sequence[int]) -> float | None:
    """The rules of single_pass_seconds by another way: a node's piece by recursion, the blocks' ends by iteration."""
    nodes = range(problem.num_nodes)
    makes = problem.tensor_producer.tolist()
    reads = [(makes[tensor], node, tensor) for tensor, node in zip(problem.read_tensor, problem.read_node, strict=True)]
    before = {node: [maker for maker, reader, _ in reads if reader == node] for node in nodes}

    def returns(node: int, device: int) -> int:
        """Most times that a path to the node has come (back) to the device."""
        own = devices[node] == device
        coming = [returns(maker, device) + (own and devices[maker] != device) for maker in before[node]]
        return max([int(own), *coming])

    def is_host(device: int) -> bool:
        return bool(problem.class_is_parallel[problem.class_of_device[device]])

    key = {
        node: ("host", node) if is_host(devices[node]) else (devices[node], returns(node, devices[node]))
        for node in nodes
    }
    lasts: dict[object, float] = {}
    waits: dict[object, set[object]] = {}
    for block in set(key.values()):
        members = [node for node in nodes if key[node] == block]
        device_class = int(problem.class_of_device[devices[members[0]]])
        receipts = {tensor for maker, node, tensor in reads if key[node] == block != key[maker]}
        cut_tensors = {tensor for maker, node, tensor in reads if key[maker] == block != key[node]}
        transfer_seconds = 0.0 if block[0] == "host" else sum(problem.transfer_seconds[device_class, list(receipts)])
        transfer_seconds += (
            0.0 if block[0] == "host" else sum(problem.transfer_seconds[device_class, list(cut_tensors)])
        )
        lasts[block] = float(problem.seconds[device_class, members].sum() + transfer_seconds)
        waits[block] = {key[maker] for maker, node, _ in reads if key[node] == block != key[maker]}
        waits[block] |= {other for other in key.values() if other[0] == block[0] != "host" and other[1] < block[1]}
    ends: dict[object, float] = {}
    while len(ends) < len(lasts):
        ready = [block for block in lasts if block not in ends and waits[block] <= ends.keys()]
        if not ready:
            return None
        for block in ready:
            ends[block] = lasts[block] + max((ends[other] for other in waits[block]), default=0.0)
    return max(ends.values())


def least_single_pass(problem: PlacementProblem, *, one_block: bool) -> float:
    """The best of all placements; inf if none is allowed. With `one_block`, an accelerator runs at most one."""
    best = math.inf
    groups = int(problem.colocation.max()) + 1
    for choice in itertools.product(range(problem.num_devices), repeat=groups):
        devices = np.array(choice)[problem.colocation]
        used_bytes = np.bincount(devices, weights=problem.node_bytes, minlength=problem.num_devices)
        classes = problem.class_of_device[devices]
        limit = problem.class_bytes[problem.class_of_device]
        if (used_bytes > limit).any() or not np.isfinite(problem.seconds[classes, np.arange(devices.size)]).all():
            continue
        if one_block and not is_convex(problem, devices.tolist()):
            continue
        seconds = slow_single_pass(problem, devices.tolist())
        best = min(best, math.inf if seconds is None else seconds)
    return best


def is_convex(problem: PlacementProblem, devices: Sequence[int]) -> bool:
    """Whether accelerators, each as one, and host nodes, each by itself, can run one after the other."""
    key = [
        -1 - node if problem.class_is_parallel[problem.class_of_device[device]] else device
        for node, device in enumerate(devices)
    ]
    waits: dict[int, set[int]] = {block: set() for block in key}
    for tensor, node in zip(problem.read_tensor.tolist(), problem.read_node.tolist(), strict=True):
        waits[key[node]].add(key[int(problem.tensor_producer[tensor])])
    done: set[int] = set()
    while len(done) < len(waits):
        ready = {block for block, others in waits.items() if block not in done and others - {block} <= done}
        if not ready:
            return False
        done |= ready
    return True
