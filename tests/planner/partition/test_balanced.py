"""Mode "balanced" against every contiguous cut and every choice of devices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible, OptionsError
from planner.partition.assignment import Assignment
from planner.partition.balanced import balanced
from planner.partition.evaluate import evaluate
from planner.partition.problem import PartitionProblem
from tests.planner.partition.problems import all_contiguous, chain, problems


def fits(problem: PartitionProblem, assignment: Assignment) -> bool:
    return bool((np.array(evaluate(problem, assignment).device_peak_bytes) <= problem.device_memory_bytes).all())


def least(problem: PartitionProblem, num_stages: int) -> float | None:
    feasible = (one for one in all_contiguous(problem, num_stages) if fits(problem, one))
    return min((evaluate(problem, one).bottleneck_seconds for one in feasible), default=None)


@settings(max_examples=150, deadline=None)
@given(problem=problems(max_nodes=7, max_devices=3), num_stages=st.integers(0, 3))
def test_is_the_best_of_all(problem: PartitionProblem, num_stages: int) -> None:
    expected = least(problem, num_stages)
    if expected is None:
        with pytest.raises((Infeasible, OptionsError)):
            balanced(problem, num_stages)
        return
    found = balanced(problem, num_stages)
    evaluation = evaluate(problem, found)
    assert fits(problem, found)
    assert not num_stages or found.num_stages == num_stages
    assert evaluation.bottleneck_seconds == pytest.approx(expected, abs=1e-9)
    assert found.lower_bound_seconds == pytest.approx(expected, abs=1e-9)
    assert found.lower_bound_seconds <= evaluation.bottleneck_seconds


@settings(max_examples=30, deadline=None)
@given(problem=problems(max_nodes=6, max_devices=4))
def test_is_the_best_of_all_on_four_devices(problem: PartitionProblem) -> None:
    expected = least(problem, 0)
    if expected is not None:
        assert evaluate(problem, balanced(problem)).bottleneck_seconds == pytest.approx(expected, abs=1e-9)


def test_faster_device_takes_more() -> None:
    found = balanced(chain([[2.0] * 6, [1.0] * 6]))
    assert found.stage_of_node.count(found.device_of_stage.index(1)) == 4
    assert found.lower_bound_seconds == 4.0


def test_dear_transfers_leave_devices_idle() -> None:
    assert balanced(chain([[1.0] * 4] * 4, latency=100.0)).num_stages == 1


def test_useless_devices_are_left_out() -> None:
    found = balanced(chain([[1.0, 8.0, 1.0]] * 3))
    assert found.num_stages == 1 or evaluate(chain([[1.0, 8.0, 1.0]] * 3), found).bottleneck_seconds == 8.0
    assert balanced(chain([[0.0, 8.0, 0.0]] * 3)).num_stages == 1


def test_a_group_is_not_parted() -> None:
    found = balanced(chain([[1.0] * 6] * 3, groups=[(1, 4)]))
    assert len({found.stage_of_node[node] for node in range(1, 5)}) == 1


def test_memory_moves_the_cut() -> None:
    states = [(10, (node,)) for node in range(6)]
    problem = chain([[1.0] * 6] * 2, states=states, memory_bytes=[60, 25], value_bytes=[0] * 7)
    found = balanced(problem)
    assert found.stage_of_node.count(found.device_of_stage.index(1)) == 2


def test_many_unequal_devices_are_planned_in_orders() -> None:
    speeds = [[1.0 + 0.1 * device] * 40 for device in range(14)]
    problem = chain(speeds, memory_bytes=[1000 + device for device in range(14)])
    found = balanced(problem)
    value = evaluate(problem, found).bottleneck_seconds
    assert value < 6.0
    assert found.lower_bound_seconds <= value
    assert found == balanced(problem)


def test_long_program_is_exact_for_its_order() -> None:
    seconds = [1.0 + (7 * node % 5) for node in range(900)]
    problem = chain([seconds] * 4, latency=0.5)
    found = balanced(problem)
    assert evaluate(problem, found).bottleneck_seconds == pytest.approx(found.lower_bound_seconds)
    assert found.num_stages == 4


def test_more_stages_than_places_to_cut() -> None:
    with pytest.raises(OptionsError, match="can be cut into 1 to 2"):
        balanced(chain([[1.0] * 3] * 4, groups=[(0, 1)]), num_stages=3)


def test_more_stages_than_devices() -> None:
    with pytest.raises(Infeasible, match="add 1 devices"):
        balanced(chain([[1.0] * 5] * 2), num_stages=3)


def test_negative_number_of_stages() -> None:
    with pytest.raises(OptionsError):
        balanced(chain([[1.0] * 5] * 2), num_stages=-1)


def test_reasons_speak_of_each_stage() -> None:
    found = balanced(chain([[1.0] * 6] * 2, latency=0.25))
    assert len(found.reasons) == found.num_stages
    assert "node 2 ('node2')" in found.reasons[0]
    assert found.reasons[-1].startswith("the program ends")
