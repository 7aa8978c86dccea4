"""Which values are a graph's states, and how many copies of them a node is timed over.

In a run, all the other states are read between two uses of one: where they do not fit the device's cache together, each
is read from memory every time. Called over and over on one copy, a node would find its weights in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph
from stage_daemon.worker.profile.values import ValueTable

# Beyond the last-level caches of common CPUs and GPUs (H200: 50 MB).
CACHE_BYTES = 64 << 20
MAX_COPIES = 256


def state_values(graph: pb.Graph) -> frozenset[int]:
    """Ids of states, and of views of them: what an operator that aliases an argument makes of a state."""
    value_ids = {state.value for state in graph.states}
    for index, node in enumerate(graph.nodes):
        if node.operator >= len(graph.operators):
            raise InvalidGraph(f"node {index}: speaks of operator {node.operator}; the graph has no such")
        aliased = graph.operators[node.operator].aliased_arguments
        arguments = [node.arguments[position] for position in aliased if position < len(node.arguments)]
        if any(argument.WhichOneof("kind") == "value" and argument.value in value_ids for argument in arguments):
            value_ids.update(value_id for value_id in node.outputs if value_id)
    return frozenset(value_ids)


def all_bytes(graph: pb.Graph, values: ValueTable) -> int:
    """Of every state; tied ones once."""
    owners = {("tied", state.tie_group) if state.tie_group else ("own", state.value): state for state in graph.states}
    return sum_bytes((state.value for state in owners.values()), values)


def sum_bytes(value_ids: Iterable[int], values: ValueTable) -> int:
    tensors = (values.tensor(value_id) for value_id in value_ids)
    return sum(tensor.size_bytes for tensor in tensors if tensor is not None)


def num_copies(node_bytes: int, graph_bytes: int) -> int:
    """So many that together they are what a run reads between two uses, or outgrow the cache."""
    if not node_bytes:
        return 1
    return min(MAX_COPIES, math.ceil(min(graph_bytes, CACHE_BYTES) / node_bytes))
