"""Numbers that cannot be planned with are refused before anything is computed."""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import GraphError, InventoryError, OptionsError
from planner.partition.modes.table import MODES, AotBasedMode, CutMode
from planner.partition.registry import partition
from planner.partition.request import Request
from tests.planner.partition.problems import chain, problem


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_impossible_seconds_name_node_and_device(seconds: float) -> None:
    with pytest.raises(GraphError, match=r"node 1 \('node1'\) on device 'd0'"):
        chain([[1.0, seconds, 1.0]])


def test_a_node_that_no_device_can_run_is_named_with_the_devices() -> None:
    with pytest.raises(
        GraphError, match=r"node 0 \('node0'\) on device 'd0' and on device 'd1' .*no device can run it"
    ):
        chain([[np.inf, 1.0], [np.inf, np.inf]])


def test_a_node_fixed_to_a_device_that_cannot_run_it() -> None:
    with pytest.raises(OptionsError, match="fixed to device 'd0', which cannot run it"):
        chain([[np.inf, 1.0], [1.0, 1.0]], fixed={0: 0})


def test_a_fixed_node_can_run_nowhere_else() -> None:
    assert chain([[1.0, 2.0], [3.0, 4.0]], fixed={1: 1}).compute_seconds.tolist() == [[1.0, np.inf], [3.0, 4.0]]


def test_no_nodes() -> None:
    with pytest.raises(GraphError, match="no nodes"):
        problem(compute_seconds=[[]], reads=[], value_bytes=[1])


def test_no_devices() -> None:
    with pytest.raises(InventoryError, match="no devices"):
        replace(
            chain([[1.0]]),
            compute_seconds=np.zeros((0, 1)),
        )


def test_negative_bytes() -> None:
    with pytest.raises(GraphError, match="fewer than 0 bytes"):
        chain([[1.0]], value_bytes=[-1, 1])


def test_bytes_beyond_what_sums_can_hold() -> None:
    with pytest.raises(GraphError, match="check the dimensions"):
        chain([[1.0]], value_bytes=[1 << 62, 1])


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(OptionsError, match="aot_based, balanced, cost_aware, cut, kl_based"):
        partition(chain([[1.0]]), Request(mode="best"))


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_gives_stages_in_order(mode: str) -> None:
    given = chain([[1.0] * 6] * 3, module_paths=["a", "a", "b", "b", "c", "c"])
    first, _, last = given.labels.devices
    options = {
        "cut": CutMode(module_paths=("a", "b")),
        "aot_based": AotBasedMode(partition_of_node=(1, 1, 0, 0, 0, 0), device_of_partition=(first, last)),
    }
    request = Request(mode=mode, options=options.get(mode))
    found = partition(given, request)
    assert sorted(found.stage_of_node) == list(found.stage_of_node)
    assert set(found.stage_of_node) == set(range(found.num_stages))
    assert len(found.reasons) == found.num_stages
    assert len(set(found.device_of_stage)) == found.num_stages
    assert found == partition(given, request)
