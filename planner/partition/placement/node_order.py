"""The placement's DAG by node: who makes what a node reads, and an order in which nodes can run."""

from __future__ import annotations

from planner.errors import GraphError
from planner.partition.placement.problem import PlacementProblem


def producers_of_nodes(problem: PlacementProblem) -> list[list[int]]:
    """[n] the distinct nodes whose tensors each reads, ascending."""
    producers: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    made_by = problem.tensor_producer.tolist()
    for tensor, node in zip(problem.read_tensor.tolist(), problem.read_node.tolist(), strict=True):
        producers[node].add(made_by[tensor])
    return [sorted(found) for found in producers]


def node_order(problem: PlacementProblem) -> list[int]:
    """Producers before readers, otherwise by number as they become ready. Raises GraphError where there is a cycle."""
    producers = producers_of_nodes(problem)
    readers: list[list[int]] = [[] for _ in producers]
    for node, found in enumerate(producers):
        for producer in found:
            readers[producer].append(node)
    left = [len(found) for found in producers]
    order = [node for node, count in enumerate(left) if not count]
    for node in order:
        for reader in readers[node]:
            left[reader] -= 1
            if not left[reader]:
                order.append(reader)
    if len(order) < len(left):
        stuck = next(node for node, count in enumerate(left) if count)
        raise GraphError(f"node {problem.node_names[stuck]!r} waits for itself; nodes that form a cycle cannot run")
    return order
