"""Training: what stages keep, and what a step takes, against small cases reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import Evaluation, evaluate, objective_value
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.problem import PartitionProblem
from planner.partition.training.memory import counted_microbatches, kept_microbatches
from planner.partition.training.named_orders import device_orders
from planner.partition.training.pipeline_order import Pass
from tests.planner.partition.problems import chain


def trained(
    schedule: PipelineSchedule = PipelineSchedule.GPIPE, microbatches: int = 4, **more: object
) -> PartitionProblem:
    """Two nodes of 1 s and 2 s on each of three devices; values of 10, 20 and 40 bytes; states of 5 and 7."""
    arguments = {"value_bytes": [10, 20, 40], "states": [(5, (0,)), (7, (1,))], "per_byte": 0.125, **more}
    return chain([[1.0, 2.0]] * 3, training=Training(schedule=schedule, microbatches=microbatches), **arguments)


def halves(problem: PartitionProblem, replicas: tuple[tuple[int, ...], ...] = ()) -> Evaluation:
    return evaluate(problem, replace(contiguous(problem, (0, 1, 2), (0, 1), ["", ""]), replicas=replicas))


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_what_is_kept_is_what_the_order_keeps(schedule: PipelineSchedule, microbatches: int, stages: int) -> None:
    training = Training(schedule=schedule, microbatches=microbatches)
    orders = device_orders(schedule, microbatches, [[stage] for stage in range(stages)])
    counted = counted_microbatches(orders, stages)
    assert counted == [kept_microbatches(training, stages, stage) for stage in range(stages)]


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.parametrize("where", [[[0], [1], [2]], [[0], [1], [0], [1]], [[0, 1], [2]], [[0], [0], [1, 2]]], ids=str)
def test_every_microbatch_passes_every_stage_once(schedule: PipelineSchedule, where: list[list[int]]) -> None:
    orders = device_orders(schedule, 5, where)
    done = [(step.stage, step.microbatch) for order in orders.values() for step in order if step.kind is Pass.FORWARD]
    assert sorted(done) == [(stage, index) for stage in range(len(where)) for index in range(5)]
    weights = {Pass.BACKWARD, Pass.BACKWARD_WEIGHT}
    back = [(step.stage, step.microbatch) for order in orders.values() for step in order if step.kind in weights]
    assert sorted(back) == sorted(done)


def test_zero_bubble_puts_weights_off_by_the_stage() -> None:
    order = device_orders(PipelineSchedule.ZERO_BUBBLE, 4, [[0], [1]])[1]
    short = {Pass.FORWARD: "F", Pass.BACKWARD_INPUT: "B", Pass.BACKWARD_WEIGHT: "W"}
    assert " ".join(f"{short[step.kind]}{step.microbatch}" for step in order) == "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"


def test_a_stage_holds_gradients_optimizer_state_and_what_it_saved() -> None:
    first, second = halves(trained()).stages
    assert (first.gradient_bytes, first.optimizer_bytes) == (5, 5)
    assert (second.gradient_bytes, second.optimizer_bytes) == (7, 7)
    # The value that enters and the one that is made, in each of four microbatches.
    assert (first.saved_bytes, second.saved_bytes) == (4 * (10 + 20), 4 * (20 + 40))
    assert first.peak_bytes == 5 + 5 + 5 + 4 * 30 + first.activation_bytes + first.buffer_bytes


def test_later_stages_keep_fewer_microbatches() -> None:
    first, second = halves(trained(PipelineSchedule.ONE_F_ONE_B)).stages
    assert (first.saved_bytes, second.saved_bytes) == (2 * 30, 60)


def test_a_frozen_start_has_no_backward_pass_and_gets_no_gradient() -> None:
    first, second = halves(trained(frozen=(0,))).stages
    assert (first.backward_seconds, second.backward_seconds) == (0.0, 4.0)
    assert (first.communication_seconds, second.communication_seconds) == (2.5, 2.5)
    assert first.saved_bytes == 4 * 20


def test_a_measured_backward_pass_counts_as_measured_and_others_by_the_ratio() -> None:
    """Nodes of 1 and 2 s; the second one's backward pass takes 1.5 times its forward pass on the second device."""
    measured = np.array([[np.nan, np.nan], [3.0, 1.5], [np.nan, np.nan]])
    first, second = halves(replace(trained(), node_backward_ratio=measured)).stages
    assert (first.backward_seconds, second.backward_seconds) == (2.0, 3.0)


