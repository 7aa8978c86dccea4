"""The one vocabulary of schedules: what a device does, in inference and in training. Daemons know the same kinds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an action does. `Action.index` is of an edge, a stage or a tie group, as said here."""

    TAKE_INPUT = "take_input"  # stage 0: every input of the graph, of the next microbatch that a client sent
    RECEIVE = "receive"  # edge
    FORWARD = "forward"  # stage
    SEND = "send"  # edge: ends once the edge has taken the message, at once while a receive buffer is free
    GIVE_OUTPUT = "give_output"  # last stage: hands every output of the graph back to the client
    RECEIVE_GRADIENT = "receive_gradient"  # edge, of what it sent
    BACKWARD = "backward"  # stage: for inputs and weights at once
    BACKWARD_INPUT = "backward_input"  # stage
    BACKWARD_WEIGHT = "backward_weight"  # stage
    SEND_GRADIENT = "send_gradient"  # edge, of what it received
    REDUCE_GRADIENTS = "reduce_gradients"  # stage: among its copies
    REDUCE_TIED = "reduce_tied"  # position in Plan.tie_groups: among the devices that hold it
    AGREE = "agree"  # 0: all devices learn the gradients' norm, and whether each has all of its gradients
    OPTIMIZER_STEP = "optimizer_step"  # stage


NO_MICROBATCH = -1


@dataclass(frozen=True, slots=True)
class Action:
    """`microbatch` is NO_MICROBATCH for what is done once per step, and in inference, where a lane's actions are for
    one microbatch after the other."""

    kind: Kind
    index: int
    microbatch: int = NO_MICROBATCH

    def __str__(self) -> str:
        of = "" if self.microbatch == NO_MICROBATCH else f" of microbatch {self.microbatch}"
        return f"{self.kind.value} {self.index}{of}"
