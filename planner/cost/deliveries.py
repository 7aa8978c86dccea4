"""Deliveries at other dimensions than they were measured at.

A profile measures them as a whole, for the tensors of one graph. Elsewhere they count in proportion to the tensors'
bytes, which is wrong for small ones: what a message costs at any size is not told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.cost.measured import NO_DELIVERY, Delivery, MeasuredTimes
from planner.cost.messages import message_seconds
from planner.cost.shapes import Shape
from planner.graph.ir import Graph, Input, Output, values_in


def scaled_delivery(
    graph: Graph, times: MeasuredTimes, before: Mapping[int, Shape], after: Mapping[int, Shape]
) -> Delivery:
    """`before` are the shapes by value id that were measured at, `after` those that are asked for."""
    if times.delivery is None:
        return NO_DELIVERY
    return Delivery(
        input_seconds=times.delivery.input_seconds * _growth(graph.inputs, before, after),
        output_seconds=times.delivery.output_seconds * _growth(graph.outputs, before, after),
    )


def measured_message(graph: Graph, times: MeasuredTimes, shapes: Mapping[int, Shape]) -> float | None:
    """See planner.cost.messages. `shapes` are those that were measured at."""
    if times.delivery is None:
        return None
    return message_seconds(times.delivery, _bytes(graph.inputs, shapes), _bytes(graph.outputs, shapes))


def _bytes(entries: Iterable[Input | Output], shapes: Mapping[int, Shape]) -> int:
    return sum(shapes[value].size_bytes for value in {value for entry in entries for value in values_in(entry.content)})


def _growth(entries: Sequence[Input | Output], before: Mapping[int, Shape], after: Mapping[int, Shape]) -> float:
    first, second = _bytes(entries, before), _bytes(entries, after)
    return second / first if first else 1.0
