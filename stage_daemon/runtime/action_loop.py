"""The one loop over actions: a lane of inference for one microbatch after the other, a device's training step once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stage_daemon.runtime.actions import Action, Kind, Lane
from stage_daemon.runtime.environment import Environment, dead_after

# Does an action of the index that it gets.
Doer = Callable[[int, Environment], None]


class ActionLoop:
    """Each action runs on one of several environments, `places[position]`; a value goes once nothing there reads it.

    `doers` has one entry for each kind that may occur: that is all that an action needs to be added here.
    """

    def __init__(
        self,
        lane: Lane,
        doers: Mapping[Kind, Doer],
        places: Sequence[int],
        reads: Callable[[Action], Sequence[int]],
    ) -> None:
        dead = dead_after(lane, places, reads)
        self.num_places = max(places, default=-1) + 1
        self._bound = tuple(
            (doers[action.kind], action.index, place, value_ids)
            for action, place, value_ids in zip(lane, places, dead, strict=True)
        )

    def run(self, environments: Sequence[Environment]) -> None:
        for do, index, place, dead in self._bound:
            environment = environments[place]
            do(index, environment)
            environment.drop(dead)
