"""Measured deliveries: of the kind they were measured on, and in proportion to the tensors elsewhere."""

import numpy as np

from planner.cost.buckets import mean_costs
from planner.cost.inventory import Device
from planner.cost.measured import Delivery, MeasuredTimes
from planner.cost.roofline import node_costs
from tests.builders.random_graphs import random_graph

GRAPH = random_graph(3, 30)
HINTS = GRAPH.hints()
CPU = Device(id="c", kind="cpu", host="h", memory_bytes=1 << 30)
GPU = Device(id="g", kind="H200", host="h", memory_bytes=1 << 30)
(BATCH,) = (symbol.id for symbol in GRAPH.symbols if symbol.name == "batch")


def times(delivery: Delivery | None, batch: int) -> MeasuredTimes:
    return MeasuredTimes(
        graph_id="", device_kind="cpu", seconds=((0, 1.0),), symbol_values=(("batch", batch),), delivery=delivery
    )


DELIVERY = Delivery(input_seconds=3.0, output_seconds=5.0)


def test_only_the_kind_that_was_measured_has_them() -> None:
    costs = node_costs(GRAPH, [CPU, GPU], {**HINTS, BATCH: 4}, [times(DELIVERY, 4)])
    np.testing.assert_array_equal(costs.input_seconds, [3.0, 0.0])
    np.testing.assert_array_equal(costs.output_seconds, [5.0, 0.0])


def test_a_profile_without_them_has_none() -> None:
    costs = node_costs(GRAPH, [CPU], HINTS, [times(None, 4)])
    assert (costs.input_seconds[0], costs.output_seconds[0]) == (0.0, 0.0)


def test_larger_tensors_take_longer() -> None:
    small = node_costs(GRAPH, [CPU], {**HINTS, BATCH: 4}, [times(DELIVERY, 4)])
    large = node_costs(GRAPH, [CPU], {**HINTS, BATCH: 8}, [times(DELIVERY, 4)])
    assert 3.0 < large.input_seconds[0] <= 6.0
    assert 5.0 < large.output_seconds[0] <= 10.0
    mixed = mean_costs([(small, 0.75), (large, 0.25)])
    np.testing.assert_allclose(mixed.input_seconds, 0.75 * small.input_seconds + 0.25 * large.input_seconds)
