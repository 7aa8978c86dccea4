"""Everything that can go wrong in the planner.

PlannerError
├── InvalidArgument          what was given can never work
│   ├── GraphError           a graph that is not sound
│   │   └── UnsupportedModule    a module that cannot be carried (client)
│   ├── InventoryError
│   └── OptionsError         planning options that do not fit the graph
├── Infeasible               a sound question whose answer is that no plan exists
├── Unauthenticated          a caller who is not known: no certificate or token, or one that is no longer valid
├── Forbidden                a caller who is known and may not
├── NotFound
├── Conflict                 the state of things forbids it now
│   ├── RequestIdReused
│   ├── NotDeployable            a plan or graph that cannot run as it is
│   ├── DeviceGone
│   ├── DeviceFull
│   ├── DeviceTaken
│   ├── BuffersInUse             a deployment that writes buffers, which another pipeline's batches are writing
│   └── WrongOffset              an upload goes on from elsewhere: `metadata["committed_bytes"]`
├── ResourceExhausted        a limit of the server, or its disk, is full
├── Corrupt                  bytes that are not what their digest says
├── Unavailable              a daemon or server that cannot be reached
│   ├── AwayForNow               as long as a restart takes: the planner's database, or a planner that is stopping
│   └── NotLeading               another planner on the database does what was asked
├── PlanInvariantError       a plan that breaks what must hold of every plan: a defect, or a record changed by hand
├── DeploymentFailed
├── MicrobatchFailed         one batch failed in a stage; the deployment goes on
│   ├── StateLost                the buffers are no longer as earlier batches of the pipeline left them
│   └── StepNotApplied           of a training step: no weight has changed
└── Cancelled

Each has a stable `reason`, which travels to clients as google.rpc.ErrorInfo, and `metadata`: the facts behind the
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


def few_of(names: Sequence[str], most: int) -> str:
    """The first `most` of them and how many more there are, so that a message does not end before its remedy."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class PlannerError(Exception):
    """`message` says what was found, what was needed and what to change."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class PlannerWarning(UserWarning):
    """What a caller ought to know about something that went well."""


class InvalidArgument(PlannerError):
    reason = "INVALID_ARGUMENT"


class GraphError(InvalidArgument):
    reason = "INVALID_GRAPH"


class UnsupportedModule(GraphError):
    reason = "UNSUPPORTED_MODULE"


class InventoryError(InvalidArgument):
    reason = "INVALID_INVENTORY"


class OptionsError(InvalidArgument):
    reason = "INVALID_OPTIONS"


class Infeasible(PlannerError):
    """No plan exists. `metadata` names the stage or node, the device and the bytes that lack."""

    reason = "INFEASIBLE"


class Unauthenticated(PlannerError):
    reason = "UNAUTHENTICATED"


class Forbidden(PlannerError):
    reason = "PERMISSION_DENIED"


class NotFound(PlannerError):
    reason = "NOT_FOUND"


class Conflict(PlannerError):
    reason = "CONFLICT"


class RequestIdReused(Conflict):
    reason = "REQUEST_ID_REUSED"


class NotDeployable(Conflict):
    reason = "NOT_DEPLOYABLE"


class DeviceGone(Conflict):
    reason = "DEVICE_GONE"


class DeviceFull(Conflict):
    reason = "DEVICE_FULL"


class DeviceTaken(Conflict):
    reason = "DEVICE_TAKEN"


class BuffersInUse(Conflict):
    reason = "BUFFERS_IN_USE"


class WrongOffset(Conflict):
    reason = "WRONG_OFFSET"


# Until a disk that is full is worth asking again: somebody has to make room.
FULL_DISK_RETRY_SECONDS = 30.0


class ResourceExhausted(PlannerError):
    """Where it may pass by itself, `metadata["retry_after_seconds"]` says when to ask again."""

    reason = "RESOURCE_EXHAUSTED"


class Corrupt(PlannerError):
    reason = "DIGEST_MISMATCH"


class Unavailable(PlannerError):
    reason = "UNAVAILABLE"


class AwayForNow(Unavailable):
    reason = "AWAY_FOR_NOW"


class NotLeading(Unavailable):
    reason = "NOT_LEADING"


class PlanInvariantError(PlannerError):
    """`metadata["invariant"]` names what does not hold."""

    reason = "PLAN_INVARIANT"


class DeploymentFailed(PlannerError):
    reason = "DEPLOYMENT_FAILED"


class MicrobatchFailed(PlannerError):
    reason = "MICROBATCH_FAILED"


class StateLost(MicrobatchFailed):
    """Of a later generation, which began with the buffers that were uploaded, or where another pipeline has written."""

    reason = "STATE_LOST"


class StepNotApplied(MicrobatchFailed):
    """The loss or the gradients are not finite, or a microbatch failed; the deployment goes on."""

    reason = "STEP_NOT_APPLIED"


class Cancelled(PlannerError):
    reason = "CANCELLED"
