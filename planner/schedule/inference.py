"""The schedule of a forward pass: each stage receives, runs and sends, microbatch after microbatch. Inputs go ahead."""

from __future__ import annotations

from collections.abc import Container, Iterator

from planner.plan.edges import sent_ahead
from planner.plan.plan import Plan
from planner.schedule.actions import Action, Kind
from planner.schedule.schedule import DeviceLanes, Lane, Schedule


def inference_schedule(plan: Plan) -> Schedule:
    """One lane per stage, on the first of its devices; each copy runs the same for the microbatches whose turn it has.

    Receives go by source stage and sends by target stage, both ascending: with any other pair of orders two edges may
    wait for each other.
    """
    lanes_of: dict[str, list[Lane]] = {}
    ahead = sent_ahead(plan)
    for stage in plan.stages:
        lane = Lane(stage_index=stage.index, actions=tuple(_actions(plan, stage.index, ahead)))
        lanes_of.setdefault(stage.device_ids[0], []).append(lane)
    return Schedule(
        devices=tuple(DeviceLanes(device_id=device, lanes=tuple(lanes)) for device, lanes in lanes_of.items())
    )


def _actions(plan: Plan, stage_index: int, ahead: Container[int]) -> Iterator[Action]:
    """What goes ahead leaves as soon as the stage knows of the microbatch, so that nobody waits for its pass."""
    entering = [(edge.source_stage, i) for i, edge in enumerate(plan.edges) if edge.target_stage == stage_index]
    leaving = [(edge.target_stage, i) for i, edge in enumerate(plan.edges) if edge.source_stage == stage_index]
    sends = [index for _, index in sorted(leaving)]
    begin = [Action(Kind.TAKE_INPUT, 0)] if stage_index == 0 else []
    begin += [Action(Kind.RECEIVE, index) for _, index in sorted(entering)]
    yield from begin[:1]
    yield from (Action(Kind.SEND, index) for index in sends if index in ahead)
    yield from begin[1:]
    yield Action(Kind.FORWARD, stage_index)
    yield from (Action(Kind.SEND, index) for index in sends if index not in ahead)
    if stage_index == len(plan.stages) - 1:
        yield Action(Kind.GIVE_OUTPUT, stage_index)
