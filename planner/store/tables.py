"""The rows: one class per table, and nothing that decides.

Written so that a person can ask them in SQL: digests are hexadecimal, states and kinds are words, and what a plan says
of a stage, an edge or a tensor is a row of its own. Positions keep the order that a record has in memory.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Double, ForeignKey, MetaData, String, Text, UniqueConstraint, false
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware moment, in UTC on every database: SQLite keeps no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Row(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy declares it as an instance attribute
        str: Text,
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


class FailureColumns:
    """Why something ended badly; `failure_reason` is null where nothing did."""

    failure_reason: Mapped[str | None]
    failure_message: Mapped[str | None]
    failure_stage: Mapped[int | None]
    failure_device_id: Mapped[str | None]
    failure_metadata: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class ClaimColumns:
    """The planner that works on the row, until when unless it renews that, and how often the row was claimed."""

    id: Mapped[str] = mapped_column(primary_key=True)
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    fence: Mapped[int] = mapped_column(default=0)


class DeviceColumns:
    """The numbers of a device, as in planner.cost.inventory.Device."""

    kind: Mapped[str]
    host: Mapped[str]
    memory_bytes: Mapped[int]
    flops_per_second: Mapped[float]
    memory_bytes_per_second: Mapped[float]
    shares_cores: Mapped[bool] = mapped_column(server_default=false())


class GraphRow(Row):
    """`id` is the graph blob's sha256, `name` the newest of its names.

    An empty `not_deployable_reason` means that it can be deployed.
    """

    __tablename__ = "graphs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str]
    torch_version: Mapped[str]
    size_bytes: Mapped[int]
    num_nodes: Mapped[int]
    num_states: Mapped[int]
    state_bytes: Mapped[int]
    not_deployable_reason: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)


class GraphNameRow(Row):
    """A name that the graph was submitted under: it is found by any of them."""

    __tablename__ = "graph_names"
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True, index=True)


class GraphWeightFileRow(Row):
    __tablename__ = "graph_weight_files"
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int]


class InventoryRow(Row):
    """An inventory is never changed. One that came inside a plan's request is kept too, and not `listed`."""

    __tablename__ = "inventories"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    listed: Mapped[bool]
    default_bytes_per_second: Mapped[float]
    default_latency_seconds: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(index=True)


