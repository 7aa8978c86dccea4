"""What a plan that cannot exist says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from planner.errors import Infeasible
from planner.partition.modes.balanced import balanced
from planner.partition.modes.size_based import size_based
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import chain, problems
from tests.random_examples import random_examples


def refusal(problem: PartitionProblem) -> Infeasible | None:
    try:
        balanced(problem)
    except Infeasible as error:
        return error
    return None


@pytest.mark.slow
@random_examples(12)
@given(problem=problems(max_nodes=6, max_devices=3))
def test_the_bytes_that_lack_are_the_fewest_that_help(problem: PartitionProblem) -> None:
    problem = replace(problem, device_memory_bytes=np.arange(problem.num_devices) * 7 + 10)
    error = refusal(problem)
    assume(error is not None)
    lacking = int(error.metadata["lacking_bytes"])
    memory = problem.device_memory_bytes
    assert refusal(replace(problem, device_memory_bytes=memory + lacking)) is None
    assert refusal(replace(problem, device_memory_bytes=memory + lacking - 1)) is not None


def test_says_which_stage_lacks_how_many_bytes_on_which_device() -> None:
    states = [(100, (node,)) for node in range(4)]
    problem = chain([[1.0] * 4] * 2, states=states, memory_bytes=[150, 150], value_bytes=[0] * 5)
    error = refusal(problem)
    assert error is not None
    assert error.metadata["lacking_bytes"] == "50"
    assert error.metadata["needed_bytes"] == "200"
    assert error.metadata["device"] in ("d0", "d1")
    assert "50 bytes more on each device" in error.message
    assert "node 0 ('node0') to node 1 ('node1')" in error.message


def test_one_more_device_is_offered_where_it_helps() -> None:
    states = [(100, (node,)) for node in range(3)]
    tight = chain([[1.0] * 3] * 2, states=states, memory_bytes=[150, 150], value_bytes=[0] * 4)
    assert "one more device like 'd0'" in str(refusal(tight))
    hopeless = replace(tight, device_memory_bytes=np.array([50, 50]))
    assert "one more device" not in str(refusal(hopeless))


def test_a_node_that_no_device_holds_is_named() -> None:
    problem = chain([[1.0] * 3] * 2, states=[(500, (1,))], memory_bytes=[300, 400], value_bytes=[0] * 4)
    assert "node 1 ('node1') alone reads 500 bytes" in str(refusal(problem))


def test_a_smaller_batch_is_offered_where_it_is_enough() -> None:
    problem = chain([[1.0] * 2], value_bytes=[100, 100, 100], memory_bytes=[500])
    assert "batch" in str(refusal(problem))
    weights = chain([[1.0] * 2], value_bytes=[1, 1, 1], states=[(900, (0,))], memory_bytes=[500])
    assert "batch" not in str(refusal(weights))


def test_size_based_says_the_same() -> None:
    with pytest.raises(Infeasible, match="mode size_based: no cut"):
        size_based(chain([[1.0] * 3], states=[(500, (1,))], memory_bytes=[300]))


def test_what_is_fixed_and_too_much_names_the_device_and_the_bytes() -> None:
    states = [(200, (node,)) for node in range(4)]
    problem = chain(
        [[1.0] * 4] * 3, states=states, memory_bytes=[300, 900, 900], value_bytes=[0] * 5, fixed={0: 0, 1: 0}
    )
    message = str(refusal(problem))
    assert "fixed to device 'd0' (2 nodes" in message
    assert "reads 400 bytes" in message
    assert "fix 100 bytes less" in message


def test_a_group_that_no_device_holds_is_named() -> None:
    states = [(200, (node,)) for node in range(4)]
    problem = chain([[1.0] * 4] * 2, states=states, memory_bytes=[500, 500], value_bytes=[0] * 5, groups=[(0, 2)])
    problem = replace(problem, node_group=np.array([0, 0, 0, -1]))
    assert "node 0 ('node0') to node 2 ('node2') have to stay together (3 nodes) and read 600 bytes" in str(
        refusal(problem)
    )


def test_all_states_are_set_beside_all_memory() -> None:
    states = [(200, (node,)) for node in range(4)]
    problem = chain([[1.0] * 4] * 2, states=states, memory_bytes=[300, 300], value_bytes=[0] * 5)
    message = str(refusal(problem))
    assert "All states together are 800 bytes, and all devices have 600 bytes: add at least 200 bytes" in message
