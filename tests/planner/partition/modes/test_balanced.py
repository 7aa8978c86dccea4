"""Mode "balanced" against every contiguous cut and every choice of devices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible, OptionsError
from planner.partition.evaluate import evaluate
from planner.partition.modes.balanced import balanced
from planner.partition.objective import Objective, Training
from planner.partition.ordered import host_windows, least_bottleneck, many_devices, program_pass
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous, fits, least
from tests.planner.partition.problems import INFERENCE, chain, problems, trainings
from tests.planner.partition.problems import problem as problem_of
from tests.random_examples import random_examples


def check_against_all(problem: PartitionProblem, num_stages: int) -> None:
    """The bottleneck is the optimum and so is the bound."""
    expected = least(problem, Objective.THROUGHPUT, all_contiguous(problem, num_stages))
    if np.isinf(expected):
        with pytest.raises((Infeasible, OptionsError)):
            balanced(problem, num_stages)
        return
    assignment = balanced(problem, num_stages)
    evaluation = evaluate(problem, assignment)
    assert fits(problem, assignment)
    assert not num_stages or assignment.num_stages == num_stages
    assert evaluation.bottleneck_seconds == pytest.approx(expected, abs=1e-9)
    assert assignment.lower_bound_seconds == pytest.approx(expected, abs=1e-9)
    assert assignment.lower_bound_seconds <= evaluation.bottleneck_seconds


@pytest.mark.slow
@random_examples(40)
@pytest.mark.parametrize("relay", [False, True])
@given(data=st.data(), num_stages=st.integers(0, 3))
def test_is_the_best_of_all_over_equal_links(relay: bool, data: st.DataObject, num_stages: int) -> None:
    problem = data.draw(problems(max_nodes=7, max_devices=3, equal_links=True, relay=relay))
    check_against_all(problem, num_stages)


@pytest.mark.slow
@random_examples(30)
@given(problem=problems(max_nodes=6, max_devices=4, equal_links=True))
def test_is_the_best_of_all_on_four_devices(problem: PartitionProblem) -> None:
    check_against_all(problem, 0)


@pytest.mark.slow
@random_examples(30)
@given(problem=problems(max_nodes=6, max_devices=3, equal_links=False), num_stages=st.integers(0, 3))
def test_small_programs_are_exact_over_unequal_links(problem: PartitionProblem, num_stages: int) -> None:
    check_against_all(problem, num_stages)


@pytest.mark.slow
@random_examples(16)
@pytest.mark.parametrize("equal_links", [False, True])
@given(data=st.data(), num_stages=st.integers(0, 3))
def test_is_the_best_of_all_in_training(equal_links: bool, data: st.DataObject, num_stages: int) -> None:
    check_against_all(data.draw(problems(max_nodes=6, equal_links=equal_links, training=trainings)), num_stages)


@pytest.mark.slow
@random_examples(25)
@pytest.mark.parametrize("equal_links", [False, True])
@given(data=st.data(), num_stages=st.integers(0, 3))
def test_is_the_best_of_all_where_nodes_may_run(equal_links: bool, data: st.DataObject, num_stages: int) -> None:
    problem = data.draw(problems(max_nodes=6, equal_links=equal_links, training=INFERENCE | trainings, barred=True))
    check_against_all(problem, num_stages)


@pytest.mark.slow
@random_examples(25)
@given(problem=problems(max_nodes=6, max_devices=3, equal_links=False, relay=False))
def test_bounds_hold_where_the_search_gives_up(problem: PartitionProblem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(least_bottleneck, "MAX_TRIED_READS", 0)
        check_bounds(problem)


@random_examples(30)
@given(problem=problems(max_nodes=6, max_devices=4), tiered_words=st.sampled_from([8, 4, 2]))
def test_bounds_hold_where_devices_are_too_many_to_tell_apart(problem: PartitionProblem, tiered_words: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_pass, "MAX_STATES", 1)
        patch.setattr(many_devices, "MAX_WORDS", tiered_words)
        patch.setattr(least_bottleneck, "MAX_TIERED_WORDS", tiered_words)
        check_bounds(problem)


def test_what_fits_is_planned_where_the_search_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_pass, "MAX_STATES", 1)
    monkeypatch.setattr(many_devices, "MAX_WORDS", 2)
    monkeypatch.setattr(least_bottleneck, "MAX_TIERED_WORDS", 2)
    monkeypatch.setattr(host_windows, "_MAX_STATES", 0)
    problem = problem_of(compute_seconds=[[1.0]] * 4, reads=[[0]], value_bytes=[0, 0])
    assignment = balanced(problem)
    assert assignment.num_stages == 1
    assert assignment.lower_bound_seconds == pytest.approx(0.25)


def test_a_coarse_layout_is_over_few_of_many_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no more positions than these it is the least."""
    problem = chain([[1.0] * 12] * 2, value_bytes=[0] * 13)

    def seconds() -> float:
        layout = least_bottleneck.least_bottleneck(problem, prove=False, coarse=True)
        assert layout is not None
        assert layout.lower_bound_seconds <= 6.0 < layout.bottleneck_seconds + 1e-9
        return layout.bottleneck_seconds

    assert seconds() == pytest.approx(6.0, rel=1e-3)
    monkeypatch.setattr(least_bottleneck, "COARSE_POSITIONS", 4)
    assert seconds() == pytest.approx(8.0, rel=1e-3)


