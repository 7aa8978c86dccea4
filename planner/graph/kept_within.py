"""What a call makes within, and its backward pass keeps beside what the call reads and returns."""

from __future__ import annotations

from planner.graph.effects import drops_nothing
from planner.graph.ir import Node
from planner.graph.operators import facts_of

_INDEX_BYTES = 8


def bytes_kept_within(node: Node, result_bytes: int, element_bytes: int) -> int:
    """By the size of the call's first result, and of one of its elements."""
    match facts_of(node.operator.name).keeps:
        case "noise":
            return 0 if drops_nothing(node) else result_bytes
        case "indices":
            return result_bytes // element_bytes * _INDEX_BYTES
    return 0
