"""What a schedule did, as data: events in seconds from its start, and sums over them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NO_EDGE = -1


class Activity(Enum):
    RECEIVE = "receive"
    FORWARD = "forward"
    SEND = "send"
    RECEIVE_GRADIENT = "receive gradient"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward for inputs"
    BACKWARD_WEIGHT = "backward for weights"
    SEND_GRADIENT = "send gradient"
    REDUCE = "reduce gradients"
    AGREE = "agree on the step"
    OPTIMIZER_STEP = "optimizer step"
    # Daemons measure these; plans count them as received and sent.
    TAKE_INPUT = "take input"
    GIVE_OUTPUT = "give output"

    @property
    def is_compute(self) -> bool:
        return self in _COMPUTE

    @property
    def is_receive(self) -> bool:
        return self in _RECEIVES

    @property
    def is_send(self) -> bool:
        return self in _SENDS

    @property
    def is_reduction(self) -> bool:
        return self in (Activity.REDUCE, Activity.AGREE)


_COMPUTE = frozenset(
    {
        Activity.FORWARD,
        Activity.BACKWARD,
        Activity.BACKWARD_INPUT,
        Activity.BACKWARD_WEIGHT,
        Activity.OPTIMIZER_STEP,
    }
)
_RECEIVES = frozenset({Activity.TAKE_INPUT, Activity.RECEIVE, Activity.RECEIVE_GRADIENT})
_SENDS = frozenset({Activity.GIVE_OUTPUT, Activity.SEND, Activity.SEND_GRADIENT})


@dataclass(frozen=True, slots=True)
class Event:
    """What keeps a device busy. What is done once per step has microbatch -1, and the first stage that it is for."""

    device_id: str
    activity: Activity
    stage: int
    microbatch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message on the link between two devices. `edge_index` is the position in Plan.edges; gradients go back."""

    edge_index: int
    microbatch: int
    is_gradient: bool
    source_id: str
    target_id: str
    size_bytes: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Sums to the makespan: computing, sending or receiving, and waiting for others."""

    device_id: str
    busy_seconds: float
    communication_seconds: float
    waiting_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    source_id: str
    target_id: str
    busy_seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """`output_seconds`: when each microbatch had passed all stages forward, by microbatch; of a lone one, the latency.

    `bubble_share`: of all device time until the end, the share spent waiting. Devices in the order of their first
    stages, links by their devices, events by their device and start, transfers by their start.
    """

    microbatches: int
    makespan_seconds: float
    bubble_share: float
    devices: tuple[DeviceTime, ...]
    links: tuple[LinkTime, ...]
    output_seconds: tuple[float, ...]
    events: tuple[Event, ...]
    transfers: tuple[Transfer, ...]

    @property
    def seconds_between_outputs(self) -> float:
        """In the second half of the stream, where it is steady; 0 for a lone microbatch."""
        ordered = sorted(self.output_seconds)
        middle = (len(ordered) - 1) // 2
        spans = len(ordered) - 1 - middle
        return (ordered[-1] - ordered[middle]) / spans if spans else 0.0