def test_a_tied_state_is_summed_once_over_all_devices_and_not_with_its_stage() -> None:
    """States of 5 and 7 bytes, the second of both stages, the first of which has two copies; 8 bytes a second."""
    tied = trained(states=[(5, (0,)), (7, (0, 1))])
    alone = trained(states=[(5, (0,)), (7, (1,))])
    seconds = {}
    for name, evaluation in (("tied", tied), ("alone", alone)):
        seconds[name] = halves(evaluation, ((2,), ())).step_seconds
    assert seconds["tied"] is not None
    assert seconds["alone"] is not None
    # There and back: 5 bytes between two copies; then 7 bytes between three devices.
    assert seconds["tied"] - seconds["alone"] == pytest.approx(2 * 2 * 7 / 8)


def test_weights_take_of_a_backward_pass_what_was_measured_and_else_half() -> None:
    split = replace(trained(PipelineSchedule.ZERO_BUBBLE), node_has_gradient=np.array([True, True]))
    assert [stage.weight_share for stage in halves(split).stages] == [1.0, 0.5]
    measured = np.array([[0.5, 0.5], [0.5, 0.125], [0.5, 0.5]])
    first, second = halves(replace(split, node_weight_share=measured)).stages
    # Nothing goes back from the first stage: all that it does is for its weights.
    assert (first.weight_share, second.weight_share) == (1.0, 0.125)
    assert second.backward_seconds == 4.0
    both = evaluate(split, contiguous(split, (0, 2), (0,), [""]))
    assert both.stages[0].weight_share == 1.0


def test_only_stages_that_give_gradients_back_pay_for_a_pass_in_two() -> None:
    """Nodes of 1 and 2 s, whose backward passes take 3 and 2 times as long, and 4 times in two."""
    measured = replace(
        trained(PipelineSchedule.ZERO_BUBBLE),
        node_backward_ratio=np.broadcast_to([3.0, 2.0], (3, 2)),
        node_split_ratio=np.full((3, 2), 4.0),
        node_weight_share=np.full((3, 2), 0.25),
    )
    first, second = halves(measured).stages
    assert (first.backward_seconds, first.weight_share) == (3.0, 1.0)
    assert (second.backward_seconds, second.weight_share) == (8.0, 0.25)
    # Bounds and searches count what any stage that holds a node takes at least.
    assert measured.work_seconds[0].tolist() == [1.0 + 3.0, 2.0 + 4.0]
    shorter = replace(measured, node_split_ratio=np.full((3, 2), 2.5))
    assert shorter.work_seconds[0].tolist() == [1.0 + 2.5, 2.0 + 4.0]


def test_a_step_fills_its_bubble_with_what_weights_take() -> None:
    """The last stage gives its gradient back after 2 + (1 - share) x 4 seconds; the first then has 2 s of weights."""
    split = trained(PipelineSchedule.ZERO_BUBBLE, microbatches=1, per_byte=0.0)
    for share in (0.0, 0.25, 1.0):
        evaluation = halves(replace(split, node_weight_share=np.full((3, 2), share)))
        behind = 1 + 2 + (1 - share) * 4
        assert evaluation.step_seconds == max(behind + 2, 1 + 2 + 4)


