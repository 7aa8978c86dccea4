"""A schedule's actions as blocks: one pass of one microbatch with the messages before and after it.

A block keeps its device from its first receive to its last send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.schedule import Schedule
from planner.schedule.timeline import Activity
from planner.schedule.training import TrainingSchedule

NO_STAGE = -1

_PASSES = {
    Kind.FORWARD: Activity.FORWARD,
    Kind.BACKWARD: Activity.BACKWARD,
    Kind.BACKWARD_INPUT: Activity.BACKWARD_INPUT,
    Kind.BACKWARD_WEIGHT: Activity.BACKWARD_WEIGHT,
}


@dataclass(frozen=True, slots=True)
class Block:
    """`receives` and `sends` are edges; those of a backward pass carry gradients. `ahead`: edges over which something
    goes ahead of the pass, when the first of `receives` has come or stage 0 has taken the inputs. `after` is the stage
    of the block that the device has to have run before for the same microbatch, or NO_STAGE."""

    activity: Activity
    stage: int
    microbatch: int
    receives: tuple[int, ...]
    sends: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    after: int = NO_STAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Blocks that a device runs in this order. Several queues of one device take turns as they are ready, but run each
    microbatch in the order of their stages."""

    device_id: str
    blocks: tuple[Block, ...]


def stream_blocks(plan: Plan, schedule: Schedule, microbatches: int) -> tuple[Queue, ...]:
    """Each lane, and each copy of its stage, repeats its actions for its share of the microbatches."""
    queues = []
    last_stage: dict[tuple[str, int], int] = {}
    for lane in schedule.lanes:
        receives = tuple(action.index for action in lane.actions if action.kind is Kind.RECEIVE)
        stage = lane.stage_index
        middle = lane.actions.index(Action(Kind.FORWARD, stage))
        ahead = tuple(action.index for action in lane.actions[:middle] if action.kind is Kind.SEND)
        sends = tuple(action.index for action in lane.actions[middle:] if action.kind is Kind.SEND)
        devices = plan.stages[stage].device_ids
        for copy, device_id in enumerate(devices):
            blocks = []
            for k in range(copy, microbatches, len(devices)):
                after = last_stage.get((device_id, k), NO_STAGE)
                blocks.append(Block(Activity.FORWARD, stage, k, receives, sends, ahead, after))
                last_stage[device_id, k] = stage
            queues.append(Queue(device_id=device_id, blocks=tuple(blocks)))
    return tuple(queues)


def step_blocks(schedule: TrainingSchedule) -> tuple[Queue, ...]:
    return tuple(
        Queue(device_id=device.device_id, blocks=tuple(_blocks(device.actions))) for device in schedule.devices
    )


def _blocks(actions: Sequence[Action]) -> Iterator[Block]:
    receives: list[int] = []
    position = 0
    while position < len(actions):
        action = actions[position]
        position += 1
        if action.kind in (Kind.RECEIVE, Kind.RECEIVE_GRADIENT):
            receives.append(action.index)
        elif action.kind in _PASSES:
            sends = []
            while position < len(actions) and actions[position].kind in (Kind.SEND, Kind.SEND_GRADIENT):
                sends.append(actions[position].index)
                position += 1
            yield Block(_PASSES[action.kind], action.index, action.microbatch, tuple(receives), tuple(sends))
            receives = []
