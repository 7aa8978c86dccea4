"""Orders that would end with buffers without number, and wait for ever with two."""

from __future__ import annotations

from planner.partition.training.orders import buffers
from planner.partition.training.orders.best_order import best_order
from planner.partition.training.orders.room import Room
from planner.partition.training.pipeline_order import Pass, Step
from planner.partition.training.step_graph import StageSeconds, TrainingStep
from planner.partition.training.step_time import step_seconds


def there_and_back(microbatches: int) -> TrainingStep:
    """Four stages on two devices in turn; the first stage is quick, and the third waits for the second."""
    seconds = [0.1, 1.0, 1.0, 1.0]
    stages = tuple(
        StageSeconds(forward=own, backward=own, received=0, sent=0, gradients_received=0, gradients_sent=0)
        for own in seconds
    )
    edges = ((0, 1), (1, 2), (2, 3))
    return TrainingStep(
        copies=((0,), (1,), (0,), (1,)), stages=stages, edges=edges, gradient_edges=edges, microbatches=microbatches
    )


def passes(text: str) -> tuple[Step, ...]:
    """F12 is the forward pass of stage 1 for microbatch 2."""
    kinds = {"F": Pass.FORWARD, "B": Pass.BACKWARD_INPUT, "W": Pass.BACKWARD_WEIGHT}
    return tuple(Step(kinds[one[0]], int(one[1]), int(one[2])) for one in text.split())


def test_a_sender_waits_for_a_buffer_and_its_receiver_for_it() -> None:
    step = there_and_back(4)
    back = "B30 B10 B31 B11 B32 B12 B33 B13", "B20 B00 B21 B01 B22 B02 B23 B03"
    ahead = {
        0: passes(f"F00 F01 F02 F03 F20 F21 F22 F23 {back[1]}"),
        1: passes(f"F10 F30 F11 F31 F12 F32 F13 F33 {back[0]}"),
    }
    assert not buffers.ends(step, ahead, 2)
    assert buffers.ends(step, ahead, 3)


def test_what_a_device_hands_itself_needs_no_buffer() -> None:
    edges = ((0, 1),)
    step = TrainingStep(
        copies=((0,), (0,)), stages=there_and_back(1).stages[:2], edges=edges, gradient_edges=edges, microbatches=3
    )
    assert buffers.ends(step, {0: passes("F00 F01 F02 F10 F11 F12 B10 B11 B12 B00 B01 B02")}, 1)


def test_each_pair_of_copies_has_buffers_of_its_own() -> None:
    step = TrainingStep(
        copies=((0,), (1, 2)),
        stages=there_and_back(1).stages[:2],
        edges=((0, 1),),
        gradient_edges=(),
        microbatches=4,
    )
    orders = {0: passes("F00 F01 F02 F03"), 1: passes("F10 F12"), 2: passes("F11 F13")}
    assert buffers.ends(step, orders, 1)


def test_the_search_finds_an_order_that_ends_with_few_buffers() -> None:
    step = there_and_back(6)
    room = Room(saved_bytes=(1,) * 4, device_bytes={0: 100, 1: 100})
    best = best_order(step, room)
    assert buffers.ends(step, best.orders)
    assert best.seconds == step_seconds(step, best.orders) <= best.lower_bound_seconds * 1.05
