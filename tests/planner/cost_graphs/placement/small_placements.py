"""Random small placement problems, and their least contiguous bottleneck by trying every assignment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from planner.cost_graphs.placement.costs import device_bytes, device_loads
from planner.cost_graphs.placement.problem import PlacementProblem


def random_placement(seed: int) -> PlacementProblem:
    """Up to 6 nodes and 3 devices of up to two classes, with anything that may bind."""
    rng = np.random.default_rng(seed)
    num_nodes, num_classes = int(rng.integers(1, 7)), int(rng.integers(1, 3))
    tensors = _tensors(rng, num_nodes)
    transfer = rng.integers(0, 5, (num_classes, len(tensors))).astype(np.float64)
    if num_classes > 1 and rng.random() < 0.5:
        transfer[-1] = 0.0
    seconds = rng.integers(0, 6, (num_classes, num_nodes)) + rng.random((num_classes, num_nodes)) * rng.integers(0, 2)
    seconds[rng.random(seconds.shape) < 0.1] = np.inf
    backward = np.zeros(num_nodes, dtype=np.bool_)
    backward[num_nodes - int(rng.integers(0, 4)) :] = rng.random() < 0.6
    return PlacementProblem(
        seconds=seconds,
        node_bytes=rng.integers(0, 5, num_nodes).astype(np.float64),
        tensor_producer=np.array([producer for producer, _ in tensors], dtype=np.int64),
        read_tensor=np.array([index for index, (_, readers) in enumerate(tensors) for _ in readers], dtype=np.int64),
        read_node=np.array([reader for _, readers in tensors for reader in readers], dtype=np.int64),
        transfer_seconds=transfer,
        is_backward=backward,
        colocation=_colocation(rng, num_nodes),
        class_devices=np.array([(1, 2), (2, 1), (3, 0)][int(rng.integers(0, 3))][:num_classes], dtype=np.int64),
        class_bytes=np.where(rng.random(num_classes) < 0.5, np.inf, rng.integers(3, 14, num_classes)),
        class_is_parallel=np.zeros(num_classes, dtype=np.bool_),
        node_names=tuple(f"node {index}" for index in range(num_nodes)),
        class_names=tuple(f"class {index}" for index in range(num_classes)),
    )


def least_bottleneck(problem: PlacementProblem) -> float:
    """inf if nothing fits. devices^nodes."""
    return min((float(device_loads(problem, devices).max()) for devices in _feasible(problem)), default=np.inf)


def free_placements(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    """Those that keep to support, memory and colocation."""
    for choice in product(range(problem.num_devices), repeat=int(problem.colocation.max()) + 1):
        devices = tuple(choice[group] for group in problem.colocation.tolist())
        if _is_allowed(problem, devices):
            yield devices


def is_feasible(problem: PlacementProblem, devices: tuple[int, ...]) -> bool:
    """Support, memory, colocation and an acyclic quotient over forward arcs."""
    return _is_allowed(problem, devices) and _is_chain(problem, devices)


def _is_allowed(problem: PlacementProblem, devices: tuple[int, ...]) -> bool:
    groups = set(zip(problem.colocation.tolist(), devices, strict=True))
    fits = device_bytes(problem, devices) <= problem.class_bytes[problem.class_of_device]
    runs = np.isfinite(device_loads(problem, devices))
    together = len(groups) == len(set(problem.colocation.tolist()))
    return together and bool((fits & runs).all())


def _feasible(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    return (devices for devices in free_placements(problem) if _is_chain(problem, devices))


def _is_chain(problem: PlacementProblem, devices: tuple[int, ...]) -> bool:
    makers = problem.tensor_producer[problem.read_tensor].tolist()
    backward = problem.is_backward
    arcs = {
        (devices[maker], devices[reader])
        for maker, reader in zip(makers, problem.read_node.tolist(), strict=True)
        if not backward[maker] and not backward[reader] and devices[maker] != devices[reader]
    }
    left = set(range(problem.num_devices))
    while left:
        first = {device for device in left if not any(head == device and tail in left for tail, head in arcs)}
        if not first:
            return False
        left -= first
    return True


def _tensors(rng: np.random.Generator, num_nodes: int) -> list[tuple[int, list[int]]]:
    density = rng.random()
    tensors = []
    for producer in range(num_nodes):
        for _ in range(int(rng.integers(1, 3))):
            readers = [node for node in range(producer + 1, num_nodes) if rng.random() < density]
            if readers:
                tensors.append((producer, readers))
    return tensors


def _colocation(rng: np.random.Generator, num_nodes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    groups = np.arange(num_nodes)
    for _ in range(int(rng.integers(0, 3))):
        first, second = rng.integers(0, num_nodes, 2)
        groups[groups == groups[first]] = groups[second]
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)