def test_what_nodes_keep_within_is_among_all_that_a_program_needs() -> None:
    """A plan that holds no more than that is the same with more memory: here all else is of 0 bytes."""
    made = problem_of(
        compute_seconds=[[0.0, 0.0, 1.0]] * 2, reads=[[0], [1], [2]], value_bytes=[0] * 4, training=Training()
    )
    problem = replace(made, node_has_gradient=np.ones(3, dtype=np.bool_), node_kept_bytes=np.array([1, 0, 0]))
    check_against_all(problem, 0)


def check_bounds(problem: PartitionProblem) -> None:
    """A plan that is found fits, and the optimum is between the bound and its bottleneck."""
    expected = least(problem, Objective.THROUGHPUT, all_contiguous(problem))
    try:
        assignment = balanced(problem)
    except Infeasible:
        return
    assert fits(problem, assignment)
    assert assignment.lower_bound_seconds <= expected + 1e-9
    assert evaluate(problem, assignment).bottleneck_seconds >= expected - 1e-9


def test_tiers_prove_what_orders_of_many_unequal_devices_cannot() -> None:
    """Seven devices hold three nodes, thirteen of as many sizes hold two; 47 nodes fill them all."""
    states = [(100, (node,)) for node in range(47)]
    memory = [310] * 7 + [210 + 3 * device for device in range(13)]
    problem = chain([[1.0] * 47] * 20, states=states, memory_bytes=memory, value_bytes=[0] * 48)
    assert program_pass.ordered_pass(problem).complete is False
    assignment = balanced(problem)
    assert evaluate(problem, assignment).bottleneck_seconds == 3.0
    assert assignment.lower_bound_seconds == pytest.approx(3.0)


def test_a_tensor_that_many_stages_read_is_sent_once() -> None:
    """Each node reads the first one's tensor: cutting everywhere costs its sender no more than cutting once."""
    spread = problem_of(
        compute_seconds=[[4.0] * 5] * 5,
        reads=[[0], [1], [1, 2], [1, 3], [1, 4]],
        value_bytes=[0, 8, 0, 0, 0, 0],
        per_byte=0.125,
    )
    assignment = balanced(spread)
    assert assignment.num_stages == 5
    assert evaluate(spread, assignment).bottleneck_seconds == 5.0 == assignment.lower_bound_seconds