def test_the_load_counts_both_ways() -> None:
    evaluation = halves(trained())
    assert [stage.communication_seconds for stage in evaluation.stages] == [5.0, 5.0]
    assert evaluation.device_load_seconds == (3.0 + 5.0, 6.0 + 5.0, 0.0)
    assert evaluation.bottleneck_seconds == 11.0
    assert evaluation.latency_seconds == 1.0 + 2.5 + 2.0


def test_a_step_of_uneven_stages() -> None:
    evaluation = halves(trained(microbatches=2, per_byte=0.0))
    # The second stage is never idle after its first second: 2 x (2 + 4); the first then has one backward pass left.
    assert evaluation.step_seconds == 1 + 2 * 6 + 2
    assert objective_value(evaluation, Objective.STEP_TIME) == evaluation.step_seconds


def test_messages_lengthen_the_step() -> None:
    evaluation = halves(trained(microbatches=1))
    assert evaluation.step_seconds == 1 + 2.5 + 2 + 4 + 2.5 + 2


def test_a_copy_takes_its_share_and_holds_all_states() -> None:
    inference = chain([[1.0, 2.0], [1.0, 2.0], [1.0, 6.0]], value_bytes=[10, 20, 40], states=[(5, (0,)), (7, (1,))])
    evaluation = halves(inference, ((), (2,)))
    assert evaluation.stages[1].compute_seconds == 6.0
    assert evaluation.device_load_seconds == (1.0, 3.0, 3.0)
    assert evaluation.device_peak_bytes[1] == evaluation.device_peak_bytes[2] == evaluation.stages[1].peak_bytes
    assert evaluation.latency_seconds == 7.0


def test_messages_to_copies_take_the_slowest_link() -> None:
    per_byte = [[0.0, 0.125, 0.5], [0.125, 0.0, 0.125], [0.25, 0.125, 0.0]]
    evaluation = halves(chain([[1.0, 2.0]] * 3, value_bytes=[10, 20, 40], per_byte=per_byte), ((), (2,)))
    assert [stage.communication_seconds for stage in evaluation.stages] == [10.0, 10.0]


def test_copies_keep_fewer_microbatches_and_sum_their_gradients() -> None:
    alone, shared = halves(trained()), halves(trained(), ((), (2,)))
    assert shared.stages[1].saved_bytes == alone.stages[1].saved_bytes // 2
    free = halves(trained(per_byte=0.0), ((), (2,)))
    # A ring of two sends the 7 bytes of gradient once in halves each way: over free links, nothing.
    assert free.step_seconds is not None
    assert shared.step_seconds is not None
    assert free.step_seconds < shared.step_seconds


def test_memory_share_is_of_the_fullest_device() -> None:
    problem = chain([[1.0, 2.0]] * 2, states=[(50, (0,)), (30, (1,))], memory_bytes=[1000, 100], value_bytes=[0] * 3)
    assert objective_value(halves(problem), Objective.MEMORY) == 0.3


def test_in_inference_there_is_no_step() -> None:
    evaluation = halves(chain([[1.0, 2.0]] * 2))
    assert evaluation.step_seconds is None
    assert objective_value(evaluation, Objective.LATENCY) == 3.0


def test_a_device_that_cannot_run_a_node_takes_for_ever() -> None:
    problem = chain([[1.0, np.inf], [1.0, 2.0]])
    whole = Assignment(stage_of_node=(0, 0), device_of_stage=(0,), reasons=("",))
    assert evaluate(problem, whole).bottleneck_seconds == np.inf
    assert evaluate(problem, replace(whole, device_of_stage=(1,))).bottleneck_seconds == 3.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
def test_a_device_that_cannot_run_a_stage_never_ends_its_step(schedule: PipelineSchedule) -> None:
    base = trained(schedule)
    seconds = base.compute_seconds.copy()
    seconds[1, 1] = np.inf
    problem = replace(base, compute_seconds=seconds, node_has_gradient=np.ones(2, dtype=np.bool_))
    assert halves(problem).step_seconds == np.inf
