"""What a lane does, in order: the schedule as data. The kinds are those of the planner's schedules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """`Action.index` is of an edge, a stage or a tie group; see ActionKind in stage_daemon.proto."""

    TAKE_INPUT = auto()
    RECEIVE = auto()
    FORWARD = auto()
    SEND = auto()
    GIVE_OUTPUT = auto()
    RECEIVE_GRADIENT = auto()
    BACKWARD = auto()
    BACKWARD_INPUT = auto()
    BACKWARD_WEIGHT = auto()
    SEND_GRADIENT = auto()
    REDUCE_GRADIENTS = auto()
    REDUCE_TIED = auto()
    AGREE = auto()
    OPTIMIZER_STEP = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """`microbatch` is of a training step's; None in inference, and for what is done once per step.

    `edges_in_turn`: where they are several, those that the message of each next microbatch goes over; see `Action` in
    stage_daemon.proto.
    """

    kind: Kind
    index: int
    microbatch: int | None = None
    edges_in_turn: tuple[int, ...] = ()

    def __str__(self) -> str:
        of = "" if self.microbatch is None else f" of microbatch {self.microbatch}"
        return f"{self.kind.name.lower()} {self.index}{of}"


Lane = tuple[Action, ...]
