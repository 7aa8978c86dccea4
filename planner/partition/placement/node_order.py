"""The placement's DAG by node: who makes what a node reads, and an order in which nodes can run."""

from __future__ import annotations

from planner.errors import GraphError
from planner.partition.placement.problem import PlacementProblem
from planner.partition.topological_order import topological_order


def producers_of_nodes(problem: PlacementProblem) -> list[list[int]]:
    """[n] the distinct nodes whose tensors each reads, ascending."""
    producers: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    made_by = problem.tensor_producer.tolist()
    for tensor, node in zip(problem.read_tensor.tolist(), problem.read_node.tolist(), strict=True):
        producers[node].add(made_by[tensor])
    return [sorted(nodes) for nodes in producers]


def node_order(problem: PlacementProblem) -> list[int]:
    """Producers before readers, otherwise by number as they become ready. Raises GraphError where there is a cycle."""
    producers = producers_of_nodes(problem)
    readers: list[list[int]] = [[] for _ in producers]
    for node, read in enumerate(producers):
        for producer in read:
            readers[producer].append(node)
    order = topological_order(producers, readers)
    if len(order) < len(producers):
        stuck = min(set(range(len(producers))).difference(order))
        raise GraphError(f"node {problem.node_names[stuck]!r} waits for itself; nodes that form a cycle cannot run")
    return order
