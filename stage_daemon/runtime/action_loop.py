"""The one loop over actions: a lane of inference for one microbatch after the other, a device's training step once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from stage_daemon.runtime.actions import Kind, Lane
from stage_daemon.runtime.environment import Environment
from stage_daemon.runtime.timeline import Timeline, clock

# Does an action of the index that it gets.
Doer = Callable[[int, Environment], None]


class ActionLoop:
    """Each action runs on one of several environments, `places[position]`, which loses the values that are
    `dead[position]` behind it: see `dead_after`.

    `doers` has one entry for each kind that may occur: that is all that an action needs to be added here.
    `timed_as` has each action's position in the timeline's actions, or ELSEWHERE.
    """

    def __init__(
        self,
        lane: Lane,
        doers: Mapping[Kind, Doer],
        places: Sequence[int],
        dead: Sequence[Sequence[int]],
        timeline: Timeline,
        timed_as: Sequence[int],
    ) -> None:
        self._bound = tuple(
            (doers[action.kind], action.index, place, value_ids)
            for action, place, value_ids in zip(lane, places, dead, strict=True)
        )
        self._timeline = timeline
        self._timed_as = array("q", timed_as)

    def run(self, number: int, environments: Sequence[Environment]) -> None:
        """`number` is of the microbatch, or of the step."""
        timeline = self._timeline
        ends, position = timeline.ends, timeline.begin(number, self._timed_as)
        for do, index, place, dead in self._bound:
            environment = environments[place]
            do(index, environment)
            if dead:
                environment.drop(dead)
            ends[position] = clock()
            position += 1
            timeline.position = position
