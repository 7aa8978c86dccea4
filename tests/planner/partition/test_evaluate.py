"""evaluate, on examples small enough to reckon by hand, and against a twin on random ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import Evaluation, evaluate
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import every_assignment
from tests.planner.partition.problems import chain, problem, problems
from tests.planner.partition.reckoning import Reckoner
from tests.random_examples import random_examples


def evaluated(case: PartitionProblem, boundaries: tuple[int, ...], devices: tuple[int, ...]) -> Evaluation:
    return evaluate(case, contiguous(case, boundaries, devices, [""] * len(devices)))


def skipping(*, relay: bool) -> PartitionProblem:
    """Three nodes; the last reads what the first made."""
    return problem(
        compute_seconds=[[1.0, 2.0, 4.0]] * 3,
        reads=[[0], [1], [1, 2]],
        value_bytes=[8, 16, 32, 64],
        returned=(3,),
        latency=0.5,
        per_byte=0.125,
        relay=relay,
        microbatches_in_flight=3,
    )


def test_direct_sends_are_paid_once_whatever_the_fan_out() -> None:
    evaluation = evaluated(skipping(relay=False), (0, 1, 2, 3), (0, 1, 2))
    assert [stage.communication_seconds for stage in evaluation.stages] == [2.5, 2.5 + 4.5, 0.5 + 2.0 + 4.0]
    assert evaluation.bottleneck_seconds == 4.0 + 6.5
    # The last stage receives one tensor after the other.
    assert evaluation.latency_seconds == 1.0 + 2.5 + 2.0 + 6.5 + 4.0


def test_relayed_sends_pass_through_every_stage() -> None:
    evaluation = evaluated(skipping(relay=True), (0, 1, 2, 3), (0, 1, 2))
    assert [stage.communication_seconds for stage in evaluation.stages] == [2.5, 2.5 + 6.5, 6.5]


def test_the_slowest_copy_and_the_largest_latency_count() -> None:
    latency = [[0.0, 0.5, 0.25], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    per_byte = [[0.0, 0.125, 0.5], [0.0, 0.0, 0.25], [0.0, 0.0, 0.0]]
    case = replace(
        skipping(relay=False), link_latency_seconds=np.array(latency), link_seconds_per_byte=np.array(per_byte)
    )
    evaluation = evaluated(case, (0, 1, 2, 3), (0, 1, 2))
    out, first_in, second_out = 0.5 + 16 * 0.5, 0.5 + 16 * 0.125, 2.0 + 32 * 0.25
    last_in = 2.0 + 16 * 0.5 + 32 * 0.25
    assert [stage.communication_seconds for stage in evaluation.stages] == [out, first_in + second_out, last_in]


def test_a_copy_for_the_same_device_is_free() -> None:
    evaluation = evaluated(skipping(relay=False), (0, 1, 2, 3), (0, 1, 0))
    assert [stage.communication_seconds for stage in evaluation.stages] == [2.5, 2.5 + 4.5, 4.5]


def test_an_empty_tensor_pays_its_latency() -> None:
    case = chain([[1.0] * 2] * 2, value_bytes=[0] * 3, latency=0.5)
    assert [stage.communication_seconds for stage in evaluated(case, (0, 1, 2), (0, 1)).stages] == [0.5, 0.5]


def test_stages_on_one_device_pay_no_transfer_and_add_up() -> None:
    evaluation = evaluated(skipping(relay=False), (0, 1, 3), (1, 1))
    assert evaluation.device_load_seconds == (0.0, 7.0, 0.0)
    assert evaluation.latency_seconds == 7.0
    assert evaluation.device_peak_bytes[1] == sum(stage.peak_bytes for stage in evaluation.stages)


def two_second_branches(count: int) -> PartitionProblem:
    """Branches of two seconds from one input, whose results the caller gets."""
    return problem(
        compute_seconds=[[2.0] * count] * 2,
        reads=[[0]] * count,
        value_bytes=[1] * (count + 1),
        returned=tuple(range(1, count + 1)),
        per_byte=0.25,
    )


def test_a_device_runs_one_stage_at_a_time() -> None:
    evaluation = evaluate(
        two_second_branches(3), Assignment(stage_of_node=(0, 1, 2), device_of_stage=(0, 1, 0), reasons=())
    )
    # The second gets the input ahead of the first's pass. The first has sent it at 2.25, and runs the third then, which
    # is given the second's result.
    assert evaluation.latency_seconds == 2.0 + 0.25 + 0.25 + 2.0


def two_towers(reads: list[list[int]], *, relay: bool = False) -> Evaluation:
    """Four stages of one node each, on devices of their own; two inputs, the other values in the order of the nodes."""
    case = problem(
        compute_seconds=[[8.0, 2.0, 1.0, 1.0]] * 4,
        reads=reads,
        value_bytes=[0] * 6,
        num_inputs=2,
        latency=0.5,
        relay=relay,
    )
    return evaluated(case, (0, 1, 2, 3, 4), (0, 1, 2, 3))


def test_a_stage_that_is_given_inputs_alone_runs_beside_the_first() -> None:
    assert two_towers([[0], [1], [3], [2, 4]]).latency_seconds == 8.0 + 0.5 + 1.0
    # What waits for the second does not wait for the first.
    assert two_towers([[0], [1], [1, 3], [4]]).latency_seconds == 8.0
    # A stage that reads nothing hears of the batch as soon as the one before it.
    assert two_towers([[0], [1], [], [3]]).latency_seconds == 8.0
    assert two_towers([[0], [2], [1, 3], []]).latency_seconds == 8.0 + 2.5 + 1.5
    assert two_towers([[0], [1], [3], [4]], relay=True).latency_seconds == 8.0


def test_inputs_wait_for_what_goes_with_them() -> None:
    assert two_towers([[0], [1, 2], [3], [4]]).latency_seconds == 8.0 + 2.5 + 1.5 + 1.5
    assert two_towers([[0], [1], [3], [2, 4]], relay=True).latency_seconds == 8.0 + 2.5 + 1.5 + 1.5


def test_what_goes_ahead_waits_until_the_inputs_are_taken() -> None:
    case = problem(compute_seconds=[[8.0, 7.0]] * 2, reads=[[0], [0]], value_bytes=[0] * 3)
    delivered = replace(case, delivery_seconds=np.array([[3.0, 0.0]] * 2))
    assert evaluated(delivered, (0, 1, 2), (0, 1)).latency_seconds == 3.0 + 7.0


def test_a_device_sends_before_its_next_stage_begins() -> None:
    case = problem(
        compute_seconds=[[1.0, 1.0, 4.0]] * 2,
        reads=[[0], [1], [0]],
        value_bytes=[0, 8, 0, 0],
        per_byte=0.25,
    )
    stages = Assignment(stage_of_node=(0, 1, 2), device_of_stage=(1, 0, 1), reasons=())
    assert evaluate(case, stages).latency_seconds == 1.0 + 2.0 + 4.0


def test_a_stage_that_reads_nothing_begins_when_the_one_before_hears_of_the_batch() -> None:
    case = problem(
        compute_seconds=[[1.0, 2.0, 4.0, 8.0]] * 4,
        reads=[[], [], [1], []],
        value_bytes=[0] * 4,
        num_inputs=0,
        latency=0.5,
    )
    assert evaluated(case, (0, 1, 2, 4), (0, 1, 2)).latency_seconds == 2.0 + 0.5 + 4.0 + 8.0
    # The third hears of it from the second, and tells the fourth at once.
    assert evaluated(case, (0, 1, 2, 3, 4), (0, 1, 2, 3)).latency_seconds == 2.0 + 8.0


def test_buffers_hold_what_enters_and_leaves_in_every_microbatch() -> None:
    evaluation = evaluated(skipping(relay=False), (0, 1, 2, 3), (0, 1, 2))
    assert [stage.buffer_bytes for stage in evaluation.stages] == [3 * (8 + 16), 3 * (16 + 32), 3 * (16 + 32 + 64)]


def test_activations_peak_where_most_is_live() -> None:
    whole = evaluated(skipping(relay=False), (0, 3), (0,)).stages[0]
    assert whole.activation_bytes == 16 + 32 + 64
    middle = evaluated(skipping(relay=False), (0, 1, 2, 3), (0, 1, 2)).stages[1]
    assert middle.activation_bytes == 16 + 32


def test_a_view_costs_nothing_and_keeps_its_source() -> None:
    case = problem(
        compute_seconds=[[1.0] * 4],
        reads=[[0], [1], [0], [2, 3]],
        value_bytes=[1, 10, 10, 100, 1000],
        views={2: 1},
    )
    assert evaluated(case, (0, 4), (0,)).stages[0].activation_bytes == 10 + 100 + 1000


def test_a_state_counts_once_per_stage_that_uses_it() -> None:
    case = chain([[1.0] * 4] * 2, states=[(70, (0, 1, 3)), (5, (2,))])
    evaluation = evaluated(case, (0, 2, 4), (0, 1))
    assert [stage.state_bytes for stage in evaluation.stages] == [70, 75]


def test_flops_and_seconds_sum() -> None:
    evaluation = evaluated(chain([[1.0, 2.0, 3.0]]), (0, 2, 3), (0, 0))
    assert [stage.flops for stage in evaluation.stages] == [2.0, 1.0]
    assert [stage.compute_seconds for stage in evaluation.stages] == pytest.approx([3.0, 3.0])


@pytest.mark.slow
@random_examples(120)
@drawn(problem=problems(max_nodes=5, max_devices=3, barred=True), free=st.booleans(), index=st.integers(0, 1 << 16))
def test_agrees_with_a_twin(problem: PartitionProblem, free: bool, index: int) -> None:
    candidates = list(every_assignment(problem, free=free))
    assignment = candidates[index % len(candidates)]
    evaluation, reckoner = evaluate(problem, assignment), Reckoner(problem)
    expected = reckoner.reckon(assignment)
    assert list(evaluation.device_load_seconds) == pytest.approx(expected.loads)
    assert list(evaluation.device_peak_bytes) == expected.peaks
    assert evaluation.latency_seconds == pytest.approx(expected.latency_seconds)
    assert evaluation.memory_share == pytest.approx(reckoner.value(expected, Objective.MEMORY))
    assert evaluation.bottleneck_seconds == max(evaluation.device_load_seconds)
