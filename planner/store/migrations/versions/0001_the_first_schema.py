"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "daemons",
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("incarnation_id", sa.Text(), nullable=False),
        sa.Column("torch_version", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("flops_per_second", sa.Double(), nullable=False),
        sa.Column("memory_bytes_per_second", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_daemons")),
    )
    op.create_index(op.f("ix_daemons_lease_expires_at"), "daemons", ["lease_expires_at"], unique=False)
    op.create_table(
        "graphs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("torch_version", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_nodes", sa.BigInteger(), nullable=False),
        sa.Column("num_states", sa.BigInteger(), nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("not_deployable_reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_graphs")),
    )
    op.create_index(op.f("ix_graphs_created_at"), "graphs", ["created_at"], unique=False)
    op.create_table(
        "inventories",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("listed", sa.Boolean(), nullable=False),
        sa.Column("default_bytes_per_second", sa.Double(), nullable=False),
        sa.Column("default_latency_seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inventories")),
    )
    op.create_index(op.f("ix_inventories_created_at"), "inventories", ["created_at"], unique=False)
    op.create_table(
        "request_ids",
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("result_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("method", "request_id", name=op.f("pk_request_ids")),
    )
    op.create_table(
        "roles",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roles")),
    )
    op.execute("INSERT INTO roles (id, fence) VALUES ('dispatch', 0)")
    op.create_table(
        "deployments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("recovery", sa.Text(), nullable=False),
        sa.Column("input_address", sa.Text(), nullable=False),
        sa.Column("output_address", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("failure_stage", sa.BigInteger(), nullable=True),
        sa.Column("failure_device_id", sa.Text(), nullable=True),
        sa.Column("failure_metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_deployments_graph_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
    )
    op.create_index(op.f("ix_deployments_created_at"), "deployments", ["created_at"], unique=False)
    op.create_index(op.f("ix_deployments_plan_id"), "deployments", ["plan_id"], unique=False)
    op.create_index(op.f("ix_deployments_state"), "deployments", ["state"], unique=False)
    op.create_table(
        "graph_weight_files",
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["graph_id"], ["graphs.id"], name=op.f("fk_graph_weight_files_graph_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("graph_id", "position", name=op.f("pk_graph_weight_files")),
    )
    op.create_table(
        "inventory_devices",
        sa.Column("inventory_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("flops_per_second", sa.Double(), nullable=False),
        sa.Column("memory_bytes_per_second", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["inventory_id"], ["inventories.id"], name=op.f("fk_inventory_devices_inventory_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("inventory_id", "position", name=op.f("pk_inventory_devices")),
    )
    op.create_table(
        "inventory_links",
        sa.Column("inventory_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("source_device_id", sa.Text(), nullable=False),
        sa.Column("target_device_id", sa.Text(), nullable=False),
        sa.Column("bytes_per_second", sa.Double(), nullable=False),
        sa.Column("latency_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["inventory_id"], ["inventories.id"], name=op.f("fk_inventory_links_inventory_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("inventory_id", "position", name=op.f("pk_inventory_links")),
    )
    op.create_table(
        "plan_operations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("inventory_id", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("failure_stage", sa.BigInteger(), nullable=True),
        sa.Column("failure_device_id", sa.Text(), nullable=True),
        sa.Column("failure_metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_plan_operations_graph_id")),
        sa.ForeignKeyConstraint(["inventory_id"], ["inventories.id"], name=op.f("fk_plan_operations_inventory_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plan_operations")),
    )
    op.create_index(op.f("ix_plan_operations_state"), "plan_operations", ["state"], unique=False)
    op.create_table(
        "plans",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("inventory_id", sa.Text(), nullable=False),
        sa.Column("graph_name", sa.Text(), nullable=False),
        sa.Column("num_nodes", sa.BigInteger(), nullable=False),
        sa.Column("num_stages", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("objective", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("symbol_values", sa.JSON(), nullable=False),
        sa.Column("bottleneck_seconds", sa.Double(), nullable=False),
        sa.Column("latency_seconds", sa.Double(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=True),
        sa.Column("lower_bound_seconds", sa.Double(), nullable=True),
        sa.Column("cost_sources", sa.JSON(), nullable=False),
        sa.Column("pass_orders", sa.JSON(), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_plans_graph_id")),
        sa.ForeignKeyConstraint(["inventory_id"], ["inventories.id"], name=op.f("fk_plans_inventory_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_created_at"), "plans", ["created_at"], unique=False)
    op.create_index(op.f("ix_plans_graph_id"), "plans", ["graph_id"], unique=False)
    op.create_index(op.f("ix_plans_mode"), "plans", ["mode"], unique=False)
    op.create_table(
        "profiles",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("graph_id", sa.String(length=64), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("setting", sa.Text(), nullable=False),
        sa.Column("symbol_values", sa.JSON(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("num_nodes", sa.BigInteger(), nullable=False),
        sa.Column("num_measured", sa.BigInteger(), nullable=False),
        sa.Column("total_seconds", sa.Double(), nullable=False),
        sa.Column("num_fitted", sa.BigInteger(), nullable=False),
        sa.Column("float64_flops_per_second", sa.Double(), nullable=True),
        sa.Column("float32_flops_per_second", sa.Double(), nullable=True),
        sa.Column("float16_flops_per_second", sa.Double(), nullable=True),
        sa.Column("float8_flops_per_second", sa.Double(), nullable=True),
        sa.Column("memory_bytes_per_second", sa.Double(), nullable=True),
        sa.Column("node_seconds", sa.Double(), nullable=True),
        sa.Column("median_error", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.id"], name=op.f("fk_profiles_graph_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
        sa.UniqueConstraint(
            "graph_id", "device_kind", "setting", name=op.f("uq_profiles_graph_id_device_kind_setting")
        ),
    )
    op.create_index(op.f("ix_profiles_created_at"), "profiles", ["created_at"], unique=False)
    op.create_index(op.f("ix_profiles_device_kind"), "profiles", ["device_kind"], unique=False)
    op.create_table(
        "profile_nodes",
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("backward_seconds", sa.Double(), nullable=True),
        sa.Column("unmeasured_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_profile_nodes_profile_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "node", name=op.f("pk_profile_nodes")),
    )
    op.create_table(
        "deployment_events",
        sa.Column("deployment_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=True),
        sa.Column("device_id", sa.Text(), nullable=True),
        sa.Column("loaded_bytes", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("failure_stage", sa.BigInteger(), nullable=True),
        sa.Column("failure_device_id", sa.Text(), nullable=True),
        sa.Column("failure_metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployments.id"], name=op.f("fk_deployment_events_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("deployment_id", "sequence", name=op.f("pk_deployment_events")),
    )
    op.create_table(
        "deployment_stages",
        sa.Column("deployment_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("daemon_address", sa.Text(), nullable=False),
        sa.Column("incarnation_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployments.id"], name=op.f("fk_deployment_stages_deployment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("deployment_id", "stage", name=op.f("pk_deployment_stages")),
    )
    op.create_index(op.f("ix_deployment_stages_device_id"), "deployment_stages", ["device_id"], unique=False)
    op.create_table(
        "plan_edge_values",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("edge", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("value_id", sa.BigInteger(), nullable=False),
        sa.Column("has_gradient", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_edge_values_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "edge", "position", name=op.f("pk_plan_edge_values")),
    )
    op.create_table(
        "plan_edges",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("edge", sa.BigInteger(), nullable=False),
        sa.Column("source_stage", sa.BigInteger(), nullable=False),
        sa.Column("target_stage", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_edges_plan_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "edge", name=op.f("pk_plan_edges")),
    )
    op.create_table(
        "plan_liveness",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("value_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=True),
        sa.Column("dims", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("producer_stage", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.Boolean(), nullable=False),
        sa.Column("bypassing", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_liveness_plan_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "stage", "position", name=op.f("pk_plan_liveness")),
    )
    op.create_table(
        "plan_stage_devices",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_stage_devices_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "stage", "position", name=op.f("pk_plan_stage_devices")),
    )
    op.create_index(op.f("ix_plan_stage_devices_device_id"), "plan_stage_devices", ["device_id"], unique=False)
    op.create_table(
        "plan_stage_node_ranges",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("first_node", sa.BigInteger(), nullable=False),
        sa.Column("end_node", sa.BigInteger(), nullable=False),
        sa.Column("recomputed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_stage_node_ranges_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "stage", "position", name=op.f("pk_plan_stage_node_ranges")),
    )
    op.create_table(
        "plan_stage_outputs",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("value_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_stage_outputs_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "stage", "position", name=op.f("pk_plan_stage_outputs")),
    )
    op.create_table(
        "plan_stage_states",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_stage_states_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "stage", "position", name=op.f("pk_plan_stage_states")),
    )
    op.create_table(
        "plan_stages",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("num_nodes", sa.BigInteger(), nullable=False),
        sa.Column("compute_seconds", sa.Double(), nullable=False),
        sa.Column("communication_seconds", sa.Double(), nullable=False),
        sa.Column("backward_seconds", sa.Double(), nullable=False),
        sa.Column("recomputes_activations", sa.Boolean(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("activation_bytes", sa.BigInteger(), nullable=False),
        sa.Column("buffer_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gradient_bytes", sa.BigInteger(), nullable=False),
        sa.Column("optimizer_bytes", sa.BigInteger(), nullable=False),
        sa.Column("saved_bytes", sa.BigInteger(), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("first_module", sa.Text(), nullable=False),
        sa.Column("last_module", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_stages_plan_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "stage", name=op.f("pk_plan_stages")),
    )
    op.create_table(
        "plan_tie_groups",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("tie_group", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("requires_grad", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_tie_groups_plan_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "position", name=op.f("pk_plan_tie_groups")),
    )
    op.create_table(
        "plan_tie_members",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("group_position", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_tie_members_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "group_position", "position", name=op.f("pk_plan_tie_members")),
    )


def downgrade() -> None:
    op.drop_table("plan_tie_members")
    op.drop_table("plan_tie_groups")
    op.drop_table("plan_stages")
    op.drop_table("plan_stage_states")
    op.drop_table("plan_stage_outputs")
    op.drop_table("plan_stage_node_ranges")
    op.drop_index(op.f("ix_plan_stage_devices_device_id"), table_name="plan_stage_devices")
    op.drop_table("plan_stage_devices")
    op.drop_table("plan_liveness")
    op.drop_table("plan_edges")
    op.drop_table("plan_edge_values")
    op.drop_index(op.f("ix_deployment_stages_device_id"), table_name="deployment_stages")
    op.drop_table("deployment_stages")
    op.drop_table("deployment_events")
    op.drop_table("profile_nodes")
    op.drop_index(op.f("ix_profiles_device_kind"), table_name="profiles")
    op.drop_index(op.f("ix_profiles_created_at"), table_name="profiles")
    op.drop_table("profiles")
    op.drop_index(op.f("ix_plans_mode"), table_name="plans")
    op.drop_index(op.f("ix_plans_graph_id"), table_name="plans")
    op.drop_index(op.f("ix_plans_created_at"), table_name="plans")
    op.drop_table("plans")
    op.drop_index(op.f("ix_plan_operations_state"), table_name="plan_operations")
    op.drop_table("plan_operations")
    op.drop_table("inventory_links")
    op.drop_table("inventory_devices")
    op.drop_table("graph_weight_files")
    op.drop_index(op.f("ix_deployments_state"), table_name="deployments")
    op.drop_index(op.f("ix_deployments_plan_id"), table_name="deployments")
    op.drop_index(op.f("ix_deployments_created_at"), table_name="deployments")
    op.drop_table("deployments")
    op.drop_table("request_ids")
    op.drop_table("roles")
    op.drop_index(op.f("ix_inventories_created_at"), table_name="inventories")
    op.drop_table("inventories")
    op.drop_index(op.f("ix_graphs_created_at"), table_name="graphs")
    op.drop_table("graphs")
    op.drop_index(op.f("ix_daemons_lease_expires_at"), table_name="daemons")
    op.drop_table("daemons")
