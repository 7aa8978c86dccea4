"""Plans in the place of others, made ahead, and which plan a deployment was asked for with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plan_operations", sa.Column("background", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("plan_operations", sa.Column("replaced_plan_id", sa.Text(), nullable=True))
    op.add_column("plan_operations", sa.Column("moved_bytes", sa.BigInteger(), nullable=True))
    op.add_column("deployments", sa.Column("asked_plan_id", sa.Text(), nullable=False, server_default=""))
    op.add_column("deployments", sa.Column("plan_reason", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE deployments SET asked_plan_id = plan_id")
    op.create_table(
        "spare_plans",
        sa.Column("deployment_id", sa.Text(), nullable=False),
        sa.Column("lost_device_ids", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployments.id"],
            name=op.f("fk_spare_plans_deployment_id_deployments"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("deployment_id", "lost_device_ids", name=op.f("pk_spare_plans")),
    )
    op.create_index(op.f("ix_spare_plans_operation_id"), "spare_plans", ["operation_id"], unique=False)


def downgrade() -> None:
    op.drop_table("spare_plans")
    for name in ("plan_reason", "asked_plan_id"):
        op.drop_column("deployments", name)
    for name in ("moved_bytes", "replaced_plan_id", "background"):
        op.drop_column("plan_operations", name)
