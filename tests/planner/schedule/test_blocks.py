"""Which messages stand before and after each pass, and who runs it."""

from __future__ import annotations

from dataclasses import replace

from planner.partition.objective import PipelineSchedule
from planner.schedule.actions import Action, Kind
from planner.schedule.blocks import Block, step_blocks, stream_blocks
from planner.schedule.inference import inference_schedule
from planner.schedule.timeline import Activity
from planner.schedule.training import reducing_stages, tie_devices, training_schedule
from tests.planner.schedule.steps import training_plan

SKIP = [(0, 1), (0, 2), (1, 2)]


def test_copies_of_a_stage_take_turns_in_a_stream() -> None:
    plan = training_plan(PipelineSchedule.GPIPE, devices=[[0], [1, 2], [0]], pairs=SKIP, microbatches=1)
    queues = stream_blocks(plan, inference_schedule(plan), 5)
    assert [(queue.device_id, [block.microbatch for block in queue.blocks]) for queue in queues] == [
        ("d0", [0, 1, 2, 3, 4]),
        ("d1", [0, 2, 4]),
        ("d2", [1, 3]),
        ("d0", [0, 1, 2, 3, 4]),
    ]
    assert queues[0].blocks[1] == Block(Activity.FORWARD, 0, 1, (), (0, 1))
    assert queues[2].blocks[0] == Block(Activity.FORWARD, 1, 1, (0,), (2,))
    assert queues[3].blocks[4] == Block(Activity.FORWARD, 2, 4, (1, 2), (), after=0)


def test_passes_of_a_step_have_the_messages_around_them() -> None:
    plan = training_plan(PipelineSchedule.ZERO_BUBBLE, devices=[[0], [1], [2]], pairs=SKIP, microbatches=1, frozen=[0])
    queues = step_blocks(training_schedule(plan))
    assert [queue.device_id for queue in queues] == ["d0", "d1", "d2"]
    # Nothing comes back to the first stage, which is frozen.
    assert queues[0].blocks == (
        Block(Activity.FORWARD, 0, 0, (), (0, 1)),
        Block(Activity.BACKWARD_INPUT, 0, 0, (), ()),
        Block(Activity.BACKWARD_WEIGHT, 0, 0, (), ()),
    )
    assert queues[1].blocks == (
        Block(Activity.FORWARD, 1, 0, (0,), (2,)),
        Block(Activity.BACKWARD_INPUT, 1, 0, (2,), ()),
        Block(Activity.BACKWARD_WEIGHT, 1, 0, (), ()),
    )
    assert queues[2].blocks == (
        Block(Activity.FORWARD, 2, 0, (1, 2), ()),
        Block(Activity.BACKWARD_INPUT, 2, 0, (), (2,)),
        Block(Activity.BACKWARD_WEIGHT, 2, 0, (), ()),
    )


def test_actions_of_a_whole_step_in_order() -> None:
    plan = training_plan(
        PipelineSchedule.GPIPE, devices=[[0, 1], [2], [0]], pairs=[(0, 1), (1, 2)], microbatches=1, ties=[[0, 1]]
    )
    first, copy, second = training_schedule(plan).devices
    assert first.actions == (
        Action(Kind.TAKE_INPUT, 0, 0),
        Action(Kind.FORWARD, 0, 0),
        Action(Kind.SEND, 0, 0),
        Action(Kind.RECEIVE, 1, 0),
        Action(Kind.FORWARD, 2, 0),
        Action(Kind.GIVE_OUTPUT, 2, 0),
        Action(Kind.BACKWARD, 2, 0),
        Action(Kind.SEND_GRADIENT, 1, 0),
        Action(Kind.RECEIVE_GRADIENT, 0, 0),
        Action(Kind.BACKWARD, 0, 0),
        Action(Kind.REDUCE_GRADIENTS, 0),
        Action(Kind.REDUCE_TIED, 0),
        Action(Kind.AGREE, 0),
        Action(Kind.OPTIMIZER_STEP, 0),
        Action(Kind.OPTIMIZER_STEP, 2),
    )
    # A copy without a microbatch sums and steps all the same.
    last = [Kind.REDUCE_TIED, Kind.AGREE, Kind.OPTIMIZER_STEP]
    assert [action.kind for action in copy.actions] == [Kind.REDUCE_GRADIENTS, *last]
    assert [action.kind for action in second.actions[-4:]] == [Kind.SEND_GRADIENT, *last]


def test_only_trained_states_on_several_devices_are_summed() -> None:
    plan = training_plan(
        PipelineSchedule.GPIPE,
        devices=[[0, 1], [2, 3], [4], [4]],
        pairs=[(0, 1), (1, 2), (2, 3)],
        microbatches=2,
        ties=[[0, 2], [2, 3], [1, 2]],
        frozen=[1],
    )
    assert reducing_stages(plan) == {0: 4}
    assert tie_devices(plan, 0) == ("d0", "d1", "d4")
    assert tie_devices(plan, 1) == ()
    assert tie_devices(plan, 2) == ("d2", "d3", "d4")
    untrained = tuple(replace(group, requires_grad=False) for group in plan.tie_groups)
    empty = tuple(replace(group, size_bytes=0) for group in plan.tie_groups)
    assert tie_devices(replace(plan, tie_groups=untrained), 0) == ()
    assert tie_devices(replace(plan, tie_groups=empty), 0) == ()
