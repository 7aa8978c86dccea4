"""Random placement problems, the same for the same number."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.problem import PlacementProblem


def random_problem(
    number: int, *, nodes: int, classes: tuple[int, ...], tightness: float = 1.6, groups: int | None = None
) -> PlacementProblem:
    """`classes`: devices of each. `tightness`: memory in all over the bytes in all; some pairs unsupported."""
    random = np.random.default_rng(number)
    seconds = random.integers(0, 20, (len(classes), nodes)) * random.uniform(0.5, 4.0, (len(classes), 1))
    if len(classes) > 1:
        for node in np.flatnonzero(random.random(nodes) < 0.1):
            seconds[random.integers(len(classes)), node] = np.inf
    node_bytes = random.integers(0, 10, nodes).astype(float)
    reads = sorted({(int(random.integers(node)), node) for node in range(1, nodes) for _ in range(2)})
    producers = sorted({source for source, _ in reads})
    index = {source: tensor for tensor, source in enumerate(producers)}
    transfer = random.integers(0, 6, (len(classes), len(producers))) * random.integers(0, 2, (len(classes), 1))
    count = groups or max(1, nodes - nodes // 5)
    colocation = np.concatenate([np.arange(count), random.integers(0, count, max(0, nodes - count))])[:nodes]
    together = np.stack([np.isfinite(seconds[:, colocation == group]).all(axis=1) for group in range(count)])
    for group in np.flatnonzero(~together.any(axis=1)):
        seconds[:, colocation == group] = 1.0
    room = max(node_bytes.sum() * tightness / sum(classes), np.bincount(colocation, weights=node_bytes).max())
    return PlacementProblem(
        seconds=seconds,
        node_bytes=node_bytes,
        tensor_producer=np.array(producers, dtype=np.int64),
        read_tensor=np.array([index[source] for source, _ in reads], dtype=np.int64),
        read_node=np.array([node for _, node in reads], dtype=np.int64),
        transfer_seconds=transfer.astype(float),
        is_backward=np.zeros(nodes, dtype=bool),
        colocation=colocation.astype(np.int64),
        class_devices=np.array(classes, dtype=np.int64),
        class_bytes=np.full(len(classes), room),
        class_is_parallel=np.zeros(len(classes), dtype=bool),
        node_names=tuple(f"n{node}" for node in range(nodes)),
        class_names=tuple(f"class{index}" for index in range(len(classes))),
    )
