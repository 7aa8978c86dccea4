"""Numbers that cannot be planned with are refused before anything is computed."""

from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from planner.errors import GraphError, InventoryError, OptionsError
from planner.partition.modes.table import MODES, AotBasedMode, CutMode
from planner.partition.problem import FREE, PartitionProblem
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
    case = chain([[1.0] * 6] * 3, module_paths=["a", "a", "b", "b", "c", "c"])
    first, _, last = case.labels.devices
    options = {
        "cut": CutMode(module_paths=("a", "b")),
        "aot_based": AotBasedMode(partition_of_node=(1, 1, 0, 0, 0, 0), device_of_partition=(first, last)),
    }
    request = Request(mode=mode, options=options.get(mode))
    assignment = partition(case, request)
    assert sorted(assignment.stage_of_node) == list(assignment.stage_of_node)
    assert set(assignment.stage_of_node) == set(range(assignment.num_stages))
    assert len(assignment.reasons) == assignment.num_stages
    assert len(set(assignment.device_of_stage)) == assignment.num_stages
    assert assignment == partition(case, request)


def _arrays(one: PartitionProblem) -> dict[str, np.ndarray]:
    """With the labels. None is empty: of one that is left out nothing can be seen."""
    arrays = {
        field.name: getattr(one, field.name)
        for field in fields(one)
        if isinstance(getattr(one, field.name), np.ndarray)
    }
    assert all(array.size for array in arrays.values())
    return arrays | {name: np.array(names) for name, names in asdict(one.labels).items()}


def _of_five_nodes_on_three_devices() -> PartitionProblem:
    """No other size of an array is 5 or 3."""
    one = problem(
        compute_seconds=[[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0], [11.0, 12.0, 13.0, 14.0, 15.0]],
        reads=[[0, 1], [2, 1], [3], [4], [5]],
        num_inputs=2,
        value_bytes=[1] * 7,
        states=[(1, (0, 1, 2)), (1, (2, 3, 4)), (1, (4,)), (1, (4,))],
        latency=[[0.0, 1.0, 2.0], [3.0, 0.0, 4.0], [5.0, 6.0, 0.0]],
        memory_bytes=[10, 20, 30],
        embeddings=(1,),
        fixed={3: 2, 1: 1},
        module_paths=["a", "b", "c", "d", "e"],
        kinds=["x", "y", "z"],
    )
    nothing = np.zeros(2, dtype=np.int64)
    return replace(one, returned_state=nothing, shown_root=nothing, shown_node=nothing)


def test_no_array_by_node_is_forgotten_where_nodes_are_chosen() -> None:
    one, nodes = _of_five_nodes_on_three_devices(), np.array([3, 1])
    first = {name: array * 0 for name, array in _arrays(one).items() if name.endswith(("_producer", "_node"))}
    changes = {**first, "value_producer": np.full(7, -1), "cut_allowed": np.ones(3, dtype=np.bool_)}
    arrays = _arrays(one.with_nodes(nodes, **changes))
    for name, array in _arrays(one).items():
        if one.num_nodes in array.shape:
            expected = np.take(array, nodes, axis=array.shape.index(one.num_nodes))
            np.testing.assert_array_equal(arrays[name], expected, err_msg=name)


def test_no_array_by_device_is_forgotten_where_devices_are_chosen() -> None:
    one, devices = _of_five_nodes_on_three_devices(), np.array([2, 1])
    arrays = _arrays(one.with_devices(devices))
    for name, array in _arrays(one).items():
        if name != "fixed_device":
            for axis in np.flatnonzero(np.array(array.shape) == one.num_devices).tolist():
                array = np.take(array, devices, axis=axis)
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    assert arrays["fixed_device"].tolist() == [FREE, 1, FREE, 0, FREE]


def test_nodes_stay_fixed_to_the_first_of_two_alike() -> None:
    one = _of_five_nodes_on_three_devices()
    assert one.with_devices(np.array([0, 1, 2, 1, 2])).fixed_device.tolist() == one.fixed_device.tolist()
