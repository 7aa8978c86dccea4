"""A schedule: the actions of each stage, in order, as data. It is checked before anything is sent; then it is run."""

from __future__ import annotations

from dataclasses import dataclass

from planner.schedule.actions import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One thread of execution. Runs its actions in order, again for each microbatch."""

    stage_index: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLanes:
    device_id: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Devices in the order of their first stage; each one's lanes in the order of their stages."""

    devices: tuple[DeviceLanes, ...]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Every lane, in the order of the stages."""
        lanes = (lane for device in self.devices for lane in device.lanes)
        return tuple(sorted(lanes, key=lambda lane: lane.stage_index))
