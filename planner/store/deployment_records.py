"""Deployments and daemons as data: what the tables hold and what the rollout decides on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from planner.cost.inventory import Device


class DeploymentState(Enum):
    PENDING = "pending"
    LOADING = "loading"
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    RECOVERING = "recovering"

    @property
    def ended(self) -> bool:
        return self in (DeploymentState.STOPPED, DeploymentState.FAILED)


class RecoveryPolicy(Enum):
    """What happens when a READY deployment breaks: it has failed, or it is rolled out again where it was, or on what is
    left of its devices."""

    MANUAL = "manual"
    RESTART = "restart"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a deployment ended badly. `reason` is stable, UPPER_SNAKE_CASE; `message` is for people."""

    reason: str
    message: str
    stage: int | None = None
    device_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """`incarnation_id` is the daemon's at the time of the rollout: another one there does not hold the stage."""

    stage: int
    device_id: str
    daemon_address: str
    incarnation_id: str
    # That its worker uses for an operator; 0 until it has loaded.
    num_threads: int = 0
    # Of the compiled stage's outputs from the stage's own, relative; None where it is not compiled.
    compiled_difference: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """What the worker that has loaded a stage says of it; the two facts are those of StagePlacement."""

    stage: int
    num_threads: int
    compiled_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What every worker of a deployment is told: the threads of an operator (0: its share of the host), and whether
    stages are compiled."""

    num_threads: int = 0
    compile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`plan_id` is the plan that runs. Where it is not the one that was asked for, `plan_reason` says why.

    `stages` by stage; where one has copies, in the plan's order.
    """

    id: str
    plan_id: str
    graph_id: str
    state: DeploymentState
    generation: int
    stages: tuple[StagePlacement, ...]
    created_at: datetime
    recovery: RecoveryPolicy = RecoveryPolicy.MANUAL
    workers: WorkerSettings = WorkerSettings()
    ended_at: datetime | None = None
    failure: Failure | None = None
    asked_plan_id: str = ""
    plan_reason: str = ""

    def __post_init__(self) -> None:
        if not self.asked_plan_id:
            object.__setattr__(self, "asked_plan_id", self.plan_id)

    def device_ids(self) -> tuple[str, ...]:
        """Each device once, in order of its first stage."""
        return tuple(dict.fromkeys(placement.device_id for placement in self.stages))

    @property
    def input_address(self) -> str:
        """Of the daemon that takes batches: of copies it is the first."""
        return self.stages[0].daemon_address

    @property
    def output_address(self) -> str:
        last = self.stages[-1].stage
        return next(placement.daemon_address for placement in self.stages if placement.stage == last)

    def with_copy(self, failure: Failure) -> Failure:
        """The failure with the copy that it is about in its metadata, where its stage has copies."""
        copies = [placement.device_id for placement in self.stages if placement.stage == failure.stage]
        if len(copies) < 2 or failure.device_id not in copies:
            return failure
        return replace(failure, metadata={"copy": str(copies.index(failure.device_id)), **failure.metadata})

    def stages_on(self, device_id: str) -> tuple[StagePlacement, ...]:
        return tuple(placement for placement in self.stages if placement.device_id == device_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentEvent:
    """`state` is the deployment's after the event. Sequences count from 1 without gaps, per deployment."""

    sequence: int
    occurred_at: datetime
    state: DeploymentState
    message: str
    stage: int | None = None
    device_id: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A daemon as it last registered: live while its lease has not expired, by the database's clock, since each planner
    has its own; `draining`: nothing new is put on it."""

    device: Device
    address: str
    incarnation_id: str
    torch_version: str
    lease_expires_at: datetime
    draining: bool = False

    def live_at(self, now: datetime) -> bool:
        return now < self.lease_expires_at
