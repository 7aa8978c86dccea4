"""Bytes that one call moves through its device's memory."""

from __future__ import annotations

from collections.abc import Mapping

from planner.cost.shapes import Shape
from planner.graph.ir import Node, OperatorKind, values_read
from planner.graph.operators import facts_of


def is_free(node: Node, storage_roots: Mapping[int, int]) -> bool:
    """A view, or arithmetic on scalars: nothing runs on the device."""
    if node.operator.kind is OperatorKind.PYTHON:
        return True
    if node.operator.kind is not OperatorKind.ATEN or node.operator.mutated_arguments:
        return False
    outputs = [output for output in node.outputs if output]
    return bool(outputs) and all(storage_roots.get(output, output) != output for output in outputs)


def bytes_moved(node: Node, shapes: Mapping[int, Shape]) -> int:
    """Each distinct tensor read once and each result written once."""
    written = sum(shapes[output].size_bytes for output in node.outputs if output)
    reads = facts_of(node.operator.name).reads
    read = [shapes[value_id] for value_id in values_read(node)]
    if reads == "rows" and read:
        return 2 * written + sum(shape.size_bytes for shape in read[1:])
    if reads == "experts" and len(read) > 1 and len(read[1].dims) == 3:
        # Rows that are fewer than the experts choose at most one each: the others' weights stay unread.
        rows, experts = read[0].dims[0], max(1, read[1].dims[0])
        weight_bytes = read[1].size_bytes * min(rows, experts) // experts
        return written + weight_bytes + sum(shape.size_bytes for shape in (read[0], *read[2:]))
    if reads == "bags" and len(read) > 1:
        row_bytes = read[0].size_bytes // max(1, read[0].dims[0] if read[0].dims else 1)
        return written + read[1].num_elements * row_bytes + sum(shape.size_bytes for shape in read[1:])
    return written + sum(shape.size_bytes for shape in read)
