"""Arrays that do not fit together are refused before any algorithm takes them at their word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import GraphError, InventoryError, PlannerError
from planner.graph.cycle import cycle_text, find_cycle
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain


def three() -> PartitionProblem:
    return chain([[1.0, 2.0, 3.0]] * 2, states=[(4, (0,))])


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"compute_seconds": np.ones(3)}, GraphError, "has 1 dimensions, needs two: devices x nodes"),
        ({"compute_seconds": np.ones((2, 0))}, GraphError, "no nodes"),
        ({"compute_seconds": np.ones((0, 3))}, InventoryError, "no devices"),
        ({"compute_seconds": np.full((2, 3), np.nan)}, GraphError, r"node 0 \('node0'\) on device 'd0' costs nan"),
        ({"compute_seconds": np.full((2, 3), -1.0)}, GraphError, "costs -1.0 seconds, needs a finite number from 0"),
        ({"compute_seconds": np.full((2, 3), 1e300)}, GraphError, r"costs 1e\+300 seconds"),
        ({"compute_seconds": np.full((2, 3), np.inf)}, GraphError, "no device can run it"),
        ({"flops": np.ones(4)}, GraphError, "flops is 4, needs 3 entries"),
        ({"cut_allowed": np.ones(3, dtype=np.bool_)}, GraphError, "cut_allowed is 3, needs 4 entries"),
        ({"link_latency_seconds": np.zeros((2, 3))}, GraphError, "link_latency_seconds is 2 x 3, needs 2 x 2"),
        ({"link_seconds_per_byte": np.full((2, 2), np.nan)}, InventoryError, "from 'd0' to 'd0' is nan"),
        ({"link_latency_seconds": np.full((2, 2), -1.0)}, InventoryError, "needs a number from 0"),
        ({"device_memory_bytes": np.array([1, -1])}, InventoryError, "device 'd1': memory_bytes is -1"),
        ({"read_node": np.array([0, 1, 9])}, GraphError, r"read_node\[2\] is 9, needs 0 to 2"),
        ({"read_value": np.array([0, 1, -1])}, GraphError, r"read_value\[2\] is -1"),
        ({"use_node": np.array([3])}, GraphError, r"use_node\[0\] is 3"),
        ({"fixed_device": np.array([0, 7, -1])}, InventoryError, r"fixed_device\[1\] is 7, needs -1 to 1"),
        ({"fixed_device": np.array([0])}, GraphError, "fixed_device is 1, needs 3 entries"),
        ({"value_bytes": np.array([1, 1, -1, 1])}, GraphError, "fewer than 0 bytes"),
        ({"value_bytes": np.array([1, 1, 1 << 60, 1])}, GraphError, r"at most 2\^53 bytes can be planned"),
        ({"read_value": np.array([3, 1, 2])}, GraphError, "form a cycle: 'node.' → 'node.' → 'node.' → 'node.'"),
        ({"read_value": np.array([2, 0, 2])}, GraphError, "node 0 .'node0'. reads what node 1 .'node1'. makes later"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, object], kind: type[PlannerError], says: str) -> None:
    with pytest.raises(kind, match=says):
        replace(three(), **changes)


def test_a_cycle_is_one() -> None:
    arcs = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]
    cycle = find_cycle(5, arcs)
    assert cycle is not None
    assert set(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) <= set(arcs)
    assert find_cycle(5, arcs[:3]) is None
    assert cycle_text(["a", "b"]) == "a → b → a"