class InventoryDeviceRow(DeviceColumns, Row):
    __tablename__ = "inventory_devices"
    inventory_id: Mapped[str] = mapped_column(ForeignKey("inventories.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str]


class InventoryLinkRow(Row):
    """One direction of a link."""

    __tablename__ = "inventory_links"
    inventory_id: Mapped[str] = mapped_column(ForeignKey("inventories.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    source_device_id: Mapped[str]
    target_device_id: Mapped[str]
    bytes_per_second: Mapped[float]
    latency_seconds: Mapped[float]


class PlanOperationRow(ClaimColumns, FailureColumns, Row):
    """`state` is pending, running, succeeded, failed or cancelled; `id` is the plan's too.

    `options` holds all that was asked for, as planner.plan.options_document gives it. With `replaced_plan_id` the plan
    is to take the place of that one on the devices of the inventory; `moved_bytes` is what that moves. Operations in
    the `background` wait until no other does. `principal` asked for it, empty where nobody is known; the earliest
    `due_at` has the next turn.
    """

    __tablename__ = "plan_operations"
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"))
    inventory_id: Mapped[str] = mapped_column(ForeignKey("inventories.id"))
    mode: Mapped[str]
    options: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(index=True)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    background: Mapped[bool]
    replaced_plan_id: Mapped[str | None]
    moved_bytes: Mapped[int | None]
    principal: Mapped[str] = mapped_column(server_default="")
    due_at: Mapped[datetime | None]


class PlanRow(Row):
    """`options` holds all that was asked for, as planner.plan.options_document gives it."""

    __tablename__ = "plans"
    id: Mapped[str] = mapped_column(primary_key=True)
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"), index=True)
    inventory_id: Mapped[str] = mapped_column(ForeignKey("inventories.id"))
    graph_name: Mapped[str]
    num_nodes: Mapped[int]
    num_stages: Mapped[int]
    mode: Mapped[str] = mapped_column(index=True)
    objective: Mapped[str]
    options: Mapped[dict[str, Any]]
    symbol_values: Mapped[list[Any]]
    bottleneck_seconds: Mapped[float]
    latency_seconds: Mapped[float]
    step_seconds: Mapped[float | None]
    lower_bound_seconds: Mapped[float | None]
    cost_sources: Mapped[list[Any]]
    pass_orders: Mapped[list[Any]]
    peak_bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(index=True)


class PlanStageRow(Row):
    __tablename__ = "plan_stages"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    num_nodes: Mapped[int]
    compute_seconds: Mapped[float]
    communication_seconds: Mapped[float]
    backward_seconds: Mapped[float]
    weight_share: Mapped[float] = mapped_column(server_default="0.5")
    delivery_seconds: Mapped[float] = mapped_column(server_default="0")
    recomputes_activations: Mapped[bool]
    flops: Mapped[float]
    state_bytes: Mapped[int]
    activation_bytes: Mapped[int]
    buffer_bytes: Mapped[int]
    gradient_bytes: Mapped[int]
    optimizer_bytes: Mapped[int]
    saved_bytes: Mapped[int]
    peak_bytes: Mapped[int]
    reason: Mapped[str]
    first_module: Mapped[str]
    last_module: Mapped[str]


class PlanStageNodeRangeRow(Row):
    """Nodes `first_node` to `end_node` - 1 of the graph; `recomputed` if they are another stage's, run again here."""

    __tablename__ = "plan_stage_node_ranges"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    first_node: Mapped[int]
    end_node: Mapped[int]
    recomputed: Mapped[bool]


class PlanStageDeviceRow(Row):
    __tablename__ = "plan_stage_devices"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(index=True)


class PlanStageStateRow(Row):
    __tablename__ = "plan_stage_states"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class PlanStageOutputRow(Row):
    __tablename__ = "plan_stage_outputs"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    value_id: Mapped[int]


class PlanLivenessRow(Row):
    """A tensor that is live on entry to a stage. `dims` holds an expression tree per dimension."""

    __tablename__ = "plan_liveness"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    value_id: Mapped[int]
    name: Mapped[str]
    kind: Mapped[str]
    dtype: Mapped[str | None]
    dims: Mapped[list[Any]]
    size_bytes: Mapped[int]
    producer_stage: Mapped[int]
    consumed: Mapped[bool]
    bypassing: Mapped[bool]


class PlanEdgeRow(Row):
    """`edge` is the position in Plan.edges."""

    __tablename__ = "plan_edges"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    edge: Mapped[int] = mapped_column(primary_key=True)
    source_stage: Mapped[int]
    target_stage: Mapped[int]
    size_bytes: Mapped[int]


class PlanEdgeValueRow(Row):
    __tablename__ = "plan_edge_values"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    edge: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    value_id: Mapped[int]
    has_gradient: Mapped[bool]


class PlanTieGroupRow(Row):
    __tablename__ = "plan_tie_groups"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    tie_group: Mapped[int]
    size_bytes: Mapped[int]
    requires_grad: Mapped[bool]


class PlanTieMemberRow(Row):
    """`group_position` is the position in Plan.tie_groups."""

    __tablename__ = "plan_tie_members"
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    group_position: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    stage: Mapped[int]


class ProfileRow(Row):
    """Measured times of a graph on a kind of device, at one setting of its dimensions: one row for each such setting.

    `setting` is `symbol_values` as text, for the database to compare. Rates are those fitted to the times, all null
    where the times were too few; `num_fitted` nodes are predicted by them, half within `median_error`.
    """

    __tablename__ = "profiles"
    __table_args__ = (UniqueConstraint("graph_id", "device_kind", "setting"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"))
    device_kind: Mapped[str] = mapped_column(index=True)
    setting: Mapped[str]
    symbol_values: Mapped[list[Any]]
    source: Mapped[str]
    num_nodes: Mapped[int]
    num_measured: Mapped[int]
    total_seconds: Mapped[float]
    input_seconds: Mapped[float | None]
    output_seconds: Mapped[float | None]
    num_threads: Mapped[int] = mapped_column(server_default="0")
    norm_seconds: Mapped[float | None]
    optimizer_seconds: Mapped[float | None]
    num_fitted: Mapped[int]
    float64_flops_per_second: Mapped[float | None]
    float32_flops_per_second: Mapped[float | None]
    float16_flops_per_second: Mapped[float | None]
    float8_flops_per_second: Mapped[float | None]
    memory_bytes_per_second: Mapped[float | None]
    node_seconds: Mapped[float | None]
    median_error: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(index=True)


class ProfileNodeRow(Row):
    """A node's time, or why it has none."""

    __tablename__ = "profile_nodes"
    profile_id: Mapped[str] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float | None]
    backward_seconds: Mapped[float | None]
    input_gradient_seconds: Mapped[float | None]
    weight_gradient_seconds: Mapped[float | None]
    saves_inputs: Mapped[bool | None]
    saves_outputs: Mapped[bool | None]
    saved_within_bytes: Mapped[int | None]
    unmeasured_reason: Mapped[str | None]


class DaemonRow(DeviceColumns, Row):
    """It holds a lease while `lease_expires_at` lies ahead; `draining`: nothing new is put on it."""

    __tablename__ = "daemons"
    device_id: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    incarnation_id: Mapped[str]
    torch_version: Mapped[str]
    registered_at: Mapped[datetime]
    lease_expires_at: Mapped[datetime] = mapped_column(index=True)
    draining: Mapped[bool] = mapped_column(default=False)


class DeploymentRow(FailureColumns, Row):
    """`state` is pending, loading, connecting, ready, draining, recovering, stopped or failed.

    A deployment outlives its plans as history, so `plan_id`, the one that runs, and `asked_plan_id`, the one that was
    asked for, are no foreign keys. `plan_reason` says why they differ.
    """

    __tablename__ = "deployments"
    id: Mapped[str] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(index=True)
    asked_plan_id: Mapped[str]
    plan_reason: Mapped[str]
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"))
    state: Mapped[str] = mapped_column(index=True)
    generation: Mapped[int]
    recovery: Mapped[str]
    num_threads: Mapped[int] = mapped_column(server_default="0")
    compile: Mapped[bool] = mapped_column(default=False)
    input_address: Mapped[str]
    output_address: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime | None]


class DeploymentStageRow(Row):
    """Where a stage, or a copy of it, runs: the incarnation of the daemon that took it."""

    __tablename__ = "deployment_stages"
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    # Orders a stage's copies.
    position: Mapped[int] = mapped_column(primary_key=True, server_default="0")
    device_id: Mapped[str] = mapped_column(index=True)
    daemon_address: Mapped[str]
    incarnation_id: Mapped[str]
    num_threads: Mapped[int] = mapped_column(server_default="0")
    compiled_difference: Mapped[float | None]


class DeploymentEventRow(FailureColumns, Row):
    """`sequence` runs from 1 without gaps."""

    __tablename__ = "deployment_events"
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    occurred_at: Mapped[datetime]
    state: Mapped[str]
    message: Mapped[str]
    stage: Mapped[int | None]
    device_id: Mapped[str | None]
    loaded_bytes: Mapped[int]
    total_bytes: Mapped[int]


class SparePlanRow(Row):
    """The plan for a deployment's generation without some of its devices: `operation_id` makes it, and is its id."""

    __tablename__ = "spare_plans"
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True)
    lost_device_ids: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int]
    operation_id: Mapped[str] = mapped_column(index=True)


class CheckpointRow(Row):
    """What a training has saved; `learning_rate` is one that was set by hand."""

    __tablename__ = "checkpoints"
    id: Mapped[str] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(index=True)
    graph_id: Mapped[str] = mapped_column(String(64), ForeignKey("graphs.id"), index=True)
    optimizer: Mapped[str]
    num_steps: Mapped[int]
    seed: Mapped[str]
    loss_scale: Mapped[float]
    num_grown: Mapped[int]
    learning_rate: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(index=True)


class CheckpointFileRow(Row):
    __tablename__ = "checkpoint_files"
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    size_bytes: Mapped[int]
    is_model: Mapped[bool]


class CheckpointTensorRow(Row):
    """`optimizer_tensor` is empty for a state itself."""

    __tablename__ = "checkpoint_tensors"
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    optimizer_tensor: Mapped[str]
    dtype: Mapped[str]
    dims: Mapped[list[Any]]
    file_sha256: Mapped[str] = mapped_column(String(64))
    offset_bytes: Mapped[int]
    length_bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))


