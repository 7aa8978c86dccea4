"""Everything that can go wrong on a daemon.

DaemonError
├── InvalidRequest           what was asked can never work
│   ├── InvalidGraph         bytes that are not a sound graph
│   │   └── UnsupportedOperator  an operator that this daemon does not run
│   ├── InvalidMicrobatch    values that do not fit the deployment's inputs
│   └── EdgeMismatch         two ends of an edge that disagree: other deployment, generation, microbatch or shapes
├── StateMismatch            a tensor's bytes that are truncated, of another digest or of another shape
├── Corrupt                  bytes of a checkpoint that are not those that were saved
├── ShapeMismatch            the rebuilt stage gives other shapes than the graph declares
├── InsufficientMemory       a stage that does not fit the device
├── NotCompiled              a stage that could not be compiled, or a host that has no compiler
├── ResourceExhausted        as many deployments, or sessions of a caller, as there may be
├── NotFound
├── Forbidden                a caller who may not ask for it
├── Conflict                 the state of the deployment forbids it now
│   ├── BuffersInUse         another client's microbatches write the deployment's buffers
│   └── Released             a session whose deployment was let go of
├── StateLost                another client has written over what earlier sessions of this one left in buffers
├── ResultsNotRead           a client that sends and does not read
├── StageFailed              a stage raised while it ran a microbatch
├── WorkerDied
│   └── WorkerHung           a worker that runs and answers nothing
├── EdgeTimeout              a wait on an edge that went past its deadline
├── Unavailable              a peer or planner that cannot be reached
└── Cancelled

Each has a stable `reason`, which travels as google.rpc.ErrorInfo and in Failure messages, the stage and the device that
it is about where there is one, and `metadata`: the facts behind the message.
"""

from __future__ import annotations

from typing import ClassVar


class DaemonError(Exception):
    """`message` says what was found, what was needed and what to change.

    Pickles whole: `stage`, `device_id` and `metadata` survive a process boundary.
    """

    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self, message: str, *, stage: int | None = None, device_id: str | None = None, **metadata: object
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.device_id = device_id
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidRequest(DaemonError):
    reason = "INVALID_ARGUMENT"


class InvalidGraph(InvalidRequest):
    reason = "INVALID_GRAPH"


class UnsupportedOperator(InvalidGraph):
    reason = "UNSUPPORTED_OPERATOR"


class InvalidMicrobatch(InvalidRequest):
    reason = "INVALID_MICROBATCH"


class EdgeMismatch(InvalidRequest):
    reason = "EDGE_MISMATCH"


class StateMismatch(DaemonError):
    reason = "STATE_MISMATCH"


class Corrupt(DaemonError):
    reason = "DIGEST_MISMATCH"


class ShapeMismatch(DaemonError):
    reason = "SHAPE_MISMATCH"


class InsufficientMemory(DaemonError):
    reason = "INSUFFICIENT_MEMORY"


class NotCompiled(DaemonError):
    reason = "NOT_COMPILED"


class ResourceExhausted(DaemonError):
    reason = "RESOURCE_EXHAUSTED"


class NotFound(DaemonError):
    reason = "NOT_FOUND"


class Forbidden(DaemonError):
    reason = "PERMISSION_DENIED"


class Conflict(DaemonError):
    reason = "CONFLICT"


class BuffersInUse(Conflict):
    reason = "BUFFERS_IN_USE"


class Released(Conflict):
    reason = "DEPLOYMENT_RELEASED"


class StateLost(DaemonError):
    reason = "STATE_LOST"


class ResultsNotRead(DaemonError):
    reason = "RESULTS_NOT_READ"


class StageFailed(DaemonError):
    reason = "STAGE_FAILED"


class WorkerDied(DaemonError):
    reason = "WORKER_DIED"


class WorkerHung(WorkerDied):
    reason = "WORKER_HUNG"


class EdgeTimeout(DaemonError):
    reason = "EDGE_TIMEOUT"


class Unavailable(DaemonError):
    reason = "UNAVAILABLE"


class Cancelled(DaemonError):
    reason = "CANCELLED"
