"""Mode "aot_based": as given, or a message that says what is wrong with it."""

import pytest

from planner.errors import Infeasible, OptionsError
from planner.partition.modes.aot_based import aot_based
from tests.planner.partition.problems import chain, problem


def test_stages_run_in_the_order_of_their_edges() -> None:
    assignment = aot_based(chain([[1.0] * 3] * 2), [2, 0, 1], [0, 1, 0])
    assert (assignment.stage_of_node, assignment.device_of_stage) == ((0, 1, 2), (0, 0, 1))
    assert assignment.reasons == ("partition 2, as given", "partition 0, as given", "partition 1, as given")


@pytest.mark.parametrize(
    ("partitions", "devices", "said"),
    [
        ([0, 0, 0], [], "device_of_partition is empty"),
        ([0, 0, 0], [2], "partition 0 is on device 2, and the inventory has 2"),
        ([0, 0], [0], "2 entries, the graph 3 nodes"),
        ([0, -1, 3], [0], "2 nodes have no partition of 0 to 0: node 1 .'node1'., node 2"),
        ([0, 0, 2], [0, 0, 1], "no node is in partition 1"),
        ([0, 1, 0], [0, 1], "partitions 0, 1 wait for each other: node 1 .* reads from partition 0; node 2"),
    ],
)
def test_what_cannot_be_is_refused(partitions: list[int], devices: list[int], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        aot_based(chain([[1.0] * 3] * 2), partitions, devices)


def test_nodes_around_a_write_stay_together() -> None:
    written = chain([[1.0] * 3] * 2, groups=[(1, 2)])
    with pytest.raises(OptionsError, match=r"node 1 .* is in partition 0 and node 2 .* in 1, but they have to share"):
        aot_based(written, [0, 0, 1], [0, 1])


def test_an_overfull_device_is_named_with_its_partitions() -> None:
    case = problem(
        compute_seconds=[[1.0] * 2] * 2,
        reads=[[0], [1]],
        value_bytes=[0, 0, 0],
        states=[(30, (0,)), (20, (1,))],
        memory_bytes=[40, 40],
    )
    assert aot_based(case, [0, 1], [0, 1]).num_stages == 2
    with pytest.raises(Infeasible, match=r"'d1' has 40 bytes, its partitions 0 .30 bytes., 1 .20 bytes. need 50 bytes"):
        aot_based(case, [0, 1], [1, 1])


def test_a_device_that_cannot_run_a_node_is_refused() -> None:
    problem = chain([[1.0, float("inf")], [1.0, 1.0]])
    with pytest.raises(OptionsError, match=r"node 1 .* is in partition 0, on 'd0', which cannot run it; 'd1' can"):
        aot_based(problem, [0, 0], [0])
    assert aot_based(problem, [0, 1], [0, 1]).device_of_stage == (0, 1)
