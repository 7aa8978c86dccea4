"""Which integers an operator may be given: indices have to lie inside of what they index.

An operator without a rule takes ones: no division by zero, and inside of most dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.worker.profile.values import ValueTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Drawn from 0 to `end` - 1; ascending from 0 where they are `sorted` offsets."""

    end: int
    sorted: bool = False


Ranges = dict[int, Integers]
Rule = Callable[[Sequence[pb.Argument], ValueTable], Ranges]


def integer_ranges(operator: str, node: pb.Node, values: ValueTable) -> Mapping[int, Integers]:
    """Value id to the integers that it may hold, for those that the operator takes for indices."""
    name = facts_of(operator).indices
    if not name:
        return {}
    rule = RULES[name]
    try:
        return rule(node.arguments, values)
    except (IndexError, ValueError):
        return {}


def narrowest_ranges(graph: pb.Graph, values: ValueTable) -> Ranges:
    """Of each value that some node of the graph takes for indices, what all of these nodes can work on."""
    ranges: Ranges = {}
    for node in graph.nodes:
        for value_id, integers in integer_ranges(graph.operators[node.operator].name, node, values).items():
            if value_id not in ranges or integers.end < ranges[value_id].end:
                ranges[value_id] = integers
    return ranges


def _value(arguments: Sequence[pb.Argument], position: int) -> int:
    if arguments[position].WhichOneof("kind") != "value":
        raise ValueError(f"argument {position} is no value")
    return arguments[position].value


def _dims(arguments: Sequence[pb.Argument], position: int, values: ValueTable) -> tuple[int, ...]:
    declared = values.tensor(_value(arguments, position))
    if declared is None:
        raise ValueError(f"argument {position} is no tensor")
    return declared.dims


def _rows(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """embedding(weight, indices)"""
    return {_value(arguments, 1): Integers(end=_dims(arguments, 0, values)[0])}


def _bags(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """embedding_bag(weight, indices, offsets, ...)"""
    num_indices = _dims(arguments, 1, values)[0]
    return {**_rows(arguments, values), _value(arguments, 2): Integers(end=num_indices, sorted=True)}


def _along(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """gather(self, dim, index, ...) and its kin."""
    dims = _dims(arguments, 0, values)
    return {_value(arguments, 2): Integers(end=dims[arguments[1].integer] if dims else 1)}


def _flat(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """take(self, index)"""
    elements = 1
    for dim in _dims(arguments, 0, values):
        elements *= dim
    return {_value(arguments, 1): Integers(end=elements)}


def _each_dim(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """index(self, indices): one per leading dimension, or None to skip one; a mask covers as many as it has."""
    dims = _dims(arguments, 0, values)
    ranges: Ranges = {}
    at = 0
    for item in arguments[1].list.items:
        index = values.tensor(item.value) if item.WhichOneof("kind") == "value" else None
        if index is not None and not index.dtype.is_floating_point and index.dtype.itemsize > 1:
            ranges[item.value] = Integers(end=dims[at])
        is_mask = index is not None and index.dtype.itemsize == 1
        at += len(index.dims) if index is not None and is_mask else 1
    return ranges


def _classes(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """cross_entropy_loss(scores, target, ...): classes are the second dimension, or the only one."""
    dims = _dims(arguments, 0, values)
    return {_value(arguments, 1): Integers(end=dims[1] if len(dims) > 1 else dims[0])}


def _one_hot(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    return {_value(arguments, 0): Integers(end=max(1, arguments[1].integer))}


def _along_dim(arguments: Sequence[pb.Argument], values: ValueTable) -> Ranges:
    """take_along_dim(self, indices, dim)"""
    return {_value(arguments, 1): Integers(end=_dims(arguments, 0, values)[arguments[2].integer])}


# By the fact `indices` of operators.txt.
RULES: Mapping[str, Rule] = {
    "rows": _rows,
    "bags": _bags,
    "along": _along,
    "along_dim": _along_dim,
    "flat": _flat,
    "each_dim": _each_dim,
    "classes": _classes,
    "one_hot": _one_hot,
}