@pytest.mark.parametrize(("num_nodes", "least", "step"), [(48, 4_000, 7), (800, 12_000, 70)])
def test_memory_that_cannot_bind_tells_no_devices_apart(num_nodes: int, least: int, step: int) -> None:
    """Of the longer program, whose positions are too many for memory in tiers, no device holds a quarter."""
    seconds = [1.0 + (5 * node % 7) for node in range(num_nodes)]
    states = [(100, (node,)) for node in range(num_nodes)]
    memory = [least + step * device for device in range(16)]
    problem = chain([seconds] * 16, latency=0.25, states=states, memory_bytes=memory)
    equal = chain([seconds] * 16, latency=0.25, states=states)
    assert program_pass.ordered_pass(problem).complete is False
    assignment, value = balanced(problem), evaluate(equal, balanced(equal)).bottleneck_seconds
    assert evaluate(problem, assignment).bottleneck_seconds == value > sum(seconds) / 16
    assert assignment.lower_bound_seconds == pytest.approx(value)


def test_faster_device_takes_more() -> None:
    assignment = balanced(chain([[2.0] * 6, [1.0] * 6]))
    assert assignment.stage_of_node.count(assignment.device_of_stage.index(1)) == 4
    assert assignment.lower_bound_seconds == 4.0


def test_dear_transfers_leave_devices_idle() -> None:
    assert balanced(chain([[1.0] * 4] * 4, latency=100.0)).num_stages == 1


def test_useless_devices_are_left_out() -> None:
    assignment = balanced(chain([[1.0, 8.0, 1.0]] * 3))
    assert assignment.num_stages == 1 or evaluate(chain([[1.0, 8.0, 1.0]] * 3), assignment).bottleneck_seconds == 8.0
    assert balanced(chain([[0.0, 8.0, 0.0]] * 3)).num_stages == 1


def test_a_group_is_not_parted() -> None:
    assignment = balanced(chain([[1.0] * 6] * 3, groups=[(1, 4)]))
    assert len({assignment.stage_of_node[node] for node in range(1, 5)}) == 1


def test_memory_moves_the_cut() -> None:
    states = [(10, (node,)) for node in range(6)]
    problem = chain([[1.0] * 6] * 2, states=states, memory_bytes=[60, 25], value_bytes=[0] * 7)
    assignment = balanced(problem)
    assert assignment.stage_of_node.count(assignment.device_of_stage.index(1)) == 2


def test_many_unequal_devices_are_planned_in_orders() -> None:
    speeds = [[1.0 + 0.1 * device] * 40 for device in range(14)]
    problem = chain(speeds, memory_bytes=[1000 + device for device in range(14)])
    assignment = balanced(problem)
    value = evaluate(problem, assignment).bottleneck_seconds
    assert value < 6.0
    assert assignment.lower_bound_seconds <= value
    assert assignment == balanced(problem)


def test_long_program_is_exact_for_its_order() -> None:
    seconds = [1.0 + (7 * node % 5) for node in range(900)]
    problem = chain([seconds] * 4, latency=0.5)
    assignment = balanced(problem)
    assert evaluate(problem, assignment).bottleneck_seconds == pytest.approx(assignment.lower_bound_seconds)
    assert assignment.num_stages == 4


def test_more_stages_than_places_to_cut() -> None:
    with pytest.raises(OptionsError, match="can be cut into 1 to 2"):
        balanced(chain([[1.0] * 3] * 4, groups=[(0, 1)]), num_stages=3)


def test_more_stages_than_devices() -> None:
    with pytest.raises(Infeasible, match="add 1 more"):
        balanced(chain([[1.0] * 5] * 2), num_stages=3)


def test_negative_number_of_stages() -> None:
    with pytest.raises(OptionsError):
        balanced(chain([[1.0] * 5] * 2), num_stages=-1)


def test_reasons_speak_of_each_stage() -> None:
    assignment = balanced(chain([[1.0] * 6] * 2, latency=0.25))
    assert len(assignment.reasons) == assignment.num_stages
    assert "node 2 ('node2')" in assignment.reasons[0]
    assert assignment.reasons[-1].startswith("the program ends")
