"""What the server tells clients, as plain records: the protobuf messages stop at this package's edge.

The fields mean what their namesakes in protos/v1/planner.proto mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from planner.cost.calibration import Calibration
from planner.cost.inventory import Device, Inventory
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate
from planner.graph.ir import WeightFile
from planner.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecord:
    """A graph that the server holds. `id` is its blob's sha256 in hexadecimal."""

    id: str
    name: str
    size_bytes: int
    num_nodes: int
    num_states: int
    state_bytes: int
    weight_files: tuple[WeightFile, ...]
    deployable: bool
    not_deployable_reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedBlobs:
    """What a collection deleted, or would delete; `num_young` belong to no graph and are kept for the grace period."""

    num_blobs: int
    size_bytes: int
    num_referenced: int
    num_young: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A bearer token, without the token itself."""

    id: str
    holder: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """`outcome` is "OK" or the reason of the error."""

    id: str
    occurred_at: datetime
    principal: str
    method: str
    subject: str
    peer: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDevice:
    device: Device
    daemon_address: str
    lease_expires_at: datetime
    deployment_ids: tuple[str, ...]
    torch_version: str
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRecord:
    id: str
    name: str
    inventory: Inventory
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(Plan):
    """A plan that the server holds: the plan itself, and what it is stored under."""

    id: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    id: str
    graph_id: str
    graph_name: str
    mode: str
    num_stages: int
    bottleneck_seconds: float
    peak_bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something ended badly. `stage` and `device_id` are what it is about, where it is about one."""

    reason: str
    message: str
    stage: int | None = None
    device_id: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """ " in copy 0 of stage 1 on device a", as far as it is known and the message does not say so itself."""
        copy = self.metadata.get("copy", "")
        name = f"copy {copy} of stage {self.stage}" if copy else f"stage {self.stage}"
        stage = "" if self.stage is None or name in self.message else f" in {name}"
        device = "" if not self.device_id or self.device_id in self.message else f" on device {self.device_id}"
        return stage + device


class OperationState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self not in (OperationState.PENDING, OperationState.RUNNING)


class DeploymentState(StrEnum):
    PENDING = "pending"
    LOADING = "loading"
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    RECOVERING = "recovering"

    @property
    def has_ended(self) -> bool:
        return self in (DeploymentState.STOPPED, DeploymentState.FAILED)


class RecoveryPolicy(StrEnum):
    """What happens when a deployment that was ready breaks: it has failed, or it is rolled out again where it was, or
    by another plan on the devices that are left."""

    MANUAL = "manual"
    RESTART = "restart"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """`num_threads` is what the worker says that it uses for an operator; 0 until it has loaded.

    `compiled_difference` is how far the compiled stage's outputs were from the uncompiled one's on made-up inputs, as a
    share of an output's largest element; None where it is not compiled.
    """

    stage: int
    device_id: str
    daemon_address: str
    num_threads: int = 0
    compiled_difference: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`input_address` and `output_address` are known once it is ready. Each recovery begins a new `generation`.

    `stages` by stage; one that has copies is there for each device, the one that evaluates first.

    `num_threads` is what was asked for; 0: each worker's share of its host. `compile`: stages are compiled.
    `plan_id` is the plan that runs; where it is not `asked_plan_id`, `plan_reason` says why.
    """

    id: str
    plan_id: str
    graph_id: str
    state: DeploymentState
    generation: int
    failure: Failure | None
    stages: tuple[StagePlacement, ...]
    input_address: str
    output_address: str
    created_at: datetime
    ended_at: datetime | None
    recovery: RecoveryPolicy = RecoveryPolicy.MANUAL
    num_threads: int = 0
    asked_plan_id: str = ""
    plan_reason: str = ""
    compile: bool = False

    @property
    def num_stages(self) -> int:
        return len({placement.stage for placement in self.stages})

    def copies_of(self, stage: int) -> tuple[str, ...]:
        """The devices that have it, in the order in which they take microbatches."""
        return tuple(placement.device_id for placement in self.stages if placement.stage == stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentEvent:
    """`state` is the deployment's after the event; `loaded_bytes` of `total_bytes` are the stage's."""

    sequence: int
    occurred_at: datetime
    state: DeploymentState
    message: str
    stage: int | None
    device_id: str
    loaded_bytes: int
    total_bytes: int
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """Measured times of a graph on a device kind, at one setting of its dimensions.

    `num_threads` is how many an operator used on a CPU, where that many were asked for.
    """

    id: str
    graph_id: str
    device_kind: str
    symbol_values: tuple[tuple[str, int], ...]
    source: str
    num_nodes: int
    num_measured: int
    total_seconds: float
    calibration: Calibration | None
    created_at: datetime
    delivery: Delivery | None = None
    num_threads: int = 0
    update: StateUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`unmeasured` holds (node index, why) of nodes that could not be run alone."""

    record: ProfileRecord
    times: MeasuredTimes
    unmeasured: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProgress:
    """How many of a graph's distinct nodes were timed on a device."""

    device_id: str
    device_kind: str
    num_done: int
    num_distinct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadProgress:
    """How much of one file the server holds."""

    name: str
    sent_bytes: int
    total_bytes: int