class RoleRow(ClaimColumns, Row):
    """What one planner of all does; there is one row, `dispatch`: hearing daemons and rolling plans out."""

    __tablename__ = "roles"


class RequestIdRow(Row):
    """What a create call answered; `fingerprint` is the sha256 of the request without its id."""

    __tablename__ = "request_ids"
    method: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    result_id: Mapped[str]
    created_at: Mapped[datetime]


class TokenRow(Row):
    """What a holder's secret is known by; the secret itself is nowhere."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    holder: Mapped[str]
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(index=True)
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class OwnerRow(Row):
    """Who made an object; of a graph, whoever created the same one."""

    __tablename__ = "owners"
    kind: Mapped[str] = mapped_column(primary_key=True)
    object_id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]


class UploadRow(Row):
    """A blob whose bytes count as the principal's, as many as were announced, until it is collected."""

    __tablename__ = "uploads"
    principal: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    size_bytes: Mapped[int]
    begun_at: Mapped[datetime]


class AuditRow(Row):
    """Who did what; triggers of the database refuse every change."""

    __tablename__ = "audit"
    id: Mapped[str] = mapped_column(primary_key=True)
    occurred_at: Mapped[datetime] = mapped_column(index=True)
    principal: Mapped[str]
    method: Mapped[str]
    subject: Mapped[str]
    peer: Mapped[str]
    outcome: Mapped[str]


class SecretRow(Row):
    """What the planners of this database keep to themselves, in hexadecimal."""

    __tablename__ = "secrets"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
    created_at: Mapped[datetime]
